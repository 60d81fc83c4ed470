"""Does scenes to an arena, one after the other, and tells what came of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.attack.scene import Scene, all_live
from tests.support.arena import LAPSED, TRACEBACK, Arena, MemoryWatch, count_in_logs

REST_SECONDS = 2.0  # after an attack of full size, for memory to be given back


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attack has come to."""

    scene: Scene
    started_at: float
    ended_at: float
    words: str
    problem: str  # "" where it was withstood
    leases_lost: int
    tracebacks: int
    rss_before_bytes: int
    rss_most_bytes: int
    rss_after_bytes: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """All attacks of a run, and what the other clients saw meanwhile."""

    outcomes: tuple[Outcome, ...]
    slow_seconds: tuple[float, ...]  # by outcome
    longest_seconds: tuple[float, ...]  # ping, by outcome
    acknowledged: int
    lost: int

    @property
    def problems(self) -> list[str]:
        """What must not have been, but for times: those say little on a busy machine."""
        found = [f"{o.scene.title}: {o.problem}" for o in self.outcomes if o.problem]
        found += [
            f"{o.scene.title}: {o.leases_lost} leases lost"
            for o in self.outcomes
            if o.leases_lost > o.scene.leases_lost_max
        ]
        found += [
            f"{o.scene.title}: {o.tracebacks} tracebacks" for o in self.outcomes if o.tracebacks
        ]
        if self.lost:
            found.append(f"{self.lost} of {self.acknowledged} acknowledged records lost")
        return found

    @property
    def table(self) -> str:
        """The outcomes as lines for a person."""
        rows = [
            "point  attack                             seconds  p99>100ms  worst ping  MB before/most/after  leases"
        ]
        for outcome, slow, longest in zip(
            self.outcomes, self.slow_seconds, self.longest_seconds, strict=True
        ):
            sizes = (outcome.rss_before_bytes, outcome.rss_most_bytes, outcome.rss_after_bytes)
            memory = "/".join(f"{size / 1e6:.0f}" for size in sizes)
            rows.append(
                f"{outcome.scene.point:5}  {outcome.scene.title:33}"
                f"  {outcome.ended_at - outcome.started_at:7.1f}  {slow:7.1f} s  {longest * 1e3:7.0f} ms"
                f"  {memory:>20}  {outcome.leases_lost:6}  {outcome.problem or outcome.words}"
            )
        rows.append(f"{self.acknowledged} records acknowledged to others, {self.lost} lost")
        return "\n".join(rows)


def run_scenes(
    directory: Path,
    scenes: Sequence[Scene],
    *,
    size: float,
    report: Callable[[str], None] = lambda _line: None,
) -> Verdict:
    """Do the scenes at their size to three nodes; ``report`` hears of each that begins."""
    with Arena(directory) as arena:
        outcomes = []
        for scene in scenes:
            report(f"{scene.point}: {scene.title}")
            outcomes.append(_do(arena, scene, size))
        sight = arena.end_watch()
        lost = arena.count_lost(sight)
    spans = [(outcome.started_at, outcome.ended_at) for outcome in outcomes]
    return Verdict(
        tuple(outcomes),
        tuple(sight.slow_seconds(*span) for span in spans),
        tuple(sight.longest_seconds(*span, "ping") for span in spans),
        sum(map(len, sight.acknowledged.values())),
        lost,
    )


def _do(arena: Arena, scene: Scene, size: float) -> Outcome:
    nodes = list(arena.nodes.values())
    lapsed, tracebacks = count_in_logs(nodes, LAPSED), count_in_logs(nodes, TRACEBACK)
    words = problem = ""
    with MemoryWatch(nodes) as memory:
        before_bytes = memory.now_bytes()
        started_at = time.monotonic()
        try:
            words = scene.run(arena, size)
            all_live(arena)
        except (AssertionError, OSError, EOFError, RuntimeError) as error:
            problem = f"{type(error).__name__}: {error}"
        ended_at = time.monotonic()
        time.sleep(REST_SECONDS * size)
        after_bytes = memory.now_bytes()
    for node in nodes:
        if node.process is not None and node.process.poll() is not None:
            node.kill()
            node.start()
    return Outcome(
        scene,
        started_at,
        ended_at,
        words,
        problem,
        count_in_logs(nodes, LAPSED) - lapsed,
        count_in_logs(nodes, TRACEBACK) - tracebacks,
        before_bytes,
        memory.most_bytes,
        after_bytes,
    )

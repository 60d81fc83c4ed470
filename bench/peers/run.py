"""Runs the cases against all peers, round by round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.peers.arena import Arena
from bench.peers.cores import pinned_to, server_and_client_core
from bench.peers.figures import BARE, Case, Figure
from bench.peers.peer import Peer

_PROBLEM_LENGTH_MAX = 300


def run_cases(
    cases: Sequence[Case], peers: Sequence[Peer], *, repeats: int, folder: Path
) -> Iterator[Figure]:
    """Yield each figure once it is measured.

    Cases share their servers, except those that start their own. A failure gives a figure with a
    problem; the peer's other cells still run.
    """
    server_core, client_core = server_and_client_core()
    with Arena(folder, server_core, client_core) as arena, pinned_to(client_core):
        for case in cases:
            yield from _run_case(case, peers, arena, repeats)


def _run_case(case: Case, peers: Sequence[Peer], arena: Arena, repeats: int) -> Iterator[Figure]:
    has_failed: set[str] = set()
    rounds = min(repeats, case.repeats_max or repeats)
    for index in range(-case.warm_up_rounds, rounds):
        for peer in peers:
            if peer.name in has_failed or (case.peers and peer.name not in case.peers):
                continue
            figures, problem = _attempt(case, arena, peer)
            if problem:
                has_failed.add(peer.name)
                yield Figure(case.workload, case.name, peer.name, index, "", None, problem)
            elif index >= 0:
                yield from _figures(case, peer.name, index, figures)
        if case.bare is not None and index >= 0:
            with pinned_to(arena.server_core):
                yield from _figures(case, BARE, index, case.bare(arena))


def _figures(case: Case, name: str, index: int, values: Mapping[str, float]) -> Iterator[Figure]:
    for metric, value in values.items():
        yield Figure(case.workload, case.name, name, index, metric, value)


def _attempt(case: Case, arena: Arena, peer: Peer) -> tuple[Mapping[str, float], str]:
    started = time.perf_counter()
    try:
        return case.run(arena, peer), ""
    except Exception as error:
        seconds = time.perf_counter() - started
        words = f"{type(error).__name__}: {error} (after {seconds:.0f} s)"
        return {}, " ".join(words.split())[:_PROBLEM_LENGTH_MAX]

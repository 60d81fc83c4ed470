"""Chains of diskless topics through schedules that no cluster of processes meets by luck.

DISKLESS_SEED=<seed>       run this one alone (a failure names its seed)
DISKLESS_SCHEDULES=<n>     how many the slow run takes, 10,000 by default
DISKLESS_BASE=<seed>       where the slow run begins, by default somewhere new each time
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from tidelog_core.diskless.wal.epoch_chains import PartitionName

from tests.simulation.checker import Violation
from tests.simulation.diskless.mutations import (
    CHECKER_MUTATIONS,
    DESIGN_MUTATIONS,
    FOUND_MUTATIONS,
    LATER_MUTATIONS,
    Mutation,
)
from tests.simulation.diskless.plan import (
    Plan,
    draw_moving_plan,
    draw_plan,
    draw_suspicious_plan,
)
from tests.simulation.diskless.shell import Mutable
from tests.simulation.diskless.simulation import run_plan, run_seed, shrink

PARTS, SCHEDULES_IN_PART = 10, 8
MUTATION_SEEDS_MAX = 400

_only = os.environ.get("DISKLESS_SEED")


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_promise(part: int) -> None:
    first = part * SCHEDULES_IN_PART
    for seed in range(first, first + SCHEDULES_IN_PART) if _only is None else [int(_only)]:
        run_seed(seed)


def test_no_suspicion_breaks_a_promise() -> None:
    for seed in range(10):
        run_plan(draw_suspicious_plan(seed))


def test_no_move_breaks_a_promise() -> None:
    for seed in range(10):
        run_plan(draw_moving_plan(seed))


class RefillsInParts(Mutable):
    """An heir that leads each partition as soon as it is refilled; the next one takes a while."""

    refill_ms = 120.0

    def __init__(self) -> None:
        self.parts: list[PartitionName] = []

    def on_part(self, names: Iterable[PartitionName]) -> None:
        self.parts += names


@pytest.mark.parametrize("draw", [draw_plan, draw_moving_plan])
def test_no_promise_is_broken_if_an_heir_leads_some_partitions_before_others(
    draw: Callable[[int], Plan],
) -> None:
    shell = RefillsInParts()
    for seed in range(8):
        run_plan(draw(seed), shell=shell)
    assert len(shell.parts) > 8
    assert len(set(shell.parts)) > 1


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_schedules_break_no_promise() -> None:
    count = 1 if _only is not None else int(os.environ.get("DISKLESS_SCHEDULES", "10000"))
    base = int(_only or os.environ.get("DISKLESS_BASE", str(time.time_ns() // 1_000_000)))
    print(f"{count} schedules from {base}")
    started = time.process_time()
    totals: Counter[str] = Counter()
    recovery_ms = []
    for seed in range(base, base + count):
        report = run_seed(seed)
        totals.update(dataclasses.asdict(report))
        recovery_ms.append(report.recovery_ms)
    seconds = time.process_time() - started
    del totals["recovery_ms"]
    each = ", ".join(f"{name} {total / count:.1f}" for name, total in totals.items())
    recovery_ms.sort()
    print(
        f"{seconds:.0f} s of CPU, {60 * count / seconds:,.0f} a minute; each: {each};"
        f" accepting again after {recovery_ms[count // 2]:.0f} ms in the median,"
        f" {recovery_ms[-1]:.0f} ms at most"
    )
    for seed in range(base, base + count // 10):
        run_plan(draw_suspicious_plan(seed))
        run_plan(draw_moving_plan(seed))
        for draw in (draw_plan, draw_moving_plan):
            run_plan(draw(seed), shell=RefillsInParts())


def find(mutation: Mutation) -> int:
    """Return the first seed that shows the mistake."""
    for seed in range(mutation.first_seed, mutation.first_seed + MUTATION_SEEDS_MAX):
        try:
            run_plan(mutation.draw(seed), mutation.rules, mutation.shell)
        except Violation as problem:
            print(problem)
            return seed
    pytest.fail(f"not noticed in {MUTATION_SEEDS_MAX} schedules")


@pytest.mark.parametrize("name", DESIGN_MUTATIONS)
def test_a_mistake_that_the_design_names_is_found(name: str) -> None:
    """The simulation is worth what it catches: each rule, left out, must show."""
    find(DESIGN_MUTATIONS[name])


@pytest.mark.parametrize("name", FOUND_MUTATIONS)
def test_a_mistake_that_the_simulation_taught_is_found(name: str) -> None:
    find(FOUND_MUTATIONS[name])


@pytest.mark.parametrize("name", LATER_MUTATIONS)
def test_a_mistake_with_log_starts_epochs_or_files_is_found(name: str) -> None:
    find(LATER_MUTATIONS[name])


@pytest.mark.parametrize("name", CHECKER_MUTATIONS)
def test_a_mistake_outside_of_chains_is_found(name: str) -> None:
    find(CHECKER_MUTATIONS[name])


def test_a_seed_always_gives_the_same_run() -> None:
    assert run_seed(11) == run_seed(11)


def test_a_failing_plan_is_made_smaller() -> None:
    mutation = DESIGN_MUTATIONS["writes epochs before the seal"]
    plan = draw_plan(find(mutation))
    smaller = shrink(plan, mutation.rules)
    assert 0 < len(smaller.faults) < len(plan.faults)
    with pytest.raises(Violation, match=f"seed {plan.seed}"):
        run_plan(smaller, mutation.rules)


def test_schedules_meet_what_may_happen_to_chains() -> None:
    """A simulation that stopped meeting takeovers would find nothing and say nothing."""
    totals: Counter[str] = Counter()
    for seed in range(9, 30):
        totals.update(dataclasses.asdict(run_seed(seed)))
    print(totals)
    assert totals["acked"] > 700
    assert totals["seals"] > 8
    assert totals["epochs"] > 35
    assert min(totals["garbage"], totals["stray_seals"]) > 1
    assert min(totals["references"], totals["deleted"]) > 150
    assert min(totals["checkpoints"], totals["epoch_bumps"]) > 30
    assert min(totals["deleted_untiered"], totals["failed_builds"]) > 1

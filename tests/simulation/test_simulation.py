"""Replication and elections through schedules that no cluster of processes meets by luck.

SIMULATION_SEED=<seed>       run this one alone (a failure names its seed)
SIMULATION_SCHEDULES=<n>     how many the slow run takes, 10,000 by default
SIMULATION_BASE=<seed>       where the slow run begins, by default somewhere new each time
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from itertools import pairwise

import pytest
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.records import Partition

from tests.simulation.checker import Violation
from tests.simulation.faults import ALL_PATTERNS, Fault, Target, draw_pattern_plan, draw_plan
from tests.simulation.following import SimFetcher
from tests.simulation.leading import FetchedAnswer
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.node import TIMES, Machines
from tests.simulation.simulation import Simulation, run_plan, run_seed, shrink

SCHEDULES = 40
PATTERN_SCHEDULES = 8
MUTATION_SEEDS_MAX = 600

_only = os.environ.get("SIMULATION_SEED")


def test_no_schedule_breaks_a_promise() -> None:
    seeds = range(SCHEDULES) if _only is None else [int(_only)]
    for seed in seeds:
        run_seed(seed)


@pytest.mark.parametrize("name", ALL_PATTERNS)
def test_no_timing_of_a_pattern_breaks_a_promise(name: str) -> None:
    for seed in range(PATTERN_SCHEDULES):
        run_plan(draw_pattern_plan(seed, name))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_schedules_break_no_promise() -> None:
    count = int(os.environ.get("SIMULATION_SCHEDULES", "10000"))
    base = int(os.environ.get("SIMULATION_BASE", str(time.time_ns() // 1_000_000)))
    started = time.process_time()
    reports = [run_seed(seed) for seed in range(base, base + count)]
    seconds = time.process_time() - started
    events = sum(report.event_count for report in reports)
    print(
        f"{count} schedules from {base} in {seconds:.0f} s of CPU:"
        f" {60 * count / seconds:,.0f} a minute, {events / count:.0f} events each,"
        f" {sum(report.epochs for report in reports) / count:.1f} elections each,"
        f" accepting again after {max(report.recovery_ms for report in reports):.0f} ms at most"
    )
    for name in ALL_PATTERNS:
        for seed in range(base, base + count // 20):
            run_plan(draw_pattern_plan(seed, name))


@pytest.mark.parametrize(("name", "mutation"), MUTATIONS.items(), ids=list(MUTATIONS))
def test_a_mistake_is_found(name: str, mutation: Mutation) -> None:
    """The simulation is worth what it catches: each rule, left out, must show."""
    for seed in range(mutation.first_seed, mutation.first_seed + MUTATION_SEEDS_MAX):
        try:
            run_plan(mutation.plan(seed), mutation.machines)
        except Violation:
            return
    pytest.fail(f"«{name}» went unnoticed in {MUTATION_SEEDS_MAX} schedules")


def acked_after(seed: int, fault: Fault, until_ms: float) -> tuple[Partition, int]:
    """Return the partition as it is then, and how much is acknowledged in 300 ms from there."""
    simulation = Simulation(dataclasses.replace(draw_plan(seed), replica_count=3, faults=(fault,)))
    simulation.begin_faults()
    simulation.world.run(until_ms)
    stored = simulation.store.partition(simulation.key)
    acked = sum(producer.acked_count for producer in simulation.producers)
    simulation.world.run(until_ms + 300)  # a client's request timeout
    return stored, sum(producer.acked_count for producer in simulation.producers) - acked


@pytest.mark.parametrize("seed", range(20))
def test_a_dead_leaders_partition_accepts_writes_again_soon(seed: int) -> None:
    """Within a lease and a third, which is 12 s where the lease is 9 s."""
    crash = Fault("crash", 1_000, 1e9, Target.LEADER, 0, 1, 0.0)
    stored, acked = acked_after(seed, crash, 1_000 + TIMES.lease_ms * 4 / 3)
    assert stored.leader_epoch == 2
    assert 0 not in stored.isr
    assert acked > 0


@pytest.mark.parametrize("seed", range(20))
def test_a_leader_whose_loop_hangs_is_replaced_that_much_later(seed: int) -> None:
    """Its lease is renewed for ``stall_ms``; then it is dead like any other."""
    hang = Fault("stall", 1_000, 1e9, Target.LEADER, 0, 1, 0.0)
    stored, acked = acked_after(seed, hang, 1_000 + TIMES.stall_ms + TIMES.lease_ms * 4 / 3)
    assert stored.leader_epoch == 2
    assert acked > 0


@pytest.mark.parametrize("seed", range(20))
def test_a_leader_whose_loop_stands_still_for_a_lease_goes_on_leading(seed: int) -> None:
    stall = Fault("stall", 1_000, TIMES.lease_ms * 1.1, Target.LEADER, 0, 1, 0.0)
    stored, acked = acked_after(seed, stall, 1_000 + TIMES.lease_ms * 2)
    assert stored.leader_epoch == 1
    assert acked > 0


@pytest.mark.parametrize("seed", range(40))
def test_of_two_members_lost_together_the_one_that_comes_back_leads(seed: int) -> None:
    """Whichever it is: no third broker has named the other one to lead alone."""
    back_ms = 1_000 + TIMES.lease_ms * 3
    lost = [
        Fault(
            "crash",
            1_000,
            back_ms - 1_000 if place == seed % 2 else 1e9,
            Target.PLACE,
            place,
            1 - place,
            0.0,
        )
        for place in (0, 1)
    ]
    plan = dataclasses.replace(
        draw_plan(seed),
        broker_count=3,
        replica_count=2,
        min_insync_replicas=1,
        is_unclean_allowed=False,
        faults=tuple(lost),
    )
    simulation = Simulation(plan)
    simulation.begin_faults()
    simulation.world.run(back_ms)
    acked = sum(producer.acked_count for producer in simulation.producers)
    simulation.world.run(back_ms + TIMES.lease_ms * 2)
    assert simulation.store.partition(simulation.key).leader == seed % 2
    assert sum(producer.acked_count for producer in simulation.producers) > acked


def test_a_seed_always_gives_the_same_run() -> None:
    assert run_seed(11) == run_seed(11)


def test_a_failing_plan_is_made_smaller() -> None:
    machines = MUTATIONS["never fences itself"].machines
    for seed in range(MUTATION_SEEDS_MAX):
        plan = draw_plan(seed)
        try:
            run_plan(plan, machines)
        except Violation:
            break
    smaller = shrink(plan, machines)
    assert 0 < len(smaller.faults) < len(plan.faults)
    with pytest.raises(Violation, match=f"seed {seed}"):
        run_plan(smaller, machines)


def test_schedules_meet_every_kind_of_change() -> None:
    """A simulation that stopped meeting elections would find nothing and say nothing."""
    epochs = shrunk = grown = moved = lossy = 0
    for seed in range(60):
        simulation = Simulation(draw_plan(seed))
        isrs, replicas = [], []
        simulation.store.on_partition = lambda _, after, isrs=isrs, replicas=replicas: (
            isrs.append(len(after.isr)),
            replicas.append(after.replicas),
        )
        report = simulation.run()
        epochs += report.epochs
        lossy += report.is_lossy
        shrunk += sum(after < before for before, after in pairwise(isrs))
        grown += sum(after > before for before, after in pairwise(isrs))
        moved += len(set(replicas)) > 1
    assert epochs > 90
    assert shrunk > 50
    assert grown > 50
    assert moved > 3
    assert lossy < 10


def test_schedules_meet_what_may_happen_to_fetch_sessions() -> None:
    """Lost and evicted ones, ids of others, late and doubled requests and answers, and none."""
    seen: Counter[str] = Counter()

    class Observed(SimFetcher):
        def on_answer(self, number: int, answer: FetchedAnswer) -> None:
            seen[answer.error.name] += 1
            seen["late"] += number not in self._under_way
            seen["unnamed"] += not answer.results
            seen["without a session"] += answer.session_id == 0
            super().on_answer(number, answer)

    for seed in range(30):
        Simulation(draw_plan(seed), Machines(fetcher=Observed)).run()
    print(seen)
    assert seen[ErrorCode.fetch_session_id_not_found.name] > 15
    assert seen[ErrorCode.invalid_fetch_session_epoch.name] > 30
    assert min(seen["late"], seen["unnamed"], seen["without a session"]) > 100

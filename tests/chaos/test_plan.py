"""The plan of a run: the same for the same seed, and within its bounds."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.chaos.plan import (
    BUCKET_LANE,
    FOLDER_LANE,
    FaultKind,
    PlannedFault,
    kinds_for,
    plan_faults,
    plan_rounds,
)

ALL = tuple(FaultKind)


def plan(seed: int, kinds: tuple[FaultKind, ...] = ALL) -> list[list[PlannedFault]]:
    return plan_faults(seed, seconds=60, node_count=3, kinds=kinds, lease_s=2)


def test_a_seed_plans_the_same_faults_again() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


@pytest.mark.parametrize("seed", range(20))
def test_faults_of_a_lane_follow_each_other_and_end_in_time(seed: int) -> None:
    for lane in plan(seed):
        assert lane
        for before, after in itertools.pairwise(lane):
            assert before.at_s + before.duration_s < after.at_s
        assert lane[-1].at_s + lane[-1].duration_s <= 60
        for fault in lane:
            assert fault.targets
            assert set(fault.targets) <= {1, 2, 3}


@pytest.mark.parametrize("seed", range(20))
def test_rounds_have_every_kind_as_often_as_there_are_rounds(seed: int) -> None:
    kinds = (FaultKind.KILL, FaultKind.TORN, FaultKind.CUT, FaultKind.STORE_LOCK)
    lanes = plan_rounds(seed, rounds=3, node_count=3, kinds=kinds, lease_s=2)
    assert Counter(fault.kind for lane in lanes for fault in lane) == dict.fromkeys(kinds, 3)
    for lane in lanes:
        assert all(before.end_s < after.at_s for before, after in itertools.pairwise(lane))


def test_a_pause_outlasts_the_lease() -> None:
    kinds = (FaultKind.PAUSE, FaultKind.PAUSE_MACHINE, FaultKind.PAUSE_WORKERS)
    pauses = [f for lane in plan(1, kinds) for f in lane]
    assert pauses
    assert all(fault.duration_s > 2 for fault in pauses)


def test_a_minute_has_every_kind_of_a_lane() -> None:
    kinds = kinds_for(replication_factor=1, has_dynamodb=False)
    planned = {fault.kind for lane in plan(3, kinds) for fault in lane}
    assert planned == set(kinds)


def test_only_replicated_topics_get_torn_logs() -> None:
    assert FaultKind.TORN not in kinds_for(replication_factor=1, has_dynamodb=False)
    assert FaultKind.TORN in kinds_for(replication_factor=3, has_dynamodb=False)
    torn = [f for lane in plan(1, (FaultKind.TORN,)) for f in lane]
    assert all(len(fault.targets) == 1 for fault in torn)


def test_each_store_has_its_own_faults() -> None:
    assert FaultKind.STORE_LOCK not in kinds_for(replication_factor=1, has_dynamodb=True)
    assert FaultKind.STORE_FAILING not in kinds_for(replication_factor=1, has_dynamodb=False)


def test_topics_are_converted_only_where_that_is_asked_for() -> None:
    assert FaultKind.CONVERT not in kinds_for(replication_factor=3, has_dynamodb=False)
    kinds = kinds_for(replication_factor=3, has_dynamodb=False, is_converting=True)
    assert FaultKind.CONVERT in kinds


@pytest.mark.parametrize("is_diskless", [False, True])
def test_topics_that_are_converted_keep_their_disks_when_all_nodes_are_killed(
    is_diskless: bool,
) -> None:
    kinds = kinds_for(
        replication_factor=3, has_dynamodb=False, is_diskless=is_diskless, is_converting=True
    )
    assert FaultKind.KILL_ALL in kinds
    assert FaultKind.DISK_LOST not in kinds


def test_a_bucket_fails_only_where_there_is_one_and_often_for_all_nodes() -> None:
    assert not set(BUCKET_LANE) & set(kinds_for(replication_factor=3, has_dynamodb=False))
    assert set(FOLDER_LANE) <= set(kinds_for(replication_factor=3, has_dynamodb=False))
    kinds = kinds_for(replication_factor=3, has_dynamodb=False, has_bucket=True)
    assert set(BUCKET_LANE) <= set(kinds)
    assert not set(FOLDER_LANE) & set(kinds)
    faults = [fault for seed in range(20) for lane in plan(seed, BUCKET_LANE) for fault in lane]
    everyone = sum(fault.targets == (1, 2, 3) for fault in faults)
    assert len(faults) / 3 < everyone < len(faults)

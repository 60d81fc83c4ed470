from __future__ import annotations

import pytest
from tidelog_core.errors import InvalidReplicaAssignment, NoReassignmentInProgress
from tidelog_core.metadata.records import Partition, check
from tidelog_core.replication.placement.reassignment import (
    OngoingReassignment,
    cancel_reassignment,
    end_reassignment,
    ongoing_reassignment,
    start_reassignment,
    target_replicas,
)

from tests.support.replication_cluster import (
    fetch,
    make_brokers,
    make_leader,
    make_partition,
    make_peers,
)

BROKERS = {1, 2, 3, 4, 5}
ALIVE = make_peers(live=(1, 2, 3, 4, 5))


def test_the_new_replicas_stand_beside_the_old_ones_until_they_are_in_sync() -> None:
    change = start_reassignment(make_partition(), [4, 2, 3], broker_ids=BROKERS)
    assert change is not None
    after = change.after
    assert after.replicas == (4, 2, 3, 1)
    assert (after.adding, after.removing, after.isr) == ((4,), (1,), (1, 2, 3))
    assert ongoing_reassignment(after) == OngoingReassignment((4, 2, 3, 1), (4,), (1,))
    assert target_replicas(after) == (4, 2, 3)
    assert end_reassignment(after, ALIVE) is None


def test_another_target_replaces_the_first() -> None:
    first = start_reassignment(make_partition(), [4, 2, 3], broker_ids=BROKERS)
    assert first is not None
    second = start_reassignment(first.after, [5, 4, 2], broker_ids=BROKERS)
    assert second is not None
    assert second.after.replicas == (5, 4, 2, 1, 3)
    assert (second.after.adding, second.after.removing) == ((5, 4), (1, 3))


def test_a_target_that_is_reached_changes_nothing() -> None:
    assert start_reassignment(make_partition(), [1, 2, 3], broker_ids=BROKERS) is None
    assert ongoing_reassignment(make_partition()) is None


def test_another_order_takes_effect_at_once() -> None:
    change = start_reassignment(make_partition(), [3, 2, 1], broker_ids=BROKERS)
    assert change is not None
    assert (change.after.replicas, change.after.adding) == ((3, 2, 1), ())


@pytest.mark.parametrize(
    ("target", "problem"),
    [([], "empty"), ([1, 9], "no such broker"), ([1, 2, 1], "more than once")],
)
def test_impossible_targets_are_refused(target: list[int], problem: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=problem):
        start_reassignment(make_partition(), target, broker_ids=BROKERS)


def test_the_swap_waits_for_the_whole_target() -> None:
    reassigning = make_partition((4, 5, 1), isr=(1, 4), adding=(4, 5), removing=(1,))
    assert end_reassignment(reassigning, ALIVE) is None
    change = end_reassignment(
        make_partition((4, 5, 1), isr=(1, 4, 5), adding=(4, 5), removing=(1,)), ALIVE
    )
    assert change is not None
    after = change.after
    assert (after.replicas, after.isr, after.adding, after.removing) == ((4, 5), (4, 5), (), ())
    assert (after.leader, after.leader_epoch) == (4, 6)


def test_the_swap_waits_for_a_successor_that_lives() -> None:
    reassigning = make_partition((4, 5, 1), isr=(1, 4, 5), adding=(4, 5), removing=(1,))
    change = end_reassignment(reassigning, make_peers(live=(1, 5), dead=(4,)))
    assert change is not None
    assert change.after.leader == 5
    assert end_reassignment(reassigning, make_peers(live=(1,), dead=(4, 5))) is None


def test_cancelling_takes_the_added_replicas_out() -> None:
    reassigning = make_partition((4, 2, 3, 1), isr=(1, 2, 4), adding=(4,), removing=(1,))
    after = cancel_reassignment(reassigning).after
    assert (after.replicas, after.isr) == ((2, 3, 1), (1, 2))
    assert (after.adding, after.removing) == ((), ())


@pytest.mark.parametrize(
    ("partition", "begins_an_epoch"),
    [
        (make_partition((4, 2, 3, 1), isr=(1, 2, 4), adding=(4,), removing=(1,)), True),
        (make_partition((2, 3, 1), removing=(1,)), False),
        (make_partition((4, 2, 1), leader=4, isr=(1, 2, 4), adding=(4,), removing=(1,)), False),
    ],
    ids=["replicas are taken out", "nothing was added", "an added replica leads"],
)
def test_cancelling_begins_an_epoch_only_if_the_leader_has_not_registered_again(
    partition: Partition, begins_an_epoch: bool
) -> None:
    registered = check(make_brokers(1)[1])
    change = cancel_reassignment(partition, (registered,))
    assert change.after.leader_epoch == partition.leader_epoch + begins_an_epoch
    assert change.checks == ((registered,) if begins_an_epoch else ())


def test_cancelling_turns_around_where_an_added_replica_leads() -> None:
    reassigning = make_partition((4, 2, 1), leader=4, isr=(1, 2, 4), adding=(4,), removing=(1,))
    after = cancel_reassignment(reassigning).after
    assert target_replicas(after) == (2, 1)
    assert after.removing == (4,)
    ended = end_reassignment(after, ALIVE)
    assert ended is not None
    assert (ended.after.leader, ended.after.replicas) == (2, (2, 1))


def test_what_cannot_be_cancelled_is_refused() -> None:
    with pytest.raises(NoReassignmentInProgress):
        cancel_reassignment(make_partition())
    with pytest.raises(InvalidReplicaAssignment, match="no original replica"):
        cancel_reassignment(make_partition((4, 1), leader=4, isr=(4,), adding=(4,), removing=(1,)))


def test_an_epoch_with_the_same_leader_is_written_only_by_its_present_process() -> None:
    """The broker's next process may have less of the log, and leads what begins after its start."""
    moving = make_partition((1, 3, 2), isr=(1, 2, 3), removing=(2,))
    own = (check(make_brokers(1)[1]),)
    change = end_reassignment(moving, ALIVE, own)
    assert change is not None
    assert (change.after.leader, change.after.leader_epoch) == (1, moving.leader_epoch + 1)
    assert change.checks == own
    leader = make_leader(moving)
    for follower_id in (2, 3):
        fetch(leader, follower_id, 0)
    proposed = leader.propose(make_brokers(1, 2, 3, version=4), ALIVE, 0)
    assert proposed is not None
    assert proposed.checks == (check(make_brokers(1, version=4)[1]),)


def test_another_leader_or_the_same_epoch_needs_no_check_of_the_old_one() -> None:
    own = (check(make_brokers(1)[1]),)
    left = make_partition((2, 3, 1), isr=(1, 2, 3), removing=(1,))
    change = end_reassignment(left, ALIVE, own)
    assert change is not None
    assert (change.after.leader, change.checks) == (2, ())
    grown = make_partition((1, 2, 3), isr=(1, 2, 3), adding=(3,))
    change = end_reassignment(grown, ALIVE, own)
    assert change is not None
    assert (change.after.leader_epoch, change.checks) == (grown.leader_epoch, ())

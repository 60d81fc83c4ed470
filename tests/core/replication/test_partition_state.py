from __future__ import annotations

from tidelog_core.errors import NotLeaderOrFollower
from tidelog_core.metadata.image.readings import stand_in
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.leader.rules import ReplicationRules
from tidelog_core.replication.partition_state import PartitionState, RoleChange

from tests.support.replication_cluster import make_partition
from tests.support.sim_log import SimLog, Tier


def take(state: PartitionState[str], partition: Partition, *, leads: bool = False) -> RoleChange:
    return state.on_partition(
        partition, leads=leads, log=SimLog(Tier()), rules=ReplicationRules(), now_ms=0
    )


def test_a_replica_follows_then_leads_then_follows() -> None:
    state = PartitionState[str](2)
    assert take(state, make_partition()) is RoleChange.BECAME_FOLLOWER
    followed = state.follower
    assert followed is not None
    assert followed.leader_id == 1
    led = make_partition(leader=2, epoch=6, version=8)
    assert take(state, led, leads=True) is RoleChange.BECAME_LEADER
    assert state.follower is None
    assert followed.next_fetch(SimLog(Tier())) is None
    assert state.leader is not None
    state.leader.on_append(1, 0)
    state.leader.add_pending_ack(1, "a")
    assert take(state, make_partition(epoch=7, version=9)) is RoleChange.BECAME_FOLLOWER
    assert state.leader is None
    (ack,) = state.take_released()
    assert ack.token == "a"
    assert isinstance(ack.error, NotLeaderOrFollower)


def test_a_leader_that_leads_on_in_the_next_epoch_owes_on() -> None:
    state = PartitionState[str](1)
    take(state, make_partition(epoch=5, version=7), leads=True)
    assert state.leader is not None
    state.leader.on_append(1, 0)
    state.leader.add_pending_ack(1, "a")
    moved = make_partition((1, 2), isr=(1,), epoch=6, version=8)
    assert take(state, moved, leads=True) is RoleChange.BECAME_LEADER
    assert state.take_released() == []
    state.leader.on_append(1, 0)
    (ack,) = state.take_released()
    assert (ack.token, ack.error) == ("a", None)


def test_a_leader_that_missed_an_epoch_owes_nothing_on() -> None:
    """Somebody else may have led in between."""
    state = PartitionState[str](1)
    take(state, make_partition(epoch=5, version=7), leads=True)
    assert state.leader is not None
    state.leader.on_append(1, 0)
    state.leader.add_pending_ack(1, "a")
    take(state, make_partition(epoch=7, version=9), leads=True)
    (ack,) = state.take_released()
    assert isinstance(ack.error, NotLeaderOrFollower)


def test_a_record_of_the_same_epoch_goes_to_the_part_that_is_played() -> None:
    state = PartitionState[str](1)
    take(state, make_partition(), leads=True)
    leader = state.leader
    assert take(state, make_partition(isr=(1,), version=8), leads=True) is RoleChange.NONE
    assert state.leader is leader
    assert leader is not None
    assert leader.partition.isr == (1,)


def test_nobody_leads_or_follows_by_an_item_that_cannot_be_read() -> None:
    for leads in (True, False):
        state = PartitionState[str](1 if leads else 2)
        known = make_partition()
        take(state, known, leads=leads)
        if state.leader is not None:
            state.leader.on_append(1, 0)
            state.leader.add_pending_ack(1, "a")
        damaged = stand_in(known.topic_id, known.partition, known)
        assert take(state, damaged) is RoleChange.IDLE
        assert take(state, damaged) is RoleChange.IDLE
        assert (state.leader, state.follower) == (None, None)
        assert [ack.token for ack in state.take_released()] == ["a"] * leads
        # It can be read again, whether it is another one by now or not.
        change = take(state, make_partition(), leads=leads)
        assert change is (RoleChange.BECAME_LEADER if leads else RoleChange.BECAME_FOLLOWER)


def test_old_records_change_nothing() -> None:
    state = PartitionState[str](1)
    take(state, make_partition(), leads=True)
    assert take(state, make_partition(leader=2, epoch=4, version=6)) is RoleChange.NONE
    assert state.leader is not None


def test_a_leadership_of_an_earlier_life_is_not_taken_up() -> None:
    state = PartitionState[str](1)
    assert take(state, make_partition()) is RoleChange.IDLE
    assert state.leader is None
    assert state.follower is None


def test_a_replica_that_is_moved_away_plays_no_part() -> None:
    state = PartitionState[str](3)
    take(state, make_partition())
    moved = make_partition((1, 2), version=8)
    assert take(state, moved) is RoleChange.NO_REPLICA
    assert state.follower is None

from __future__ import annotations

import dataclasses

import pytest
from tidelog_core.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
)
from tidelog_core.metadata.store import Check
from tidelog_core.replication.change import PartitionChange
from tidelog_core.replication.leader.follower_progress import FollowerContact
from tidelog_core.replication.leader.leader_state import LeaderState
from tidelog_core.replication.leases.election_coordinators import (
    ISR_SHRINK_DELAY_MS,
    STEP_IN_DELAY_MS,
)
from tidelog_core.replication.leases.own_lease import RELEASED
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.replication.placement.reassignment import cancel_reassignment, start_reassignment

from tests.support.replication_cluster import (
    LAG_MS,
    TIMES,
    fetch,
    make_brokers,
    make_leader,
    make_lease,
    make_partition,
    make_peers,
)

BROKERS = make_brokers(1, 2, 3, 4)
ALIVE = make_peers(live=(1, 2, 3, 4))


def propose(
    leader: LeaderState[str], *, peers: PeerLeases = ALIVE, now_ms: float = 0
) -> PartitionChange:
    change = leader.propose(BROKERS, peers, now_ms)
    assert change is not None
    return change


def idle(leader: LeaderState[str], *, now_ms: float = 0) -> bool:
    return leader.propose(BROKERS, ALIVE, now_ms) is None


# -- the high watermark --


def test_the_high_watermark_is_the_lowest_end_in_the_isr() -> None:
    leader = make_leader()
    leader.on_append(10, 0)
    assert not fetch(leader, 2, 10)
    assert fetch(leader, 3, 4)
    assert leader.high_watermark == 4
    assert fetch(leader, 3, 10)
    assert leader.high_watermark == 10


def test_it_never_goes_back() -> None:
    leader = make_leader()
    leader.on_append(10, 0)
    fetch(leader, 2, 10)
    fetch(leader, 3, 10)
    assert not fetch(leader, 3, 5)
    assert leader.high_watermark == 10


def test_a_leader_alone_commits_what_it_appends() -> None:
    leader = make_leader(make_partition(isr=(1,)))
    assert leader.on_append(3, 0)
    assert leader.high_watermark == 3


def test_a_new_leader_waits_for_every_isr_member_to_fetch_from_it() -> None:
    leader = make_leader(log_end_offset=10, high_watermark=4)
    fetch(leader, 2, 10)
    assert leader.high_watermark == 4
    assert not leader.is_high_watermark_settled
    fetch(leader, 3, 10)
    assert leader.high_watermark == 10
    assert leader.is_high_watermark_settled


def test_a_follower_that_lags_outside_of_the_isr_holds_nothing_back() -> None:
    leader = make_leader(make_partition(isr=(1, 2)), log_end_offset=10)
    fetch(leader, 3, 1)
    fetch(leader, 2, 10)
    assert leader.high_watermark == 10


# -- acks --


def test_acks_are_released_in_order_as_the_high_watermark_passes_them() -> None:
    leader = make_leader(make_partition(isr=(1, 2)))
    for offset, token in ((1, "a"), (2, "b"), (3, "c")):
        leader.on_append(offset, 0)
        leader.add_pending_ack(offset, token)
    assert leader.take_released() == []
    fetch(leader, 2, 2)
    assert [(ack.token, ack.error) for ack in leader.take_released()] == [("a", None), ("b", None)]
    assert leader.take_released() == []


def test_produce_is_refused_before_the_append_where_too_few_are_in_sync() -> None:
    leader = make_leader(make_partition(isr=(1,)), min_insync_replicas=2)
    leader.require_appendable(needs_all=False)
    with pytest.raises(NotEnoughReplicas, match="1 replicas are in sync, 2 are required"):
        leader.require_appendable(needs_all=True)
    leader.on_append(5, 0)
    assert leader.high_watermark == 0  # KIP-966


def test_a_minimum_above_the_number_of_replicas_asks_for_all_of_them() -> None:
    leader = make_leader(make_partition((1,), isr=(1,)), min_insync_replicas=2)
    leader.require_appendable(needs_all=True)
    leader.on_append(5, 0)
    assert leader.high_watermark == 5


def test_committed_records_under_too_small_an_isr_are_not_enough_after_the_append() -> None:
    leader = make_leader(make_partition(isr=(1, 2)), min_insync_replicas=2)
    leader.on_append(1, 0)
    fetch(leader, 2, 1)
    leader.on_partition(make_partition(isr=(1,), version=8), 0)
    leader.add_pending_ack(1, "again")
    (ack,) = leader.take_released()
    assert isinstance(ack.error, NotEnoughReplicasAfterAppend)


def test_everyone_who_waits_fails_when_the_leadership_ends() -> None:
    leader = make_leader()
    leader.on_append(1, 0)
    leader.add_pending_ack(1, "a")
    leader.on_partition(make_partition(leader=2, epoch=6, version=8), 0)
    assert leader.is_deposed
    (ack,) = leader.take_released()
    assert isinstance(ack.error, NotLeaderOrFollower)
    with pytest.raises(NotLeaderOrFollower):
        leader.require_appendable(needs_all=False)


# -- who fetches --


def test_fetches_of_strangers_earlier_lives_and_other_logs_are_refused() -> None:
    leader = make_leader()
    with pytest.raises(NotLeaderOrFollower):
        fetch(leader, 9, 0)
    fetch(leader, 2, 0, replica_epoch=4)
    with pytest.raises(NotLeaderOrFollower):
        fetch(leader, 2, 0, replica_epoch=3)
    with pytest.raises(OffsetOutOfRange):
        fetch(leader, 2, 1, replica_epoch=4)


# -- the ISR shrinks --


def test_a_replica_leaves_when_it_was_not_caught_up_for_too_long() -> None:
    leader = make_leader()
    fetch(leader, 2, 0, now_ms=100)
    fetch(leader, 3, 0, now_ms=100)
    leader.on_append(5, 200)
    fetch(leader, 2, 5, now_ms=200)
    assert idle(leader, now_ms=100 + LAG_MS)
    change = propose(leader, now_ms=101 + LAG_MS)
    assert change.after.isr == (1, 2)
    assert change.write.expected_version == 7


def test_a_replica_counts_until_the_store_has_let_it_go() -> None:
    leader = make_leader(make_partition((1, 2)))
    leader.on_append(5, 0)
    change = propose(leader, now_ms=1 + LAG_MS)
    assert leader.high_watermark == 0
    leader.on_written(change, 1 + LAG_MS)
    assert leader.high_watermark == 5
    assert leader.partition.version == 8


def test_a_dead_replica_leaves_when_others_have_not_seen_to_it() -> None:
    leader, peers = make_leader(), make_peers(dead=(3,), live=(1, 2))
    leader.on_append(5, 0)
    due_ms = TIMES.lease_ms + ISR_SHRINK_DELAY_MS
    assert leader.propose(BROKERS, peers, due_ms - 1) is None
    # They take it out of the ISR of another partition just then.
    other = dataclasses.replace(leader.partition, partition=9)
    written = dataclasses.replace(other, isr=(1, 2))
    peers.note_written(other, written, due_ms - 1)
    assert leader.propose(BROKERS, peers, due_ms) is None
    due_ms += ISR_SHRINK_DELAY_MS - 1
    assert leader.propose(BROKERS, peers, due_ms - 1) is None
    assert propose(leader, peers=peers, now_ms=due_ms).after.isr == (1, 2)


def test_a_replica_that_has_left_in_order_leaves_the_isr_soon_when_others_do_not_see_to_it() -> (
    None
):
    leader, peers = make_leader(), make_peers(live=(1, 2))
    leader.on_append(5, 0)
    peers.observe([make_lease(3, RELEASED, version=4)], started_ms=0, now_ms=0)
    assert leader.propose(BROKERS, peers, STEP_IN_DELAY_MS - 1) is None
    assert propose(leader, peers=peers, now_ms=STEP_IN_DELAY_MS).after.isr == (1, 2)


def test_a_replica_that_others_take_out_of_the_isr_no_longer_holds_anything_back() -> None:
    leader = make_leader()
    leader.on_append(5, 0)
    fetch(leader, 2, 5)
    assert leader.high_watermark == 0
    shrunk = dataclasses.replace(leader.partition, isr=(1, 2), version=leader.partition.version + 1)
    leader.on_partition(shrunk, 0)
    assert leader.high_watermark == 5


def test_a_replica_on_a_full_disk_leaves_once_it_is_behind_and_joins_when_there_is_room() -> None:
    leader, full = make_leader(), make_peers(live=(1, 2), full=(3,))
    fetch(leader, 2, 0)
    fetch(leader, 3, 0)
    assert leader.propose(BROKERS, full, 0) is None  # It has everything.
    leader.on_append(5, 0)
    fetch(leader, 2, 5)
    change = propose(leader, peers=full)
    assert change.after.isr == (1, 2)
    leader.on_written(change, 0)
    assert leader.high_watermark == 5
    fetch(leader, 3, 5)
    assert leader.propose(BROKERS, full, 0) is None
    leader.on_append(8, 0)
    fetch(leader, 2, 8)
    assert leader.high_watermark == 8  # Nobody waits for it.
    fetch(leader, 3, 8)
    assert propose(leader).after.isr == (1, 2, 3)


def test_a_replica_whose_broker_has_just_come_gets_its_time() -> None:
    """Its lease may be younger than the last reading of leases."""
    leader = make_leader(make_partition((1, 2)))
    leader.on_append(5, 0)
    unseen = make_peers(live=(1,))
    assert leader.propose(BROKERS, unseen, LAG_MS) is None
    assert propose(leader, peers=unseen, now_ms=LAG_MS + 1).after.isr == (1,)


def test_a_replica_that_is_one_fetch_behind_for_ever_stays_in() -> None:
    """Kafka's rule of what the fetch before the last one has reached."""
    leader = make_leader(make_partition((1, 2)))
    for step in range(1, 200):
        fetch(leader, 2, (step - 1) * 10, now_ms=step * 1_000)
        leader.on_append(step * 10, step * 1_000)
        assert idle(leader, now_ms=step * 1_000)


def test_a_leader_that_slept_gives_its_followers_their_time_again() -> None:
    leader = make_leader()
    leader.on_append(5, 0)
    leader.resume(10 * LAG_MS)
    assert idle(leader, now_ms=10 * LAG_MS + 1)


# -- the ISR grows --


def test_a_caught_up_replica_joins_and_counts_before_the_store_knows() -> None:
    leader = make_leader(make_partition((1, 2), isr=(1,)))
    leader.on_append(5, 0)
    fetch(leader, 2, 5)
    change = propose(leader)
    assert change.after.isr == (1, 2)
    assert change.checks == (Check(BROKERS[2].item_id, 1),)
    assert leader.maximal_isr == {1, 2}
    leader.on_append(6, 0)
    assert leader.high_watermark == 5
    leader.on_refused(change, 0)
    assert leader.maximal_isr == {1}


def test_a_replica_joins_only_past_the_start_of_the_epoch() -> None:
    leader = make_leader(make_partition(isr=(1, 2)), log_end_offset=10, high_watermark=4)
    fetch(leader, 3, 9)
    assert idle(leader)
    fetch(leader, 3, 10)
    assert propose(leader).after.isr == (1, 2, 3)


def test_a_replica_of_an_earlier_registration_or_without_a_lease_does_not_join() -> None:
    leader = make_leader(make_partition((1, 2), isr=(1,)))
    fetch(leader, 2, 0)
    assert leader.propose(make_brokers(1, 2, version=2), ALIVE, 0) is None
    fetch(leader, 2, 0)
    assert leader.propose(BROKERS, make_peers(live=(1,)), 0) is None
    leader.on_append(3, 0)
    assert leader.high_watermark == 3  # nor does anyone wait for it


def test_a_replica_that_left_joins_only_after_another_fetch() -> None:
    leader = make_leader()
    fetch(leader, 2, 0)
    fetch(leader, 3, 0)
    leader.on_partition(make_partition(isr=(1, 3), version=8), 0)
    assert idle(leader)
    fetch(leader, 2, 0)
    assert propose(leader).after.isr == (1, 3, 2)


# -- writes that are lost --


def test_one_write_is_under_way_at_a_time() -> None:
    leader = make_leader(make_partition((1, 2), isr=(1,)))
    fetch(leader, 2, 0)
    propose(leader)
    assert idle(leader)


def test_after_an_unknown_outcome_old_news_settle_nothing() -> None:
    """The write may land after the reading: whoever it names counts until the version moves."""
    leader = make_leader(make_partition((1, 2), isr=(1,)))
    fetch(leader, 2, 0)
    change = propose(leader)
    leader.on_unknown(0)
    assert leader.needs_read
    assert idle(leader)
    leader.on_read(leader.partition, 0)
    assert leader.maximal_isr == {1, 2}
    leader.on_append(5, 0)
    assert leader.high_watermark == 0
    again = propose(leader, now_ms=leader.rules.retry_ms)
    assert again.write.expected_version == change.write.expected_version
    leader.on_conflict()
    leader.on_read(make_partition((1, 2), isr=(1,), version=8), 1_000)
    assert leader.maximal_isr == {1}


def test_something_is_written_to_overtake_what_nobody_needs_any_more() -> None:
    leader = make_leader(make_partition((1, 2)))
    leader.on_append(5, 0)
    shrink = propose(leader, now_ms=1 + LAG_MS)
    leader.on_unknown(1 + LAG_MS)
    fetch(leader, 2, 5, now_ms=2 + LAG_MS)
    leader.on_read(leader.partition, 2 + LAG_MS)
    settle = propose(leader, now_ms=2 * LAG_MS)
    assert settle.after == dataclasses.replace(shrink.after, isr=(1, 2))
    leader.on_written(settle, 2 * LAG_MS)
    assert idle(leader, now_ms=2 * LAG_MS)


def test_a_conflict_is_followed_by_a_reading() -> None:
    leader = make_leader(make_partition((1, 2), isr=(1,)))
    fetch(leader, 2, 0)
    propose(leader)
    leader.on_conflict()
    assert idle(leader)
    leader.on_read(make_partition((1, 2), leader=2, epoch=6, version=8), 0)
    assert leader.is_deposed


def test_a_record_that_is_older_than_what_is_known_changes_nothing() -> None:
    leader = make_leader()
    leader.on_partition(make_partition(isr=(1,), version=6), 0)
    assert leader.partition.isr == (1, 2, 3)


# -- handing over --


def test_a_hand_over_waits_for_the_last_record_and_then_answers_nobody() -> None:
    leader = make_leader(make_partition((1, 2)))
    leader.on_append(5, 0)
    leader.add_pending_ack(5, "a")
    leader.begin_hand_over(2, is_leaving=False, now_ms=0)
    with pytest.raises(NotLeaderOrFollower):
        leader.require_appendable(needs_all=False)
    assert idle(leader)
    fetch(leader, 2, 5)
    assert [ack.error for ack in leader.take_released()] == [None]
    change = propose(leader)
    assert (change.after.leader, change.after.leader_epoch) == (2, 6)
    assert not leader.is_serving
    leader.add_pending_ack(5, "b")
    assert leader.take_released() == []
    leader.on_written(change, 0)
    assert leader.is_deposed
    (ack,) = leader.take_released()
    assert isinstance(ack.error, NotLeaderOrFollower)


def test_a_hand_over_that_may_have_landed_answers_nobody_until_that_is_known() -> None:
    leader = make_leader(make_partition((1, 2)))
    fetch(leader, 2, 0)
    leader.begin_hand_over(2, is_leaving=False, now_ms=0)
    change = propose(leader)
    leader.on_unknown(0)
    leader.on_read(leader.partition, 0)
    assert not leader.is_serving
    leader.on_read(dataclasses.replace(change.after, version=8), 0)
    assert leader.is_deposed


def test_a_hand_over_that_takes_too_long_is_given_up_unless_the_leader_leaves() -> None:
    for is_leaving in (False, True):
        leader = make_leader(make_partition((1, 2)))
        leader.on_append(5, 0)
        leader.begin_hand_over(2, is_leaving=is_leaving, now_ms=0, time_ms=1_000)
        fetch(leader, 2, 0)
        change = leader.propose(BROKERS, ALIVE, 1_000)
        if is_leaving:
            assert change is not None
            assert (change.after.leader, change.after.isr) == (2, (2,))
        else:
            assert change is None
            leader.require_appendable(needs_all=True)


def test_a_leader_that_gave_up_for_its_full_disk_stays_in_sync_while_it_lacks_nothing() -> None:
    full = make_peers(live=(1, 2), full=(3,))
    for is_heard in (False, True):
        leader = make_leader()
        fetch(leader, 2, 0)
        assert leader.propose(BROKERS, full, 0) is None  # It may have everything.
        if is_heard:
            fetch(leader, 3, 0, now_ms=leader.rules.hand_over_ms)
        change = leader.propose(BROKERS, full, leader.rules.hand_over_ms + 1)
        assert (None if change is None else change.after.isr) == (None if is_heard else (1, 2))


def test_nothing_is_handed_over_to_a_successor_that_has_fallen_silent() -> None:
    """It has everything and its lease is good for a while; it died a moment ago all the same."""
    for is_leaving in (False, True):
        leader = make_leader(make_partition((1, 2)))
        leader.on_append(5, 0)
        fetch(leader, 2, 5)
        leader.begin_hand_over(2, is_leaving=is_leaving, now_ms=10, time_ms=1_000)
        assert leader.propose(BROKERS, ALIVE, 10) is None
        assert leader.propose(BROKERS, ALIVE, 1_010) is None
        leader.require_appendable(needs_all=False)


def test_a_successor_whose_session_leaves_the_partition_unnamed_is_heard() -> None:
    leader, contact = make_leader(make_partition((1, 2))), FollowerContact(0)
    leader.on_fetch(2, 0, log_start_offset=0, replica_epoch=1, now_ms=0, contact=contact)
    leader.begin_hand_over(2, is_leaving=True, now_ms=10)
    assert leader.propose(BROKERS, ALIVE, 10) is None
    contact.last_fetch_ms = 11
    change = leader.propose(BROKERS, ALIVE, 12)
    assert change is not None
    assert (change.after.leader, change.after.isr) == (2, (2,))


# -- reassignment --


def test_a_hand_over_to_a_successor_that_has_died_is_given_up() -> None:
    leader = make_leader()
    leader.begin_hand_over(2, is_leaving=True, now_ms=0)
    dead = make_peers(live=(1, 3), dead=(2,))
    assert leader.propose(BROKERS, dead, 0) is None
    leader.require_appendable(needs_all=False)


def test_the_leader_swaps_the_set_once_the_target_is_in_sync() -> None:
    leader = make_leader(make_partition((1, 2, 4, 3), isr=(1, 2, 3), adding=(4,), removing=(3,)))
    assert idle(leader)
    fetch(leader, 4, 0)
    grown = propose(leader)
    assert set(grown.after.isr) == {1, 2, 3, 4}
    leader.on_written(grown, 0)
    swapped = propose(leader).after
    assert (swapped.replicas, swapped.adding, swapped.removing) == ((1, 2, 4), (), ())
    assert set(swapped.isr) == {1, 2, 4}
    assert (swapped.leader, swapped.leader_epoch) == (1, 6)


def test_a_leader_that_is_to_stay_after_all_goes_on() -> None:
    moving = make_partition((2, 3, 1), removing=(1,))
    leader = make_leader(moving)
    leader.on_append(5, 0)
    assert idle(leader)
    leader.on_partition(dataclasses.replace(cancel_reassignment(moving).after, version=8), 0)
    assert idle(leader)
    leader.require_appendable(needs_all=False)
    fetch(leader, 2, 5)
    fetch(leader, 3, 5)
    assert idle(leader)


def test_a_replica_that_was_taken_out_and_put_back_joins_only_with_its_new_log() -> None:
    """The leader may learn of both changes at once, after the replica has dropped its log."""
    adding = make_partition((1, 2, 4), isr=(1, 2), adding=(4,))
    leader = make_leader(adding)
    leader.on_append(5, 0)
    for follower_id in (2, 4):
        fetch(leader, follower_id, 5)
    cancelled = cancel_reassignment(adding).after
    again = start_reassignment(
        dataclasses.replace(cancelled, version=8), (1, 2, 4), broker_ids=BROKERS.keys()
    )
    assert again is not None
    newest = dataclasses.replace(again.after, version=9)
    leader.on_partition(newest, 0)
    assert idle(leader)
    assert newest.leader_epoch > adding.leader_epoch  # What it had sent before is refused.


def test_a_leader_that_is_moved_away_hands_over_with_the_swap() -> None:
    leader = make_leader(make_partition((2, 3, 1), removing=(1,)))
    leader.on_append(5, 0)
    assert idle(leader)
    with pytest.raises(NotLeaderOrFollower):
        leader.require_appendable(needs_all=False)
    fetch(leader, 2, 5)
    fetch(leader, 3, 5)
    swapped = propose(leader).after
    assert (swapped.replicas, swapped.leader, swapped.leader_epoch) == ((2, 3), 2, 6)
    assert swapped.isr == (2, 3)


@pytest.mark.parametrize(("min_insync_replicas", "isr"), [(1, (1, 2)), (2, (1, 2)), (3, (1, 2, 3))])
def test_a_draining_follower_leaves_early_where_enough_others_are_in_sync(
    min_insync_replicas: int, isr: tuple[int, ...]
) -> None:
    leader = make_leader(min_insync_replicas=min_insync_replicas)
    draining = make_peers(live=(1, 2), draining=(3,))
    fetch(leader, 2, 0)
    fetch(leader, 3, 0)
    assert leader.propose(BROKERS, draining, 0) is None  # Nobody waits for it.
    leader.on_append(5, 0)
    fetch(leader, 2, 5)
    change = leader.propose(BROKERS, draining, 0)
    assert (leader.partition.isr if change is None else change.after.isr) == isr
    if change is None:
        fetch(leader, 3, 5)
        assert leader.high_watermark == 5
        leader.require_appendable(needs_all=True)


def test_of_two_draining_followers_one_stays_where_it_is_needed() -> None:
    leader = make_leader(min_insync_replicas=2)
    fetch(leader, 2, 0)
    fetch(leader, 3, 0)
    leader.on_append(5, 0)
    change = propose(leader, peers=make_peers(live=(1,), draining=(2, 3)))
    assert len(change.after.isr) == 2


@pytest.mark.parametrize(("min_insync_replicas", "isr"), [(1, (2,)), (2, (1, 2))])
def test_a_leader_that_drains_stays_in_sync_where_it_is_needed(
    min_insync_replicas: int, isr: tuple[int, ...]
) -> None:
    leader = make_leader(make_partition((1, 2)), min_insync_replicas=min_insync_replicas)
    leader.begin_hand_over(2, is_leaving=True, now_ms=0)
    fetch(leader, 2, 0)
    change = propose(leader)
    assert (change.after.leader, change.after.isr) == (2, isr)

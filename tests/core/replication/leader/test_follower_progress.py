"""What a fetch session's requests say of the partitions that they do not name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.replication.leader.follower_progress import FollowerContact, FollowerProgress

from tests.support.replication_cluster import LAG_MS, make_brokers, make_leader, make_peers

HOUR_MS = 3_600_000


def test_a_follower_that_asks_without_naming_an_idle_partition_stays_in_sync() -> None:
    leader, contact = make_leader(), FollowerContact(0)
    for follower_id in (2, 3):
        leader.on_fetch(
            follower_id, 0, replica_epoch=1, log_start_offset=0, now_ms=0, contact=contact
        )
    contact.last_fetch_ms = HOUR_MS
    leader.on_append(5, HOUR_MS + 100)
    assert leader.propose(make_brokers(1, 2, 3), make_peers(live=(2, 3)), HOUR_MS + 200) is None


def test_a_follower_that_stalls_on_one_partition_leaves_its_isr_though_it_asks_for_others() -> None:
    leader, contacts = make_leader(), {2: FollowerContact(0), 3: FollowerContact(0)}
    for follower_id, contact in contacts.items():
        leader.on_fetch(
            follower_id, 0, replica_epoch=1, log_start_offset=0, now_ms=0, contact=contact
        )
    leader.on_append(5, 100)
    leader.on_fetch(2, 5, replica_epoch=1, log_start_offset=0, now_ms=200, contact=contacts[2])
    for now_ms in range(300, LAG_MS + 1000, 500):
        contacts[3].last_fetch_ms = now_ms
    change = leader.propose(make_brokers(1, 2, 3), make_peers(live=(2, 3)), LAG_MS + 1000)
    assert change is not None
    assert change.after.isr == (1, 2)


def test_a_follower_that_asks_for_nothing_any_more_leaves_once_there_is_something() -> None:
    leader = make_leader()
    for follower_id in (2, 3):
        contact = FollowerContact(0)
        leader.on_fetch(
            follower_id, 0, replica_epoch=1, log_start_offset=0, now_ms=0, contact=contact
        )
        contact.last_fetch_ms = 500 if follower_id == 2 else HOUR_MS
    assert leader.propose(make_brokers(1, 2, 3), make_peers(live=(2, 3)), HOUR_MS) is None
    leader.on_append(5, HOUR_MS)
    change = leader.propose(make_brokers(1, 2, 3), make_peers(live=(2, 3)), HOUR_MS)
    assert change is not None
    assert change.after.isr == (1, 3)


def test_what_a_session_has_forgotten_is_not_vouched_for_by_its_later_requests() -> None:
    leader, contact = make_leader(), FollowerContact(0)
    leader.on_fetch(2, 0, replica_epoch=1, log_start_offset=0, now_ms=0, contact=contact)
    contact.last_fetch_ms = 700
    leader.end_contact(2, contact)
    contact.last_fetch_ms = HOUR_MS
    leader.on_append(5, HOUR_MS)
    assert leader.followers[2].last_caught_up_ms == 700


def test_a_process_that_was_stopped_gives_followers_their_time_again() -> None:
    leader, contact = make_leader(), FollowerContact(0)
    leader.on_fetch(2, 0, replica_epoch=1, log_start_offset=0, now_ms=0, contact=contact)
    contact.last_fetch_ms = 700
    leader.resume(HOUR_MS)
    leader.on_append(5, HOUR_MS + 1)
    assert leader.followers[2].last_caught_up_ms == HOUR_MS


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 3)),
            st.tuples(st.just("fetch"), st.integers(0, 3)),  # with so many records more
        ),
        max_size=40,
    )
)
def test_one_time_for_all_partitions_says_what_noting_every_partition_would(
    steps: list[tuple[str, int]],
) -> None:
    """``noted`` is told at every request, as in Kafka; ``meant`` only if it is not at the end."""
    noted, meant, contact = FollowerProgress(), FollowerProgress(), FollowerContact(0)
    end = offset = 0
    is_known = False
    for now_ms, (kind, count) in enumerate(steps):
        if kind == "append":
            for progress in (noted, meant):
                progress.note_growth(end)
            end += count
        else:
            before, offset = offset, min(offset + count, end)
            contact.last_fetch_ms = now_ms
            is_meant = is_known and offset == before == end
            for progress, own in ((noted, None), (meant, contact)):
                if progress is meant and is_meant:
                    continue
                progress.note_fetch(
                    offset,
                    leader_end_offset=end,
                    log_start_offset=0,
                    replica_epoch=1,
                    now_ms=now_ms,
                    contact=own,
                )
            is_known = True
        for lag_ms in range(len(steps)):
            assert noted.is_caught_up(end, now_ms, lag_ms) == meant.is_caught_up(
                end, now_ms, lag_ms
            )

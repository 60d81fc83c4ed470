"""Who has a fetch session, whose place it takes, and how much all of them may keep."""

from __future__ import annotations

from tidelog_core.fetch_epochs import EPOCH_MAX
from tidelog_node.handlers.fetch.fetch_sessions import (
    EVICTABLE_AFTER_MS,
    SESSION_ID_MAX,
    FetchSession,
    FetchSessions,
)
from tidelog_node.wire.fetch import FetchPartition, FetchTopic

CLIENT = -1
OLD_MS = EVICTABLE_AFTER_MS + 1


def make_sessions(
    *, slots: int = 2, partitions: int = 1000, session_partitions: int = 500
) -> FetchSessions:
    return FetchSessions(
        slots_max=slots, partitions_max=partitions, session_partitions_max=session_partitions
    )


def topics(*indexes: int) -> list[FetchTopic]:
    return [(b"t", [FetchPartition(index, -1, 0, -1, 0, 1) for index in indexes])]


def try_to_open(
    sessions: FetchSessions, size: int, *, now_ms: float = 0, replica_id: int = CLIENT
) -> FetchSession | None:
    session = sessions.open(
        size,
        replica_id=replica_id,
        replica_epoch=-1,
        is_follower=replica_id >= 0,
        uses_ids=False,
        contact=None,
        now_ms=now_ms,
    )
    if session is not None:
        session.add(topics(*range(size)))
        sessions.touch(session, now_ms)
    return session


def opened(
    sessions: FetchSessions, size: int, *, now_ms: float = 0, replica_id: int = CLIENT
) -> FetchSession:
    session = try_to_open(sessions, size, now_ms=now_ms, replica_id=replica_id)
    assert session is not None
    return session


def test_ids_are_positive_and_differ() -> None:
    sessions = make_sessions(slots=200)
    ids = {opened(sessions, 1).session_id for _ in range(200)}
    assert len(ids) == 200
    assert all(0 < session_id <= SESSION_ID_MAX for session_id in ids)


def test_epochs_go_on_with_1_after_the_greatest() -> None:
    session = opened(make_sessions(), 1)
    assert session.next_epoch == 1
    session.next_epoch = EPOCH_MAX
    session.advance()
    assert session.next_epoch == 1


def test_without_slots_nobody_has_a_session() -> None:
    assert try_to_open(make_sessions(slots=0), 1) is None
    assert try_to_open(make_sessions(slots=0), 1, replica_id=2) is None


def test_a_followers_session_has_all_that_it_follows() -> None:
    """It comes into the session in parts, and no fetch could name it all instead."""
    sessions = make_sessions(partitions=1000, session_partitions=60)
    session = opened(sessions, 50, replica_id=2)
    assert sessions.may_grow(session, topics(*range(50, 900)), 0)
    assert not sessions.may_grow(session, topics(*range(50, 1100)), 0)
    assert try_to_open(sessions, 700, replica_id=3) is not None


def test_a_new_session_takes_no_other_ones_place() -> None:
    sessions = make_sessions()
    kept = [opened(sessions, 1), opened(sessions, 1)]
    assert try_to_open(sessions, 400, now_ms=EVICTABLE_AFTER_MS) is None
    assert not any(session.is_ended for session in kept)


def test_one_that_is_unused_for_two_minutes_makes_room_for_any() -> None:
    sessions = make_sessions()
    stale, used = opened(sessions, 400), opened(sessions, 400)
    sessions.touch(used, 1000)
    opened(sessions, 1, now_ms=OLD_MS)
    assert stale.is_ended
    assert not used.is_ended
    assert sessions.partition_count == 401


def test_the_smallest_old_one_makes_room_for_one_with_more_partitions() -> None:
    sessions = make_sessions(slots=3)
    small, smaller, large = opened(sessions, 3), opened(sessions, 2), opened(sessions, 100)
    for session in (small, smaller, large):
        sessions.touch(session, OLD_MS)
    assert try_to_open(sessions, 2, now_ms=OLD_MS) is None  # as many are not more
    opened(sessions, 10, now_ms=OLD_MS)
    assert (small.is_ended, smaller.is_ended, large.is_ended) == (False, True, False)


def test_a_followers_session_takes_any_clients_place_and_no_client_takes_its() -> None:
    sessions = make_sessions()
    client = opened(sessions, 400)
    opened(sessions, 500)
    follower = opened(sessions, 1, replica_id=2)
    assert client.is_ended
    sessions.touch(follower, OLD_MS)
    last_one = opened(sessions, 500, now_ms=OLD_MS)
    assert not follower.is_ended
    assert not last_one.is_ended


def test_a_follower_has_one_session() -> None:
    sessions = make_sessions(slots=10)
    first, other = opened(sessions, 5, replica_id=2), opened(sessions, 5, replica_id=3)
    second = opened(sessions, 5, replica_id=2)
    assert first.is_ended
    assert not other.is_ended
    assert sessions.find(second.session_id) is second
    assert (len(sessions), sessions.partition_count) == (2, 10)


def test_partitions_of_all_sessions_are_bounded() -> None:
    sessions = make_sessions(slots=100, partitions=100)
    large = opened(sessions, 60)
    assert try_to_open(sessions, 50) is None
    opened(sessions, 40)
    assert try_to_open(sessions, 1) is None
    assert sessions.partition_count == 100
    sessions.close(large)
    assert sessions.partition_count == 40


def test_where_partitions_are_scarce_the_largest_old_session_makes_room_for_a_smaller() -> None:
    sessions = make_sessions(slots=100, partitions=100)
    small, large = opened(sessions, 30), opened(sessions, 70)
    for session in (small, large):
        sessions.touch(session, OLD_MS)
    assert try_to_open(sessions, 80, now_ms=OLD_MS) is None
    opened(sessions, 20, now_ms=OLD_MS)
    assert (small.is_ended, large.is_ended) == (False, True)


def test_followers_get_the_partitions_of_clients() -> None:
    sessions = make_sessions(slots=100, partitions=100)
    clients = [opened(sessions, size) for size in (10, 60, 30)]
    opened(sessions, 80, replica_id=2)
    assert [client.is_ended for client in clients] == [False, True, True]
    assert try_to_open(sessions, 30, replica_id=3) is None  # A follower's is never taken.


def test_a_session_grows_within_the_bounds_only() -> None:
    sessions = make_sessions(partitions=100, session_partitions=60)
    session = opened(sessions, 50)
    assert sessions.may_grow(session, topics(*range(50)), 0)  # It has them.
    assert sessions.may_grow(session, topics(*range(45, 60)), 0)
    assert not sessions.may_grow(session, topics(*range(45, 61)), 0)
    opened(sessions, 45)
    assert not sessions.may_grow(session, topics(*range(50, 56)), 0)
    assert sessions.may_grow(session, topics(*range(50, 55)), 0)
    assert not session.is_ended


def test_what_is_forgotten_is_counted_no_more() -> None:
    sessions = make_sessions()
    session = opened(sessions, 10)
    session.forget([(b"t", [0, 1, 2, 77]), (b"other", [0])])
    sessions.touch(session, 0)
    assert sessions.partition_count == 7
    assert len(session.dirty) == 7
    sessions.close(session)
    sessions.close(session)
    assert sessions.partition_count == 0

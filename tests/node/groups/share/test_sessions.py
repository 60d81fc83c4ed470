"""Share sessions: epochs in order, limits, and whose turn it is."""

from __future__ import annotations

import pytest
from tidelog_core.errors import (
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)
from tidelog_node.groups.share.sessions import ShareSession, ShareSessions

A, B, C = ((bytes(16), index) for index in range(3))


def opened(sessions: ShareSessions, member: str = "a", connection: str = "c") -> ShareSession:
    return sessions.open("g", member, connection, sessions_max=2)


def test_requests_of_a_session_follow_each_other() -> None:
    sessions = ShareSessions()
    with pytest.raises(ShareSessionNotFound):
        sessions.follow("g", "a", 1)
    session = opened(sessions)
    for wrong in (0, 2):
        with pytest.raises(InvalidShareSessionEpoch):
            sessions.follow("g", "a", wrong)
    assert sessions.follow("g", "a", 1) is session
    with pytest.raises(InvalidShareSessionEpoch):
        sessions.follow("g", "a", 1)
    assert sessions.follow("g", "a", 2) is session
    assert sessions.follow("g", "a", -1) is session  # the last, whatever came before
    with pytest.raises(ShareSessionNotFound):
        sessions.follow("other", "a", 3)


def test_the_epoch_after_the_greatest_is_1() -> None:
    sessions = ShareSessions()
    session = opened(sessions)
    session.next_epoch = 2**31 - 1
    sessions.follow("g", "a", 2**31 - 1)
    assert sessions.follow("g", "a", 1) is session


def test_no_more_sessions_are_opened_than_may_be() -> None:
    sessions = ShareSessions()
    first = opened(sessions, "a")
    opened(sessions, "b")
    with pytest.raises(ShareSessionLimitReached):
        opened(sessions, "c")
    sessions.close(first)
    sessions.close(first)
    opened(sessions, "c")
    assert len(sessions) == 2


def test_the_sessions_of_a_connection_are_found() -> None:
    sessions = ShareSessions()
    first, _ = opened(sessions, "a", "one"), opened(sessions, "b", "two")
    assert sessions.over("one") == [first]


def test_each_partition_has_its_turn_to_be_the_first() -> None:
    sessions = ShareSessions()
    session = opened(sessions)
    session.change([A, B, C, A], [])
    firsts = []
    for epoch in range(1, 7):
        sessions.follow("g", "a", epoch)
        order = session.rotated()
        assert sorted(order) == [A, B, C]
        firsts.append(order[0])
    assert sorted(firsts) == [A, A, B, B, C, C]
    session.change([A], [A, B, C])
    assert session.rotated() == []

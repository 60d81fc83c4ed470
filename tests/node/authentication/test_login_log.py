"""Refused clients are in the log, and do not fill it."""

from __future__ import annotations

import pytest
from tidelog_node.authentication.login_log import HOSTS_MAX, LoginLog
from tidelog_node.requests.session import Session


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(log: pytest.LogCaptureFixture) -> list[tuple[str, str, int]]:
    return [
        (record.client, record.reason, getattr(record, "unlogged_count", 0))
        for record in log.records
    ]


def test_a_client_has_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    logins = LoginLog(now=clock)
    for port in range(5):
        logins.refused(Session("10.0.0.1", port, "TLS"), "no certificate")
    logins.refused(Session("10.0.0.2", 9, "TLS"), "wrong version")
    logins.refused(Session("10.0.0.1", 9, "OTHER"), "no certificate")
    clock.now = 60.0
    logins.refused(Session("10.0.0.1", 10, "TLS"), "still none")
    assert lines(caplog) == [
        ("10.0.0.1:0", "no certificate", 0),
        ("10.0.0.2:9", "wrong version", 4),
        ("10.0.0.1:9", "no certificate", 0),
        ("10.0.0.1:10", "still none", 0),
    ]


def test_many_hosts_take_bounded_memory_and_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    logins = LoginLog(now=clock)
    for number in range(HOSTS_MAX + 7):
        logins.refused(Session(f"host-{number}", 1, "TLS"), "no certificate")
    assert len(caplog.records) == HOSTS_MAX
    clock.now = 61.0
    logins.refused(Session("host-1006", 1, "TLS"), "no certificate", hint="get one")
    assert lines(caplog)[-1] == ("host-1006:1", "no certificate", 7)
    assert caplog.records[-1].hint == "get one"  # type: ignore[attr-defined]

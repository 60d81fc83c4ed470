from __future__ import annotations

import time

from tidelog_console.sessions import IDLE_SECONDS, Sessions, Visitor
from tidelog_console.settings import ConsoleSettings


def sessions_of(protocol: str) -> Sessions:
    settings = ConsoleSettings(bootstrap_servers="localhost:1", security_protocol=protocol)
    return Sessions(settings)


def with_visitor(sessions: Sessions, *, seconds: float) -> tuple[str, Visitor]:
    """Return the cookie of a session that ends in so many seconds, and its visitor."""
    visitor = sessions._visitor("alice", None)
    visitor.ends_at = time.time() + seconds
    return sessions._keep(visitor), visitor


async def test_an_open_console_has_one_visitor() -> None:
    sessions = sessions_of("PLAINTEXT")
    visitor = sessions.find(None)
    assert visitor is not None
    assert visitor.name is None
    assert sessions.find("anything") is visitor
    await sessions.close()


async def test_a_session_ends_at_its_time() -> None:
    sessions = sessions_of("SASL_PLAINTEXT")
    cookie, visitor = with_visitor(sessions, seconds=60)
    assert sessions.find(cookie) is visitor
    late, _ = with_visitor(sessions, seconds=-1)
    assert sessions.find(late) is None
    await sessions.close()


async def test_a_session_ends_without_requests() -> None:
    sessions = sessions_of("SASL_PLAINTEXT")
    cookie, visitor = with_visitor(sessions, seconds=60)
    visitor.used_at -= IDLE_SECONDS + 1
    assert sessions.find(cookie) is None
    await sessions.close()


async def test_visitors_share_one_context_of_tls() -> None:
    """Making one reads the machine's authorities: tens of milliseconds for everybody."""
    sessions = sessions_of("SASL_SSL")
    visitors = [sessions._visitor(name, None) for name in ("alice", "bob")]
    contexts = [one.factory._settings["ssl"] for one in visitors]
    assert contexts[0] is contexts[1]
    assert contexts[0] is not None
    for visitor in visitors:
        await visitor.close()
    await sessions.close()


async def test_another_consoles_cookie_is_none() -> None:
    one, other = sessions_of("SASL_PLAINTEXT"), sessions_of("SASL_PLAINTEXT")
    cookie, _ = with_visitor(one, seconds=60)
    assert other.find(cookie) is None
    await one.close()
    await other.close()

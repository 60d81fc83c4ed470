"""Sessions that end unless their client authenticates again (KIP-368)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tidelog_core.errors import ErrorCode
from tidelog_core.model import Principal
from tidelog_core.security.scram_client import ScramClient
from tidelog_core.security.scram_credentials import ScramMechanism
from tidelog_node.authentication.authentication import REAUTHENTICATION_SECONDS_MIN

from tests.node.authentication.sasl_server import (
    AUTHENTICATE,
    HANDSHAKE,
    PASSWORD,
    SCRAM,
    USER,
    Client,
    sasl_server,
    users_with,
)

LIFETIME_MS = 60_000
FAILED = ErrorCode.sasl_authentication_failed
ILLEGAL = ErrorCode.illegal_sasl_state


@dataclass
class Clock:
    """Seconds that a test sets."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("version", "told_ms"), [(0, 0), (1, LIFETIME_MS), (2, LIFETIME_MS)])
async def test_a_client_is_told_how_long_its_session_lasts(version: int, told_ms: int) -> None:
    async with sasl_server(session_ms_max=LIFETIME_MS) as served:
        client = await served.client()
        answer = await client.log_in(version=version)
        lifetime = getattr(answer, "session_lifetime", None)
        assert (0 if lifetime is None else lifetime.total_seconds() * 1000) == told_ms


async def test_only_the_last_answer_of_an_exchange_tells_it() -> None:
    async with sasl_server(session_ms_max=LIFETIME_MS) as served:
        client = await served.client()
        await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        scram = ScramClient(SCRAM, USER, PASSWORD, nonce="n")
        first = await client.call(AUTHENTICATE, 2, auth_bytes=scram.first_message())
        assert first.session_lifetime.total_seconds() == 0


@pytest.mark.parametrize("is_raw", [False, True])
async def test_an_expired_session_ends_with_the_next_request(is_raw: bool) -> None:
    clock = Clock()
    async with sasl_server(session_ms_max=LIFETIME_MS, now=clock) as served:
        client = await served.client()
        if is_raw:
            await client.call(HANDSHAKE, 0, mechanism="PLAIN")
            client.send_frame(f"\0{USER}\0{PASSWORD}".encode())
            assert await client.receive() == b""
        else:
            await client.log_in()
        clock.now += LIFETIME_MS / 1000 - 0.001
        assert await client.hot()
        clock.now += 0.001
        assert not await client.hot()
        assert len(served.hot_sessions) == 1


async def test_a_session_is_renewed_before_and_after_it_has_expired() -> None:
    clock = Clock()
    async with sasl_server(session_ms_max=LIFETIME_MS, now=clock) as served:
        client = await served.client()
        await client.log_in()
        for seconds in (50, 50, 70, 1000) * 3:  # more renewals than a login may have requests
            clock.now += seconds
            answer = await client.log_in()
            assert answer.error_code == ErrorCode.none
            assert answer.session_lifetime.total_seconds() * 1000 == LIFETIME_MS
            assert await client.hot()
        assert {session.principal for session in served.hot_sessions} == {Principal("User", USER)}
        assert len(set(map(id, served.hot_sessions))) == 1, "one connection"


async def test_nothing_else_is_served_while_a_session_is_renewed() -> None:
    clock = Clock()
    async with sasl_server(session_ms_max=LIFETIME_MS, now=clock) as served:
        client = await served.client()
        await client.log_in()
        clock.now += 10
        handshake = await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        assert handshake.error_code == ErrorCode.none
        assert not await client.hot()
        assert served.hot_sessions == []


async def test_a_renewal_proves_the_same_user_by_the_same_mechanism() -> None:
    clock = Clock()
    async with sasl_server(
        users_with(PASSWORD, USER, "bob"), session_ms_max=LIFETIME_MS, now=clock
    ) as served:
        client = await served.client()
        await client.log_in()
        clock.now += 10
        answer = await client.log_in(user="bob")
        assert answer.error_code == FAILED
        assert answer.error_message == (
            "Cannot change principals during re-authentication from User.alice: User.bob"
        )
        assert await client.is_closed()
        for mechanism in (ScramMechanism.SCRAM_SHA_512, "PLAIN"):
            client = await served.client()
            await client.log_in()
            clock.now += 10
            handshake = await client.call(HANDSHAKE, 1, mechanism=str(mechanism))
            assert handshake.error_code == ErrorCode.none, "as in Kafka, which refuses the token"
            assert await client.call(AUTHENTICATE, 2, auth_bytes=b"token") is None
        client = await served.client()
        await client.log_in()
        clock.now += 10
        answer = await client.call(HANDSHAKE, 1, mechanism="GSSAPI")
        assert answer.error_code == ErrorCode.unsupported_sasl_mechanism
        assert await client.is_closed()


async def test_a_wrong_password_ends_a_live_session() -> None:
    clock = Clock()
    async with sasl_server(session_ms_max=LIFETIME_MS, now=clock) as served:
        client = await served.client()
        await client.log_in()
        clock.now += 10
        assert (await client.log_in("wrong")).error_code == FAILED
        assert await client.is_closed()


async def test_a_removed_user_cannot_renew_a_session() -> None:
    clock = Clock()
    async with sasl_server(session_ms_max=LIFETIME_MS, now=clock) as served:
        client = await served.client()
        await client.log_in()
        served.users.users = {}
        assert await client.hot()
        clock.now += 10
        assert (await client.log_in()).error_code == FAILED
        assert await client.is_closed()


async def test_a_session_is_renewed_at_most_once_a_second() -> None:
    clock = Clock()
    async with sasl_server(session_ms_max=LIFETIME_MS, now=clock) as served:
        client = await served.client()
        await client.log_in()
        assert (await client.log_in()).error_code == ErrorCode.none, "the first at any time"
        clock.now += REAUTHENTICATION_SECONDS_MIN - 0.001
        refused = await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        assert (refused.error_code, refused.mechanisms) == (ILLEGAL, ())
        assert (await client.call(AUTHENTICATE, 2, auth_bytes=b"")).error_code == ILLEGAL
        assert await client.hot(), "the connection stays"
        clock.now += 0.001
        assert (await client.log_in()).error_code == ErrorCode.none


async def test_raw_tokens_cannot_renew_a_session() -> None:
    async with sasl_server(session_ms_max=LIFETIME_MS) as served:
        client = await served.client()
        await client.log_in()
        assert (await client.call(HANDSHAKE, 0, mechanism=str(SCRAM))).error_code == ILLEGAL
        assert await client.hot()


async def test_tokens_of_a_renewal_are_few() -> None:
    clock = Clock()
    async with sasl_server(session_ms_max=LIFETIME_MS, now=clock) as served:
        client: Client = await served.client()
        await client.log_in()
        clock.now += 10
        await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        assert (await client.call(AUTHENTICATE, 2, auth_bytes=b"nonsense")).error_code == FAILED
        assert await client.call(AUTHENTICATE, 2, auth_bytes=b"nonsense") is None

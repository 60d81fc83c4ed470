"""Logins by delegation tokens, and what passes itself off as one."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.security.delegation_tokens import DelegationTokens
from tidelog_core.metadata.security.scram_users import (
    ScramDecoySecret,
    ScramUsers,
    UserScramCredential,
)
from tidelog_core.model import Principal
from tidelog_core.security.delegation_tokens import TokenSecret
from tidelog_core.security.scram_client import ScramClient
from tidelog_core.security.scram_credentials import ScramMechanism
from tidelog_core.security.scram_messages import parse_server_first
from tidelog_node.authentication.authentication import DELEGATION_TOKEN_HINT
from tidelog_node.authentication.exchanges import TOKENS_ARE_DISABLED
from tidelog_node.authentication.login_credentials import ImageCredentials

from tests.node.authentication.sasl_server import (
    AUTHENTICATE,
    HANDSHAKE,
    SCRAM,
    Client,
    SaslServer,
    sasl_server,
)
from tests.support.delegation_tokens import HOUR_MS, NOW_MS, OTHER_SECRET, SECRET, Made, made
from tests.support.scram_users import stored

FAILED = ErrorCode.sasl_authentication_failed
PASSWORD = "the password of alice"
ALICE = UserScramCredential(user="alice", mechanism=SCRAM, credential=stored(PASSWORD, SCRAM))


@dataclass
class World:
    """What a node knows, and its two clocks."""

    tokens: DelegationTokens = field(default_factory=DelegationTokens)
    secret: TokenSecret | None = SECRET
    users: ScramUsers = field(
        default_factory=lambda: ScramUsers(
            {"alice/SCRAM-SHA-256": ALICE}, ScramDecoySecret(secret=bytes(32))
        )
    )
    now_ms: int = NOW_MS

    def put(self, one: Made) -> Made:
        """Have the node know the token; return it."""
        self.tokens = self.tokens.with_changes({one.token.token_id: one.token})
        return one

    def credentials(self) -> ImageCredentials:
        """Return what clients can log in with now."""
        return ImageCredentials(self.users, self.tokens, self.secret, lambda: self.now_ms)

    def seconds(self) -> float:
        """Return the time."""
        return self.now_ms / 1000

    @asynccontextmanager
    async def serve(self, **settings: Any) -> AsyncIterator[SaslServer]:
        """Serve clients."""
        settings = {"now": self.seconds, "clock": self.seconds, **settings}
        async with sasl_server(credentials=self.credentials, **settings) as served:
            yield served


async def log_in(client: Client, token: Made, mechanism: ScramMechanism = SCRAM) -> Any:
    return await client.log_in(
        token.password, user=token.token.token_id, mechanism=mechanism, is_token=True
    )


@pytest.mark.parametrize("mechanism", ScramMechanism)
async def test_a_token_makes_its_holder_the_owner(mechanism: ScramMechanism) -> None:
    world = World()
    token = world.put(made(groups=("staff",)))
    async with world.serve() as served:
        client = await served.client()
        answer = await log_in(client, token, mechanism)
        assert answer.session_lifetime.total_seconds() * 1000 == HOUR_MS
        assert await client.hot()
        (session,) = served.hot_sessions
        assert (session.principal, session.groups) == (Principal("User", "alice"), ("staff",))
        assert session.is_by_token
        by_password = await served.client()
        await by_password.log_in(PASSWORD)
        assert await by_password.hot()
        assert not served.hot_sessions[1].is_by_token


async def test_a_session_ends_with_its_token_and_not_those_of_passwords() -> None:
    world = World()
    token = world.put(made())
    async with world.serve() as served:
        client, by_password = await served.client(), await served.client()
        await log_in(client, token)
        assert (await by_password.log_in(PASSWORD)).session_lifetime.total_seconds() == 0
        world.now_ms += HOUR_MS - 1
        assert await client.hot()
        world.now_ms += 1
        assert not await client.hot()
        assert await by_password.hot()
        refused = await by_password.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        assert refused.error_code == ErrorCode.illegal_sasl_state


async def test_a_renewed_token_renews_the_session() -> None:
    world = World()
    token = world.put(made())
    async with world.serve() as served:
        client = await served.client()
        await log_in(client, token)
        world.now_ms += HOUR_MS // 2
        world.put(made(expires_ms=NOW_MS + 2 * HOUR_MS))
        answer = await log_in(client, token)
        assert answer.session_lifetime.total_seconds() * 1000 == 1.5 * HOUR_MS
        world.now_ms += HOUR_MS
        assert await client.hot()
        other = world.put(made("other-id", owner="bob"))
        answer = await log_in(client, other)
        assert answer.error_code == FAILED, "a session keeps its user"
        assert await client.is_closed()


@pytest.mark.parametrize(("session_ms_max", "lasts_ms"), [(1000, 1000), (10 * HOUR_MS, HOUR_MS)])
async def test_a_session_ends_after_its_own_time_too(session_ms_max: int, lasts_ms: int) -> None:
    world = World()
    token = world.put(made())
    async with world.serve(session_ms_max=session_ms_max) as served:
        answer = await log_in(await served.client(), token)
        assert answer.session_lifetime.total_seconds() * 1000 == lasts_ms


async def refusal(served: SaslServer, name: str, password: str, *, is_token: bool) -> Any:
    """Return the text of the refusal of such a login, and its reason in the log."""
    client = await served.client()
    answer = await client.log_in(password, user=name, is_token=is_token)
    assert answer.error_code == FAILED
    assert await client.is_closed()
    assert served.hot_sessions == []
    reason, hint = served.logins.refusals[-1]
    if is_token:
        assert hint == DELEGATION_TOKEN_HINT
    return answer.error_message, reason.removeprefix("authentication failed, SCRAM-SHA-256: ")


GONE = "no such delegation token, or it has expired"


async def test_what_is_no_token_is_refused_alike() -> None:
    world = World()
    own, other = world.put(made()), world.put(made("other-id", owner="bob"))
    expired = world.put(made("expired", expires_ms=NOW_MS - 1))
    forged = made("an-id", secret=OTHER_SECRET)
    world.put(made("of-another-key", secret=OTHER_SECRET))
    of_another_key = made("of-another-key", secret=OTHER_SECRET)
    attempts = {
        "a forged HMAC": (own.token.token_id, forged.password, True, "wrong HMAC"),
        "the HMAC of another token": (own.token.token_id, other.password, True, "wrong HMAC"),
        "expired": (expired.token.token_id, expired.password, True, GONE),
        "never made": ("nothing", made("nothing").password, True, GONE),
        "of another key": ("of-another-key", of_another_key.password, True, GONE),
        "a user as a token": ("alice", PASSWORD, True, GONE),
        "a token as a user": (own.token.token_id, own.password, False, "no such credential"),
    }
    async with world.serve() as served:
        texts = set()
        for label, (name, password, is_token, expected) in attempts.items():
            text, reason = await refusal(served, name, password, is_token=is_token)
            assert reason == expected, label
            texts.add(text)
        assert len(texts) == 1, "the client is not told which it was"
        plain = await served.client()
        answer = await plain.log_in_plain(own.password, user=own.token.token_id)
        assert answer.error_code == FAILED


async def test_a_removed_token_lets_nobody_in_and_ends_its_sessions() -> None:
    """In Kafka they stay until the token would have expired."""
    world = World()
    token = world.put(made())
    async with world.serve() as served:
        client = await served.client()
        await log_in(client, token)
        world.put(made("other-id"))
        assert await client.hot(), "another token changes nothing"
        world.tokens = DelegationTokens()
        assert not await client.hot()
        served.hot_sessions.clear()
        _, reason = await refusal(served, "an-id", token.password, is_token=True)
        assert reason == GONE


async def test_a_session_ends_sooner_if_its_token_does_and_never_later() -> None:
    world = World()
    token = world.put(made())
    async with world.serve() as served:
        client = await served.client()
        await log_in(client, token)
        world.put(made(expires_ms=NOW_MS + 2 * HOUR_MS))
        assert await client.hot()
        world.put(made(expires_ms=NOW_MS + 1000))
        world.now_ms += 999
        assert await client.hot()
        world.now_ms += 1
        assert not await client.hot()
        late = await served.client()
        world.put(made(expires_ms=NOW_MS + HOUR_MS))
        await log_in(late, token)
        world.put(made(expires_ms=NOW_MS + 2 * HOUR_MS))
        world.now_ms = NOW_MS + HOUR_MS
        assert not await late.hot(), "it was told when its session ends"


async def test_a_client_of_a_removed_token_can_only_log_in_again() -> None:
    world = World()
    token = world.put(made())
    async with world.serve() as served:
        client = await served.client()
        await log_in(client, token)
        world.tokens = DelegationTokens()
        world.put(made("new-id"))
        answer = await log_in(client, made("new-id"))
        assert answer.error_code == ErrorCode.none, "by another token of the same owner"
        assert await client.hot()


async def test_without_a_secret_key_no_token_is_valid() -> None:
    world = World()
    token = world.put(made())
    world.secret = None
    async with world.serve() as served:
        _, reason = await refusal(served, "an-id", token.password, is_token=True)
        assert reason == TOKENS_ARE_DISABLED


async def test_a_token_that_expires_during_the_login_lets_nobody_in() -> None:
    world = World()
    token = world.put(made())
    async with world.serve() as served:
        client = await served.client()
        await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        scram = ScramClient(SCRAM, "an-id", token.password, nonce="n", is_token=True)
        first = await client.call(AUTHENTICATE, 2, auth_bytes=scram.first_message())
        world.now_ms += HOUR_MS + 1
        final = scram.final_message(bytes(first.auth_bytes))
        answer = await client.call(AUTHENTICATE, 2, auth_bytes=final)
        assert answer.error_code == FAILED
        assert await client.is_closed()


async def test_the_extension_cannot_be_added_to_a_login_by_password_or_taken_away() -> None:
    """It is in what both sides sign."""
    world = World()
    token = world.put(made())
    async with world.serve() as served:
        for is_token, other in (
            (True, b"n,,n=an-id,r=n"),
            (False, b"n,,n=alice,r=n,tokenauth=true"),
        ):
            client = await served.client()
            await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
            name, password = ("an-id", token.password) if is_token else ("alice", PASSWORD)
            scram = ScramClient(SCRAM, name, password, nonce="n", is_token=is_token)
            assert scram.first_message() != other
            first = await client.call(AUTHENTICATE, 2, auth_bytes=other)
            final = scram.final_message(bytes(first.auth_bytes))
            assert (await client.call(AUTHENTICATE, 2, auth_bytes=final)).error_code == FAILED


async def challenge(served: SaslServer, name: str) -> Any:
    client = await served.client()
    await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
    scram = ScramClient(SCRAM, name, "p", nonce="n", is_token=True)
    answer = await client.call(AUTHENTICATE, 2, auth_bytes=scram.first_message())
    return parse_server_first(bytes(answer.auth_bytes))


async def test_the_challenge_does_not_tell_which_tokens_there_are() -> None:
    """Although the users' credentials have another form."""
    world = World()
    world.put(made())
    async with world.serve() as served:
        there, absent = await challenge(served, "an-id"), await challenge(served, "nothing")
        again = await challenge(served, "nothing")
        assert (len(absent.salt), absent.iterations) == (len(there.salt), there.iterations)
        assert absent.salt == again.salt != there.salt
        assert len(there.salt) != len(ALICE.credential.salt)


async def test_no_log_has_a_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = World()
    token = world.put(made())
    async with world.serve() as served:
        await log_in(await served.client(), token)
        for name, password in (("an-id", token.password[:-8]), (token.password, token.password)):
            client = await served.client()
            await client.log_in(password, user=name.rstrip("="), is_token=True)
        said = " ".join(record.getMessage() + repr(record.__dict__) for record in caplog.records)
        said += repr(served.logins.refusals) + repr(world.tokens) + repr(world.credentials())
        for secret in (token.password[:40], token.hmac.hex(), repr(token.hmac)[2:40], "many char"):
            assert secret not in said

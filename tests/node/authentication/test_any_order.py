"""Whatever clients send in whatever order: only who has proved to be a user is served."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest
from tidelog_core.security.scram_client import ScramClient

from tests.node.authentication.sasl_server import (
    API_VERSIONS,
    AUTHENTICATE,
    HANDSHAKE,
    HOT,
    PASSWORD,
    SCRAM,
    USER,
    Client,
    SaslServer,
    sasl_server,
    users_with,
)

CLIENTS = 60
STEPS = 12
SEED = 20_261_124


class Wanderer:
    """Sends one request after the other, and knows what it has proved."""

    def __init__(self, served: SaslServer, client: Client, rng: random.Random) -> None:
        self.served = served
        self.client = client
        self.rng = rng
        self.is_open = True
        self.proved: str | None = None  # the user of the newest complete and right exchange
        self.mechanism: str | None = None  # of the handshake that was accepted last
        self.has_headers = True
        self.exchanges: list[tuple[str, ScramClient | None]] = []
        self.challenge: bytes | None = None
        self.steps: list[str] = []

    async def step(self) -> None:
        """Take the step that comes next, or any other."""
        action: Callable[[], Awaitable[None]]
        if self.rng.random() < 0.7:
            action = self.token if self.mechanism else self.ask if self.proved else self.shake_hands
        else:
            action = self.rng.choice(
                [self.versions, self.shake_hands, self.token, self.ask, self.other]
            )
        self.steps.append(action.__name__)
        await action()

    async def versions(self) -> None:
        version = self.rng.choice([0, 2, 99])
        self.client.send_frame(self.client.header(API_VERSIONS, version, is_flexible=version > 2))
        self.is_open = await self.client.receive() is not None

    async def shake_hands(self) -> None:
        mechanism = self.rng.choice([*["PLAIN", str(SCRAM)] * 4, "GSSAPI"])
        version = self.rng.randrange(2)
        answer = await self.client.call(HANDSHAKE, version, mechanism=mechanism)
        self.is_open = answer is not None
        if answer is not None and not answer.error_code:
            self.mechanism, self.has_headers = mechanism, version == 1
            self.challenge = None

    async def token(self) -> None:
        """Send a token that is right, or that of somebody else, or none at all."""
        user = self.rng.choice([USER, USER, USER, "bob"])
        password = self.rng.choice([PASSWORD] * 4 + ["wrong"])
        is_last = False
        if self.mechanism == "PLAIN":
            token, is_last = f"\0{user}\0{password}".encode(), True
        elif self.challenge is None:
            self.scram = ScramClient(SCRAM, user, password, nonce="n")
            token = self.scram.first_message()
            self.claim = user, password
        else:
            token, is_last = self.scram.final_message(self.challenge), True
            user, password = self.claim
        if self.rng.random() < 0.1:
            token, is_last = self.rng.randbytes(20), False
        answer = await self.send_token(token)
        self.is_open = answer is not None
        if answer is None:
            self.mechanism = None
            return
        if is_last and self.mechanism and password == PASSWORD:
            self.proved, self.mechanism = user, None
        self.challenge = answer if answer.startswith(b"r=") else None

    async def send_token(self, token: bytes) -> bytes | None:
        """Return the answering token, ``None`` for the end or a refusal."""
        if not self.has_headers and self.proved is None:
            self.client.send_frame(token)
            return await self.client.receive()
        answer = await self.client.call(AUTHENTICATE, 2, auth_bytes=token)
        return None if answer is None or answer.error_code else bytes(answer.auth_bytes)

    async def ask(self) -> None:
        """Ask for what only users get; the server notes for whom it answers."""
        is_answered = await self.client.hot()
        assert not is_answered or self.proved is not None, self.steps
        if is_answered:
            principal = str(self.served.hot_sessions[-1].principal)
            assert principal == f"User:{self.proved}", self.steps
        self.is_open = is_answered

    async def other(self) -> None:
        self.client.send_frame(self.client.header(self.rng.choice([1, 3, 19, 50]), HOT))
        self.is_open = await self.client.receive() is not None


@pytest.mark.parametrize("session_ms_max", [0, 3_600_000])
async def test_only_users_are_served_whatever_the_order_of_requests(session_ms_max: int) -> None:
    rng = random.Random(SEED + session_ms_max)
    users = users_with(PASSWORD, USER, "bob")
    served_count = 0
    async with sasl_server(users, session_ms_max=session_ms_max) as served:
        for _ in range(CLIENTS):
            wanderer = Wanderer(served, await served.client(), rng)
            for _ in range(STEPS):
                await wanderer.step()
                if not wanderer.is_open:
                    break
            wanderer.client.close()
            served_count += wanderer.proved is not None
        assert served_count > CLIENTS // 5, "some must get through, or this shows nothing"
        assert served.hot_sessions, f"seed {SEED}"

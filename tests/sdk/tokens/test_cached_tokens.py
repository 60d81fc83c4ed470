"""One fetch for all who wait, and none while the last token is good."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass, field

import pytest
from tidelog.errors import AuthenticationFailed, TokenNotFetched
from tidelog.tokens.bearer_token import BearerToken, claimed_expiry
from tidelog.tokens.cached_tokens import CachedTokens, shared_tokens
from tidelog.tokens.client_credentials import ClientCredentials

from tests.support.issuer import unsigned

LIFE_S = 100.0


@dataclass(eq=False)
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False)
class Numbered:
    """Its tokens are numbers; it fails with ``failure`` if that is set, and waits for ``gate``."""

    clock: Clock
    life_s: float | None = LIFE_S
    failure: Exception | None = None
    count: int = 0
    gate: threading.Event = field(default_factory=threading.Event)

    def fetch(self) -> BearerToken:
        self.gate.wait(60)
        self.count += 1
        if self.failure is not None:
            raise self.failure
        life_s = self.life_s
        return BearerToken(str(self.count), None if life_s is None else self.clock.now + life_s)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(clock: Clock) -> Numbered:
    source = Numbered(clock)
    source.gate.set()
    return source


@pytest.fixture
def tokens(source: Numbered, clock: Clock) -> CachedTokens:
    return CachedTokens(source, now=clock)


async def test_a_token_is_kept_until_a_fifth_of_its_life_is_left(
    tokens: CachedTokens, clock: Clock
) -> None:
    seen = []
    for at in (0, 1, 79, 80, 81, 159, 161):
        clock.now = 1_000.0 + at
        seen.append(await tokens.token())
    assert seen == ["1", "1", "1", "2", "2", "2", "3"]


async def test_a_token_without_expiry_is_fetched_for_each_login(
    tokens: CachedTokens, source: Numbered
) -> None:
    source.life_s = None
    assert [await tokens.token() for _ in range(3)] == ["1", "2", "3"]


async def test_many_logins_at_once_fetch_one_token_and_the_loop_goes_on(
    tokens: CachedTokens, source: Numbered
) -> None:
    source.gate.clear()
    waiting = [asyncio.create_task(tokens.token()) for _ in range(50)]
    for _ in range(100):
        await asyncio.sleep(0)  # The loop is not stopped while the source blocks.
    waiting[0].cancel()  # One who gives up takes nobody along.
    source.gate.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == ["1"] * 49
    assert source.count == 1


async def test_clients_of_several_loops_share_a_token(
    tokens: CachedTokens, source: Numbered
) -> None:
    def elsewhere() -> str:
        return asyncio.run(tokens.token())

    found = await asyncio.gather(*(asyncio.to_thread(elsewhere) for _ in range(3)), tokens.token())
    assert (set(found), source.count) == ({"1"}, 1)


async def test_the_last_token_is_used_until_it_expires_while_the_issuer_is_away(
    tokens: CachedTokens, source: Numbered, clock: Clock
) -> None:
    await tokens.token()
    source.failure = TokenNotFetched("away")
    clock.now += 99
    assert await tokens.token() == "1"
    clock.now += 2
    with pytest.raises(TokenNotFetched):
        await tokens.token()
    source.failure = None
    assert await tokens.token() == "4"  # The failures were the second and the third.


async def test_a_failure_is_everyones_and_the_next_login_tries_again(
    tokens: CachedTokens, source: Numbered
) -> None:
    source.failure = AuthenticationFailed("refused")
    found = await asyncio.gather(*(tokens.token() for _ in range(5)), return_exceptions=True)
    assert all(isinstance(one, AuthenticationFailed) for one in found)
    source.failure = None
    assert await tokens.token()


def test_equal_sources_share_their_tokens() -> None:
    def make(secret: str) -> ClientCredentials:
        return ClientCredentials(endpoint="https://x/", client_id="a", client_secret=secret)

    assert shared_tokens(make("1")) is shared_tokens(make("1"))
    assert shared_tokens(make("1")) is not shared_tokens(make("2"))


def test_a_forked_process_begins_again() -> None:
    """The thread that fetched stays in the parent."""
    source = ClientCredentials(endpoint="https://x/", client_id="fork", client_secret="s")
    kept = shared_tokens(source)
    child = os.fork()
    if child == 0:
        os._exit(0 if shared_tokens(source) is not kept else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert shared_tokens(source) is kept


@pytest.mark.parametrize(
    ("token", "expiry"),
    [
        (unsigned({}, {"exp": 1_800_000_000}), 1_800_000_000),
        (unsigned({}, {"exp": 1_800_000_000.5}), 1_800_000_000.5),
        (unsigned({}, {"exp": True}), None),
        (unsigned({}, {"exp": "1800000000"}), None),
        (unsigned({}, {"exp": -1}), None),
        (unsigned({}, {"exp": 1e300}), None),
        (unsigned({}, {}), None),
        ("a.b", None),
        ("a.%%%%.c", None),
        ("a." + "W1tb" * 20_000 + ".c", None),
        ("", None),
    ],
)
def test_the_claimed_expiry_is_a_time_or_nothing(token: str, expiry: float | None) -> None:
    assert claimed_expiry(token) == expiry

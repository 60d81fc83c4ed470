"""Tokens are made, changed and removed, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tidelog_core.admin.security import delegation_tokens
from tidelog_core.admin.security.delegation_tokens import (
    NAMES_SIZE_BYTES_MAX,
    RENEWERS_MAX,
    TIME_MAX_MS,
    DelegationTokenAdmin,
    TokenRequest,
    TokenTimes,
)
from tidelog_core.errors import (
    DelegationTokenAuthDisabled,
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    InvalidRequest,
    PolicyViolation,
)
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.security.delegation_tokens import TokenSecret

from tests.support.clock import Clock
from tests.support.delegation_tokens import HOUR_MS, NOW_MS, OTHER_SECRET, SECRET, made

ALICE = TokenRequest("alice", "alice", ("bob",))
TIMES = TokenTimes(lifetime_max_ms=4 * HOUR_MS, expiry_ms=HOUR_MS)


@dataclass
class World:
    """A store, and nodes that change tokens in it."""

    store: SqliteMetadataStore
    clock: Clock
    may_expire: bool = True

    async def admin(
        self, *, secret: TokenSecret | None = SECRET, times: TokenTimes = TIMES
    ) -> DelegationTokenAdmin:
        """Return the admin of another node."""
        view = ClusterView(self.store, shows_security=True)
        await view.refresh()
        return DelegationTokenAdmin(
            self.store,
            view,
            secret=secret,
            times=times,
            clock_ms=self.clock,
            may_expire=lambda: self.may_expire,
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    await store.commit([put(Cluster(cluster_id="c"))])
    yield World(store, Clock(NOW_MS))
    await store.close()


async def test_a_token_is_changed_at_every_node(world: World) -> None:
    one, other = await world.admin(), await world.admin()
    token, token_hmac = await one.create(ALICE)
    assert (token.issued_ms, token.expires_ms, token.max_ms) == (
        NOW_MS,
        NOW_MS + HOUR_MS,
        NOW_MS + 4 * HOUR_MS,
    )
    world.clock.now_ms += HOUR_MS // 2
    expires_ms = await other.renew(token_hmac, "bob", period_ms=-1)
    assert expires_ms == NOW_MS + HOUR_MS // 2 + HOUR_MS
    ((shown, shown_hmac),) = await one.describe(None)
    assert (shown.expires_ms, shown_hmac) == (expires_ms, token_hmac)
    assert await one.expire(token_hmac, "alice", period_ms=-1) == world.clock.now_ms
    for admin in (one, other):
        assert await admin.describe(None) == []
        with pytest.raises(DelegationTokenNotFound):
            await admin.renew(token_hmac, "alice", period_ms=-1)


async def test_a_token_is_never_renewed_beyond_its_end(world: World) -> None:
    admin = await world.admin()
    token, token_hmac = await admin.create(ALICE)
    for _ in range(10):
        expires_ms = await admin.renew(token_hmac, "alice", period_ms=2**62)
        assert expires_ms <= token.max_ms
        world.clock.now_ms += HOUR_MS - 1
        if world.clock.now_ms > token.max_ms:
            break
    with pytest.raises(DelegationTokenExpired):
        await admin.renew(token_hmac, "alice", period_ms=2**62)
    with pytest.raises(DelegationTokenExpired):
        await admin.expire(token_hmac, "alice", period_ms=0)


async def test_others_change_nothing(world: World) -> None:
    admin = await world.admin()
    made_for = TokenRequest("alice", "maker")
    token, token_hmac = await admin.create(made_for)
    for user in ("maker", "bob", "", token.token_id):
        with pytest.raises(DelegationTokenOwnerMismatch):
            await admin.renew(token_hmac, user, period_ms=-1)
        with pytest.raises(DelegationTokenOwnerMismatch):
            await admin.expire(token_hmac, user, period_ms=-1)
    forged = OTHER_SECRET.hmac(token.token_id)
    for wrong in (forged, token_hmac[:-1], token_hmac + b"x", b"", token.digest):
        with pytest.raises(DelegationTokenNotFound):
            await admin.renew(wrong, "alice", period_ms=-1)
        with pytest.raises(DelegationTokenNotFound):
            await admin.expire(wrong, "alice", period_ms=-1)
    ((left, _),) = await admin.describe(None)
    assert left == token


async def test_another_key_ends_all_tokens(world: World) -> None:
    admin = await world.admin()
    _, token_hmac = await admin.create(ALICE)
    with_another = await world.admin(secret=OTHER_SECRET)
    assert await with_another.describe(None) == []
    with pytest.raises(DelegationTokenNotFound):
        await with_another.renew(token_hmac, "alice", period_ms=-1)


async def test_without_a_key_everything_is_refused(world: World) -> None:
    admin = await world.admin(secret=None)
    with pytest.raises(DelegationTokenAuthDisabled):
        await admin.create(ALICE)
    with pytest.raises(DelegationTokenAuthDisabled):
        await admin.describe(None)
    for change in (admin.renew, admin.expire):
        with pytest.raises(DelegationTokenAuthDisabled):
            await change(b"x", "alice", period_ms=-1)


async def test_tokens_are_found_by_owner_renewer_and_requester(world: World) -> None:
    admin = await world.admin()
    token, _ = await admin.create(TokenRequest("alice", "maker", ("bob",)))
    for user in ("alice", "bob", "maker"):
        assert [one for one, _ in await admin.describe({user, "x"})] == [token]
    for users in ({"carol"}, set[str]()):
        assert await admin.describe(users) == []


@pytest.mark.parametrize(
    "request_",
    [
        TokenRequest("alice", "alice", tuple(f"u{n}" for n in range(RENEWERS_MAX + 1))),
        TokenRequest("a" * NAMES_SIZE_BYTES_MAX, "alice"),
        TokenRequest("alice", "alice", ("ë" * (NAMES_SIZE_BYTES_MAX // 2),)),
        TokenRequest("alice", "alice", groups=("g" * NAMES_SIZE_BYTES_MAX,)),
    ],
    ids=["renewers", "owner", "renewer", "groups"],
)
async def test_a_token_has_few_names(world: World, request_: TokenRequest) -> None:
    admin = await world.admin()
    with pytest.raises(InvalidRequest):
        await admin.create(request_)
    assert await admin.describe(None) == []


async def test_tokens_are_bounded_for_a_user_and_for_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation_tokens, "TOKENS_MAX", 4)
    monkeypatch.setattr(delegation_tokens, "TOKENS_OF_REQUESTER_MAX", 3)
    admin = await world.admin()
    outcomes = await asyncio.gather(
        *(admin.create(ALICE) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(one, PolicyViolation) for one in outcomes) == 2
    with pytest.raises(PolicyViolation):
        await admin.create(TokenRequest("bob", "alice"))
    await admin.create(TokenRequest("bob", "bob"))
    with pytest.raises(PolicyViolation):
        await admin.create(TokenRequest("carol", "carol"))
    world.clock.now_ms += HOUR_MS + 1
    await admin.create(ALICE)  # The expired ones have made room.
    assert len(await admin.describe(None)) == 1


async def test_expired_tokens_are_removed_by_one_of_two(world: World) -> None:
    one, other = await world.admin(), await world.admin()
    _, first = await one.create(ALICE)
    _, second = await one.create(ALICE)
    await one.create(ALICE)
    world.clock.now_ms += HOUR_MS // 2
    await other.renew(second, "alice", period_ms=-1)
    await other.create(TokenRequest("bob", "bob"))
    assert await other.remove_expired() == 0
    world.clock.now_ms += HOUR_MS // 2 + 1
    # The first one's view does not show the renewal; it removes no token that was renewed.
    counts = await asyncio.gather(one.remove_expired(), other.remove_expired())
    assert sum(counts) == 2
    left = await one.describe(None)
    assert {token_hmac for _, token_hmac in left} >= {second}
    assert first not in {token_hmac for _, token_hmac in left}
    assert len(left) == 2


async def test_nothing_is_removed_while_the_clock_may_be_wrong(world: World) -> None:
    admin = await world.admin()
    await admin.create(ALICE)
    world.clock.now_ms += 100 * HOUR_MS
    world.may_expire = False
    assert await admin.remove_expired() == 0
    world.may_expire = True
    assert await admin.remove_expired() == 1


async def test_times_stay_within_what_answers_can_have(world: World) -> None:
    admin = await world.admin(times=TokenTimes(2**63 - 1, 2**63 - 1))
    token, token_hmac = await admin.create(TokenRequest("alice", "alice", lifetime_ms=2**63 - 1))
    assert (token.expires_ms, token.max_ms) == (TIME_MAX_MS, TIME_MAX_MS)
    assert await admin.renew(token_hmac, "alice", period_ms=2**63 - 1) == TIME_MAX_MS
    assert await admin.expire(token_hmac, "alice", period_ms=2**63 - 1) == TIME_MAX_MS


async def test_the_first_token_brings_the_secret_of_decoys(world: World) -> None:
    """Else anyone could compute which ids are no tokens, where no user has a password."""
    view = ClusterView(world.store, shows_security=True)
    assert (await view.refresh()).scram_users.decoy_secret is None
    await (await world.admin()).create(ALICE)
    assert (await view.refresh()).scram_users.decoy_secret is not None


async def test_an_unreadable_token_is_not_found(world: World) -> None:
    admin = await world.admin()
    one = made()
    await world.store.commit([put(one.token)])
    body = {**one.token.to_body(), "owner": 5}
    await world.store.commit([Write(one.token.item_id, body, ANY_VERSION)])
    with pytest.raises(DelegationTokenNotFound):
        await admin.renew(one.hmac, "alice", period_ms=-1)

"""Delegation tokens in the metadata store: looked up in images, and seen nowhere else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, delete, put
from tidelog_core.metadata.security.delegation_tokens import DelegationTokens
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.metadata.stores.dynamodb_items import key_of
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.support.delegation_tokens import made

ONE, TWO = made(renewers=("bob",)), made("two", owner="bob")


class Followed:
    """A store with a token, and a view that shows tokens."""

    def __init__(self, path: Path, *, changelog_length: int) -> None:
        self.store = SqliteMetadataStore(path / "metadata.db", changelog_length=changelog_length)
        self.view = ClusterView(self.store, read_again_seconds=0, shows_security=True)

    async def tokens(self) -> DelegationTokens:
        return (await self.view.refresh()).delegation_tokens


@pytest.fixture(params=[1000, 2], ids=["followed", "loaded-anew"])
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Followed]:
    """A filled store; with a short changelog every refresh loads everything."""
    world = Followed(tmp_path, changelog_length=request.param)
    await world.store.commit([put(Cluster(cluster_id="c")), put(ONE.token)])
    yield world
    await world.store.close()


async def test_image_follows_tokens(world: Followed) -> None:
    tokens = await world.tokens()
    assert tokens.records == {"an-id": ONE.token}
    assert tokens.by_digest == {ONE.token.digest: ONE.token}
    assert tokens.count_by_requester == {"alice": 1}
    await world.store.commit([put(TWO.token), delete(tokens.records["an-id"])])
    for _ in range(3):
        tokens = await world.tokens()
        assert tokens.records == {"two": TWO.token}
        assert tokens.by_digest == {TWO.token.digest: TWO.token}
        await world.store.commit([put(Cluster(cluster_id="c", version=ANY_VERSION))])


async def test_an_unreadable_token_is_none(world: Followed) -> None:
    """The last readable value may have been renewed or expired since."""
    await world.tokens()
    await world.store.commit([Write(ONE.token.item_id, {"token_id": "an-id"}, ANY_VERSION)])
    assert (await world.tokens()).records == {}
    assert ONE.token.item_id in world.view.image.unreadable


async def test_a_view_that_was_not_asked_to_shows_no_tokens(world: Followed) -> None:
    plain = ClusterView(world.store)
    assert (await plain.refresh()).delegation_tokens.records == {}
    await world.store.commit([put(TWO.token)])
    assert (await plain.refresh()).delegation_tokens.records == {}


def test_the_collection_is_a_partition_key_of_its_own() -> None:
    """A policy denies the tokens by it (``dynamodb:LeadingKeys``)."""
    assert key_of(ONE.token.item_id)["pk"] == {"S": "delegation-token"}


def test_no_text_of_a_token_has_its_secrets() -> None:
    body = json.dumps(ONE.token.to_body())
    assert ONE.hmac.hex() not in body
    assert ONE.password not in body
    shown = repr(ONE.token)
    for credential in ONE.token.credentials.values():
        for secret in (credential.salt, credential.stored_key, credential.server_key):
            assert repr(secret)[2:-1] not in shown
            assert secret.hex() not in shown
    assert ONE.token.digest.hex() not in shown
    assert "alice" in shown


def test_who_may_renew_and_see_a_token() -> None:
    assert ONE.token.may_be_renewed_by("alice")
    assert ONE.token.may_be_renewed_by("bob")
    assert not ONE.token.may_be_renewed_by("carol")
    assert not ONE.token.is_of("carol")

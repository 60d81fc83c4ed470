"""Stored quotas, the image that follows them, and their administration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidelog_core.admin.settings import client_quotas as quota_admin
from tidelog_core.admin.settings.client_quotas import QuotaAdmin, QuotaAlteration
from tidelog_core.errors import CorruptItem, InvalidRequest, TidelogError
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.metadata.security.client_quotas import (
    EntityQuotas,
    QuotaRecords,
    entity_quotas,
    quota_id,
    quota_key,
)
from tidelog_core.metadata.store import ANY_VERSION, Item, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.quotas.client_quotas import Quotas
from tidelog_core.quotas.quota_entity import QuotaEntity

ANN, EVERYONE = QuotaEntity("ann"), QuotaEntity("")
PRODUCE, REQUEST = "producer_byte_rate", "request_percentage"


class World:
    """A store, a view that shows quotas, and their administration."""

    def __init__(self, path: Path, *, changelog_length: int) -> None:
        self.store = SqliteMetadataStore(path / "metadata.db", changelog_length=changelog_length)
        self.view = ClusterView(self.store, read_again_seconds=0, shows_security=True)
        self.admin = QuotaAdmin(self.store, self.view)

    async def quotas(self) -> dict[QuotaEntity, Quotas]:
        return dict((await self.view.refresh()).quotas.quotas.by_entity)

    async def alter(
        self, entity: QuotaEntity, **values: float | None
    ) -> dict[object, TidelogError | None]:
        return dict(await self.admin.alter([alteration(entity, **values)], validate_only=False))


def alteration(entity: QuotaEntity, **values: float | None) -> QuotaAlteration:
    return QuotaAlteration(dict(entity.parts()), list(values.items()))


@pytest.fixture(params=[1000, 2], ids=["followed", "loaded-anew"])
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """With a short changelog every refresh loads everything."""
    world = World(tmp_path, changelog_length=request.param)
    await world.store.commit([put(Cluster(cluster_id="c"))])
    yield world
    await world.store.close()


async def test_quotas_of_an_entity_are_changed_one_by_one_and_removed(world: World) -> None:
    await world.alter(ANN, producer_byte_rate=5, request_percentage=1.5)
    await world.alter(EVERYONE, producer_byte_rate=7)
    await world.alter(ANN, producer_byte_rate=6)
    assert await world.quotas() == {ANN: {PRODUCE: 6, REQUEST: 1.5}, EVERYONE: {PRODUCE: 7}}
    other = ClusterView(world.store, shows_security=True)
    assert (await other.refresh()).quotas.quotas.by_entity == await world.quotas()
    await world.alter(ANN, producer_byte_rate=None, request_percentage=None)
    assert await world.quotas() == {EVERYONE: {PRODUCE: 7}}
    assert await world.store.get(quota_key(quota_id(ANN))) is None


async def test_nothing_is_written_for_quotas_that_are_so(world: World) -> None:
    await world.alter(ANN, producer_byte_rate=5)
    before = (await world.view.refresh()).version
    assert list((await world.alter(ANN, producer_byte_rate=5)).values()) == [None]
    assert (await world.view.refresh()).version == before


async def test_two_nodes_change_different_quotas_of_one_entity(world: World) -> None:
    view = ClusterView(world.store, shows_security=True)
    other = QuotaAdmin(world.store, view)
    await view.refresh()
    await asyncio.gather(
        world.alter(ANN, producer_byte_rate=5),
        other.alter([alteration(ANN, request_percentage=2)], validate_only=False),
    )
    assert await world.quotas() == {ANN: {PRODUCE: 5, REQUEST: 2}}


async def test_an_entity_that_is_named_twice_is_not_changed(world: World) -> None:
    twice = [alteration(ANN, producer_byte_rate=rate) for rate in (5, 6)]
    outcomes = await world.admin.alter(
        [*twice, alteration(EVERYONE, producer_byte_rate=7)], validate_only=False
    )
    assert isinstance(outcomes[(("user", "ann"),)], InvalidRequest)
    assert outcomes[(("user", None),)] is None
    assert await world.quotas() == {EVERYONE: {PRODUCE: 7}}


async def test_a_request_has_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_admin, "CHANGES_MAX", 2)
    outcomes = await world.admin.alter(
        [alteration(QuotaEntity(name), producer_byte_rate=5) for name in "abc"],
        validate_only=False,
    )
    assert all(isinstance(error, InvalidRequest) for error in outcomes.values())
    assert await world.quotas() == {}


async def test_a_view_without_security_reads_no_quotas(world: World) -> None:
    await world.alter(ANN, producer_byte_rate=5)
    assert (await ClusterView(world.store).refresh()).quotas == QuotaRecords()


async def test_damaged_quotas_keep_their_last_values_and_can_be_set_again(world: World) -> None:
    await world.alter(ANN, producer_byte_rate=5)
    key = quota_key(quota_id(ANN))
    await world.store.commit([Write(key, {"of": "tomorrow"}, ANY_VERSION)])
    image = await world.view.refresh()
    assert key in image.unreadable
    assert image.quotas.quotas.by_entity == {ANN: {PRODUCE: 5}}
    await world.alter(ANN, producer_byte_rate=6)
    image = await world.view.refresh()
    assert key not in image.unreadable
    assert image.quotas.quotas.by_entity == {ANN: {PRODUCE: 6}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("entity", {"user": "bob"}),
        ("entity", {"user": ""}),
        ("entity", {"user": 5}),
        ("entity", ["ann"]),
        ("values", {}),
        ("values", {PRODUCE: 0}),
        ("values", {PRODUCE: "5"}),
        ("values", {PRODUCE: True}),
        ("values", {"of_tomorrow": 5}),
        ("values", {"connection_creation_rate": 5}),
    ],
)
def test_an_item_that_has_no_quotas_of_its_key_is_damaged(field: str, value: object) -> None:
    record = entity_quotas(ANN, {PRODUCE: 5}, version=1)
    changed = {**record.to_body(), field: value}
    with pytest.raises(CorruptItem):
        EntityQuotas.from_item(Item(record.item_id, 1, changed))

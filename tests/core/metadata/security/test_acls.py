"""Stored ACLs, the image that follows them, and their administration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from tidelog_core.admin.security import acls as acl_admin
from tidelog_core.admin.security.acls import AclAdmin, find_acls
from tidelog_core.errors import CorruptItem, InvalidRequest, PolicyViolation
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.metadata.security.acls import Acls, StoredAcl, acl_id, acl_key, stored_acl
from tidelog_core.metadata.store import ANY_VERSION, COMMIT_WRITES_MAX, Item, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.security.acl import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)

from tests.support.loop_turns import loop_turns
from tests.support.random_acls import acl, acls_drawn
from tests.support.replicated_cluster import MEMORY_DIR

TURNS_SECONDS_MAX = 0.03  # of processor time


class World:
    """A store, a view that shows ACLs, and their administration."""

    def __init__(self, path: Path, *, changelog_length: int) -> None:
        self.store = SqliteMetadataStore(path / "metadata.db", changelog_length=changelog_length)
        self.view = ClusterView(self.store, read_again_seconds=0, shows_security=True)
        self.admin = AclAdmin(self.store, self.view)

    async def acls(self) -> frozenset[Acl]:
        return frozenset((await self.view.refresh()).acls.index)


@pytest.fixture(params=[1000, 2], ids=["followed", "loaded-anew"])
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """With a short changelog every refresh loads everything."""
    world = World(tmp_path, changelog_length=request.param)
    await world.store.commit([put(Cluster(cluster_id="c"))])
    yield world
    await world.store.close()


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if the machine has one: no disk is waited for."""
    with TemporaryDirectory(dir=MEMORY_DIR if MEMORY_DIR.is_dir() else tmp_path) as folder:
        yield Path(folder)


A, B, C = acl("a"), acl("b"), acl("a", AclOperation.WRITE, AclPermission.DENY)


async def test_created_acls_are_in_every_image_and_deleted_ones_in_none(world: World) -> None:
    assert await world.admin.create([A, B, C]) == [None, None, None]
    assert await world.acls() == {A, B, C}
    (deleted,) = await world.admin.delete([AclFilter(ResourceType.TOPIC, name="a")])
    assert isinstance(deleted, list)
    assert sorted(deleted) == sorted([(A, None), (C, None)])
    assert await world.acls() == {B}
    other = ClusterView(world.store, shows_security=True)
    assert frozenset((await other.refresh()).acls.index) == {B}


async def test_an_acl_is_created_twice_and_stored_once(world: World) -> None:
    assert await world.admin.create([A, A]) == [None, None]
    assert await world.admin.create([A]) == [None]
    assert len((await world.view.refresh()).acls.records) == 1


async def test_two_nodes_create_and_delete_the_same_acl(world: World) -> None:
    view = ClusterView(world.store, shows_security=True)
    other = AclAdmin(world.store, view)
    await view.refresh()
    both = await asyncio.gather(world.admin.create([A]), other.create([A]))
    assert both == [[None], [None]]
    anything = AclFilter()
    first, second = await asyncio.gather(world.admin.delete([anything]), other.delete([anything]))
    assert [*first, *second] == [[(A, None)]] * 2 or [] in (first[0], second[0])
    assert await world.acls() == frozenset()


async def test_filters_that_fit_the_same_acl_both_report_it(world: World) -> None:
    await world.admin.create([A])
    found = await world.admin.delete([AclFilter(), AclFilter(name="a"), AclFilter(name="x")])
    assert found == [[(A, None)], [(A, None)], []]


async def test_a_view_without_security_reads_no_acl(world: World) -> None:
    await world.admin.create([A])
    image = await ClusterView(world.store).refresh()
    assert image.acls == Acls()


async def test_a_damaged_acl_keeps_its_last_value_and_can_be_stored_again(world: World) -> None:
    await world.admin.create([A, B])
    key = acl_key(acl_id(A))
    await world.store.commit([Write(key, {"of": "tomorrow"}, ANY_VERSION)])
    image = await world.view.refresh()
    assert key in image.unreadable
    assert frozenset(image.acls.index) == {A, B}
    assert await world.admin.create([A]) == [None]
    image = await world.view.refresh()
    assert key not in image.unreadable
    assert frozenset(image.acls.index) == {A, B}


WRONG = [
    (A._replace(resource_type=ResourceType.ANY), "Invalid resourceType ANY"),
    (A._replace(pattern_type=PatternType.MATCH), "Invalid patternType MATCH"),
    (A._replace(operation=AclOperation.ANY), "Invalid operation ANY"),
    (A._replace(permission=AclPermission.ANY), "Invalid permissionType ANY"),
    (A._replace(name=""), "Resource name should not be empty"),
    (A._replace(resource_type=ResourceType.CLUSTER), f"CLUSTER resource is {CLUSTER_NAME}"),
    (A._replace(principal="alice"), "Could not parse principal from `alice`"),
    (A._replace(host=""), "Host should not be empty"),
    (A._replace(name="x" * 1001), "1001 characters, allowed are 1000"),
]


async def test_wrong_acls_are_refused_and_the_others_created(world: World) -> None:
    errors = await world.admin.create([*(wrong for wrong, _ in WRONG), A])
    assert errors.pop() is None
    for error, (_, problem) in zip(errors, WRONG, strict=True):
        assert isinstance(error, InvalidRequest)
        assert problem in str(error)
    assert await world.acls() == {A}


async def test_a_request_has_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.admin.create([A, B, C])
    monkeypatch.setattr(acl_admin, "CHANGES_MAX", 2)
    assert all(isinstance(error, InvalidRequest) for error in await world.admin.create([A, B, C]))
    assert all(isinstance(one, InvalidRequest) for one in await world.admin.delete([AclFilter()]))
    assert await world.acls() == {A, B, C}


async def test_the_acls_of_a_cluster_are_bounded(tmp_path: Path) -> None:
    world = World(tmp_path, changelog_length=100)
    await world.store.commit([put(Cluster(cluster_id="c"))])
    admin = AclAdmin(world.store, world.view, acls_max=lambda: 2)
    first, second, third = await admin.create([A, B, C])
    assert first is second is None
    assert isinstance(third, PolicyViolation)
    assert "authorizer.max.acls allows 2" in str(third)
    assert await admin.create([A, B]) == [None, None]  # They are there.
    await admin.delete([AclFilter(name="b")])
    assert await admin.create([C]) == [None]
    assert await world.acls() == {A, C}
    await world.store.close()


async def test_an_image_of_many_acls_is_made_in_turns(quick: Path) -> None:
    """A hundred thousand of them once took a second at once."""
    store = SqliteMetadataStore(quick / "metadata.db", changelog_length=100)
    many = [acl(f"name-{number}") for number in range(5_000)]
    for start in range(0, len(many), COMMIT_WRITES_MAX):
        some = many[start : start + COMMIT_WRITES_MAX]
        await store.commit([put(stored_acl(one)) for one in some])
    view = ClusterView(store, shows_security=True)
    with loop_turns() as turns:
        image = await asyncio.create_task(view.refresh())
    assert len(image.acls.index) == len(many)
    assert turns.longest_seconds < TURNS_SECONDS_MAX, turns.longest[:100]
    with loop_turns() as turns:
        await asyncio.create_task(AclAdmin(store, view).create([acl("one more")]))
    assert turns.longest_seconds < TURNS_SECONDS_MAX, turns.longest[:100]
    await store.close()


async def test_comparisons_of_a_request_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of filters and thousands of ACLs would take minutes of the node's time."""
    await world.admin.create([acl(f"topic-{number}") for number in range(10)])
    monkeypatch.setattr(acl_admin, "COMPARISONS_MAX", 25)
    everyones = [AclFilter(principal=f"User:u{number}") for number in range(3)]
    refused = await world.admin.delete([AclFilter(name="topic-1"), *everyones])
    assert all(isinstance(one, InvalidRequest) for one in refused)
    assert len(await world.acls()) == 10
    named = [AclFilter(name=f"topic-{number % 20}") for number in range(40)]
    deleted = await world.admin.delete(named)
    assert not any(isinstance(one, InvalidRequest) for one in deleted)
    assert await world.acls() == frozenset()


async def test_many_acls_are_created_and_found(world: World) -> None:
    many = [acl(f"topic-{number}") for number in range(300)]
    assert await world.admin.create(many) == [None] * 300
    image = await world.view.refresh()
    assert await find_acls(image, AclFilter()) == sorted(many)
    assert await find_acls(image, AclFilter(name="topic-7")) == [acl("topic-7")]


@given(acls_drawn)
def test_an_acl_is_read_as_it_was_stored(one: Acl) -> None:
    record = stored_acl(one)
    assert StoredAcl.from_item(Item(record.item_id, 3, record.to_body())).acl == one


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "b"),
        ("permission", "ANY"),
        ("permission", "PERHAPS"),
        ("operation", 3),
        ("host", None),
        ("principal", ""),
    ],
)
def test_an_item_that_is_not_its_acl_is_damaged(field: str, value: object) -> None:
    record = stored_acl(A)
    body = record.to_body()
    changed = {**body, "acl": {**body["acl"], field: value}}  # type: ignore[dict-item]
    with pytest.raises(CorruptItem):
        StoredAcl.from_item(Item(record.item_id, 1, changed))

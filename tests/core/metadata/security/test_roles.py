"""Stored roles, the image that follows them, and their administration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from tidelog_core.admin.security import roles as role_admin
from tidelog_core.admin.security.roles import RoleAdmin, RoleChange, find_roles
from tidelog_core.errors import (
    DuplicateResource,
    InvalidRequest,
    PolicyViolation,
    ResourceNotFound,
)
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.metadata.security.roles import Roles, role_key
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.role_messages import CHANGE, CREATE, DELETE


class World:
    """A store, a view that shows roles, and their administration."""

    def __init__(self, path: Path, *, changelog_length: int) -> None:
        self.store = SqliteMetadataStore(path / "metadata.db", changelog_length=changelog_length)
        self.view = ClusterView(self.store, read_again_seconds=0, shows_security=True)
        self.admin = RoleAdmin(self.store, self.view)

    async def roles(self) -> Mapping[str, tuple[str, ...]]:
        return (await self.view.refresh()).roles.index.members


@pytest.fixture(params=[1000, 2], ids=["followed", "loaded-anew"])
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """With a short changelog every refresh loads everything."""
    world = World(tmp_path, changelog_length=request.param)
    await world.store.commit([put(Cluster(cluster_id="c"))])
    yield world
    await world.store.close()


def create(name: str, *members: str) -> RoleChange:
    return RoleChange(name, CREATE, members)


def change(name: str, *members: str, removed: tuple[str, ...] = ()) -> RoleChange:
    return RoleChange(name, CHANGE, members, removed)


A, B, G = "User:a", "User:b", "Group:g"


async def test_roles_are_created_changed_and_deleted(world: World) -> None:
    assert await world.admin.alter([create("x", B, A), create("y")]) == {"x": None, "y": None}
    assert await world.roles() == {"x": (A, B), "y": ()}
    assert await world.admin.alter([change("x", G, A, removed=(B,)), change("y", B)]) == {
        "x": None,
        "y": None,
    }
    assert await world.roles() == {"x": (G, A), "y": (B,)}
    other = ClusterView(world.store, shows_security=True)
    assert (await other.refresh()).roles.index.principals((B,)) == (B, "Role:y")
    assert await world.admin.alter([RoleChange("x", DELETE)]) == {"x": None}
    assert await world.roles() == {"y": (B,)}


async def test_each_change_fails_by_itself(world: World) -> None:
    await world.admin.alter([create("x", A)])
    outcomes = await world.admin.alter(
        [
            create("x", B),
            change("none", A),
            RoleChange("gone", DELETE),
            create("not/allowed"),
            create("y", "Role:x"),
            RoleChange("z", 9),
            change("both", A, removed=(A,)),
            RoleChange("d", DELETE, (A,)),
            create("twice"),
            create("twice", A),
            create("right", A),
        ]
    )
    problems = {name: type(error) for name, error in outcomes.items()}
    assert problems == {
        "x": DuplicateResource,
        "none": ResourceNotFound,
        "gone": ResourceNotFound,
        "not/allowed": InvalidRequest,
        "y": InvalidRequest,
        "z": InvalidRequest,
        "both": InvalidRequest,
        "d": InvalidRequest,
        "twice": DuplicateResource,
        "right": type(None),
    }
    assert await world.roles() == {"right": (A,), "x": (A,)}


async def test_a_member_twice_is_there_once_and_a_change_may_change_nothing(world: World) -> None:
    await world.admin.alter([create("x", A, A)])
    before = (await world.view.refresh()).roles
    assert await world.admin.alter([change("x", A, removed=(B,))]) == {"x": None}
    assert (await world.view.refresh()).roles.records["x"].version == before.records["x"].version


async def test_roles_of_a_cluster_and_members_of_a_role_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_admin, "ROLES_MAX", 3)
    await world.admin.alter([create("a")])
    outcomes = await world.admin.alter([create(name) for name in "bcd"])
    assert outcomes["b"] is outcomes["c"] is None
    assert isinstance(outcomes["d"], PolicyViolation)
    assert "more than 3 roles" in str(outcomes["d"])
    assert await world.admin.alter([change("a", A), RoleChange("b", DELETE)]) == {
        "a": None,
        "b": None,
    }
    assert await world.admin.alter([create("d")]) == {"d": None}
    many = tuple(f"User:{number}" for number in range(1001))
    assert isinstance((await world.admin.alter([change("a", *many)]))["a"], InvalidRequest)
    monkeypatch.setattr(role_admin, "ROLE_MEMBERS_MAX", 3)
    outcomes = await world.admin.alter(
        [change("c", A, B), change("d", B), change("a", removed=(A,))]
    )
    assert outcomes["c"] is outcomes["a"] is None
    assert isinstance(outcomes["d"], PolicyViolation)
    assert "more than 3 members together" in str(outcomes["d"])
    assert await world.admin.alter([change("a", A)]) == {"a": None}
    too_many = tuple(f"User:{number}" for number in range(2001))
    assert isinstance((await world.admin.alter([change("a", *too_many)]))["a"], InvalidRequest)
    monkeypatch.setattr(role_admin, "CHANGES_MAX", 1)
    refused = await world.admin.alter([change("a", B), change("c", B)])
    assert {type(error) for error in refused.values()} == {InvalidRequest}
    assert (await world.roles())["a"] == (A,)


async def test_found_are_roles_by_name_and_by_member(world: World) -> None:
    await world.admin.alter([create("x", A), create("y", A, B), create("z")])
    image = await world.view.refresh()

    async def found(names: list[str] | None, members: list[str] | None) -> list[str]:
        return [role.name for role in await find_roles(image, names, members)]

    assert await found(None, None) == ["x", "y", "z"]
    assert await found(["z", "x", "none"], None) == ["x", "z"]
    assert await found(None, [A, G]) == ["x", "y"]
    assert await found(["y", "z"], [B]) == ["y"]
    assert await found([], None) == await found(None, []) == []


async def test_a_view_without_security_reads_no_role(world: World) -> None:
    await world.admin.alter([create("x", A)])
    assert (await ClusterView(world.store).refresh()).roles == Roles()


async def test_a_damaged_role_keeps_its_members_and_can_be_made_again(world: World) -> None:
    await world.admin.alter([create("x", A)])
    damage = Write(role_key("x"), {"of": "tomorrow"}, ANY_VERSION)
    await world.store.commit([damage])
    image = await world.view.refresh()
    assert role_key("x") in image.unreadable
    assert (image.roles.index.members, image.roles.unknown) == ({"x": (A,)}, frozenset())
    assert isinstance((await world.admin.alter([change("x", B)]))["x"], InvalidRequest)
    # A node that never could read it does not know whom its ACLs deny what.
    assert (await ClusterView(world.store, shows_security=True).refresh()).roles.unknown == {"x"}
    assert await world.admin.alter([RoleChange("x", DELETE)]) == {"x": None}
    assert await world.admin.alter([create("x", B)]) == {"x": None}
    image = await world.view.refresh()
    assert (image.roles.index.members, image.unreadable) == ({"x": (B,)}, {})

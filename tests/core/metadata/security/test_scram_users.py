"""Credentials in the metadata store: looked up in images, and seen nowhere else."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.items import ITEMS
from tidelog_core.metadata.records import Cluster, delete, put
from tidelog_core.metadata.security.scram_users import (
    ScramDecoySecret,
    ScramUsers,
    UserScramCredential,
    decoy_secret_key,
    scram_credential_key,
)
from tidelog_core.metadata.store import ANY_VERSION, Item, ItemKey, Write
from tidelog_core.metadata.stores.dynamodb_items import key_of
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.security.scram_credentials import ScramCredential, ScramMechanism

from tests.support.stored_items import overwrite_body

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
CANARY = b"canary!!" * 4
ALICE = UserScramCredential(
    user="alice",
    mechanism=SHA_256,
    credential=ScramCredential(salt=CANARY, stored_key=CANARY, server_key=CANARY, iterations=4096),
)
SECRET = ScramDecoySecret(secret=CANARY)
LEAKS = ("canary", CANARY.hex())


class Followed:
    """A store with a user, and a view that shows users."""

    def __init__(self, path: Path, *, changelog_length: int) -> None:
        self.path = path / "metadata.db"
        self.store = SqliteMetadataStore(self.path, changelog_length=changelog_length)
        self.view = ClusterView(self.store, read_again_seconds=0, shows_security=True)

    async def users(self) -> ScramUsers:
        return (await self.view.refresh()).scram_users


@pytest.fixture(params=[1000, 2], ids=["followed", "loaded-anew"])
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Followed]:
    """A filled store; with a short changelog every refresh loads everything."""
    world = Followed(tmp_path, changelog_length=request.param)
    await world.store.commit([put(Cluster(cluster_id="c")), put(ALICE), put(SECRET)])
    yield world
    await world.store.close()


def find(users: ScramUsers, name: str = "alice") -> ScramCredential | None:
    return users.find(name, SHA_256, is_token=False)


async def test_image_follows_credentials(world: Followed) -> None:
    users = await world.users()
    assert find(users) == ALICE.credential
    assert users.find("alice", SHA_512, is_token=False) is None
    assert users.find("alice", SHA_256, is_token=True) is None
    assert find(users, "bob") is None
    bob = UserScramCredential(user="bob", mechanism=SHA_256, credential=ALICE.credential)
    await world.store.commit([put(bob), delete(users.records["alice/SCRAM-SHA-256"])])
    for _ in range(3):
        users = await world.users()
        assert find(users) is None
        assert find(users, "bob") == ALICE.credential
        assert list(users.by_user) == ["bob"]
        await world.store.commit([put(Cluster(cluster_id="c", version=ANY_VERSION))])


async def test_users_are_listed_by_name_with_their_mechanisms_in_order() -> None:
    records = {}
    for user, mechanism in (("b", SHA_512), ("b", SHA_256), ("a", SHA_512)):
        record = UserScramCredential(user=user, mechanism=mechanism, credential=ALICE.credential)
        records[record.item_id.key] = record
    found = {
        user: [one.mechanism for one in some] for user, some in ScramUsers(records).by_user.items()
    }
    assert found == {"a": [SHA_512], "b": [SHA_256, SHA_512]}
    assert list(found) == ["a", "b"]


async def test_decoys_are_of_the_stored_secret(world: Followed) -> None:
    users = await world.users()
    again = await ClusterView(world.store, shows_security=True).refresh()
    assert users.decoy("nobody", SHA_256) == again.scram_users.decoy("nobody", SHA_256)
    assert ScramUsers().decoy("nobody", SHA_256) != users.decoy("nobody", SHA_256)


async def test_other_views_neither_read_nor_report_credentials(world: Followed) -> None:
    view = ClusterView(world.store, read_again_seconds=0)
    assert (await view.refresh()).scram_users == ScramUsers()
    await world.store.commit([Write(ALICE.item_id, {"of": "tomorrow"}, ANY_VERSION)])
    image = await view.refresh()
    assert (image.scram_users, image.unreadable) == (ScramUsers(), {})


async def test_damaged_credential_lets_nobody_in_and_is_reported(
    world: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body = ALICE.to_body()
    other = UserScramCredential(user="bob", mechanism=SHA_256, credential=ALICE.credential)
    await world.store.commit([put(other)])
    assert find(await world.users()) is not None
    damaged: dict[str, Any] = {**body, "credential": CANARY.hex()}
    await world.store.commit([Write(ALICE.item_id, damaged, ANY_VERSION)])
    for _ in range(3):
        users = await world.users()
        assert find(users) is None
        assert find(users, "bob") is not None
        assert list(world.view.image.unreadable) == [ALICE.item_id]
        await world.store.commit([put(Cluster(cluster_id="c", version=ANY_VERSION))])
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [vars(error)["key"] for error in errors] == ["alice/SCRAM-SHA-256"]
    overwrite_body(world.path, ALICE.item_id, json.dumps(body))
    assert find(await world.users()) == ALICE.credential
    assert not any(leak in str(vars(record)) for record in caplog.records for leak in LEAKS)


async def test_damaged_secret_of_decoys_stays_as_last_read(world: Followed) -> None:
    before = (await world.users()).decoy("nobody", SHA_256)
    await world.store.commit([Write(decoy_secret_key(), {"of": "tomorrow"}, ANY_VERSION)])
    assert (await world.users()).decoy("nobody", SHA_256) == before
    assert list(world.view.image.unreadable) == [decoy_secret_key()]


CREDENTIAL = dict(ALICE.to_body()["credential"])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "credential",
    [
        CANARY.hex(),
        [CANARY.hex()],
        {**CREDENTIAL, "more": CANARY.hex()},
        {**CREDENTIAL, "salt": "canary"},
        {**CREDENTIAL, "salt": ["canary"]},
        {**CREDENTIAL, "salt": CANARY.hex() * 100},
        {**CREDENTIAL, "stored_key": CANARY.hex()[2:]},
        {**CREDENTIAL, "server_key": CANARY.hex() * 2},
        {**CREDENTIAL, "server_key": ""},
        {**CREDENTIAL, "iterations": 4095},
        {**CREDENTIAL, "iterations": 16_385},
        {**CREDENTIAL, "iterations": 4096.0},
        {**CREDENTIAL, "iterations": "canary"},
    ],
)
def test_report_of_damage_does_not_repeat_what_is_stored(credential: Any) -> None:
    with pytest.raises(CorruptItem) as damaged:
        UserScramCredential.from_item(
            Item(ALICE.item_id, 1, {**ALICE.to_body(), "credential": credential})
        )
    assert not any(leak in str(damaged.value) for leak in LEAKS)
    with pytest.raises(CorruptItem) as damaged:
        ScramDecoySecret.from_item(Item(decoy_secret_key(), 1, {"secret": "canary"}))
    assert not any(leak in str(damaged.value) for leak in LEAKS)


def test_keys_of_another_mechanisms_size_are_damage() -> None:
    item_id = scram_credential_key("alice", SHA_512)
    body = {**ALICE.to_body(), "mechanism": SHA_512.value}
    with pytest.raises(CorruptItem, match="size of SCRAM-SHA-512"):
        UserScramCredential.from_item(Item(item_id, 1, body))


def test_repr_of_nothing_shows_a_credential() -> None:
    users = ScramUsers({ALICE.item_id.key: ALICE}, SECRET)
    shown = [
        ALICE,
        SECRET,
        users,
        users.decoy("alice", SHA_256),
        ClusterImage(scram_users=users),
        put(ALICE),
        put(SECRET),
        Item(ALICE.item_id, 1, ALICE.to_body()),
    ]
    for one in shown:
        assert not any(leak in repr(one) for leak in LEAKS)
        assert repr(CANARY)[2:-1] not in repr(one)


def test_credentials_have_partition_keys_with_a_prefix_that_no_other_item_has() -> None:
    """So a policy can deny them to a role by ``dynamodb:LeadingKeys``."""
    secret = {
        kind.value
        for kind in ITEMS
        for form in [kind.value if isinstance(kind.value, ItemKey) else kind.value.KEY.text]
        if form.collection.startswith("scram-")
    }
    assert secret == {UserScramCredential, ScramDecoySecret}
    for record in (ALICE, SECRET):
        assert key_of(record.item_id)["pk"]["S"].startswith("scram-")


@pytest.mark.parametrize("user", ["scram-decoys", "a/b", "a/SCRAM-SHA-256", "/", "ë", "a\nb"])
async def test_name_of_any_user_is_a_key_of_its_own(world: Followed, user: str) -> None:
    record = UserScramCredential(user=user, mechanism=SHA_512, credential=ALICE.credential)
    with pytest.raises(CorruptItem, match="size of"):
        UserScramCredential.from_item(Item(record.item_id, 1, record.to_body()))
    record = UserScramCredential(user=user, mechanism=SHA_256, credential=ALICE.credential)
    await world.store.commit([put(record)])
    users = await world.users()
    assert find(users, user) == ALICE.credential
    assert set(users.by_user) == {"alice", user}
    assert users.decoy_secret == SECRET

"""DescribeUserScramCredentials and AlterUserScramCredentials, over the wire formats.

The cases are those of Kafka's ``AlterUserScramCredentialsRequestTest``; ``tests/kafka`` compares.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.admin.security.scram_users import USER_NAME_SIZE_BYTES_MAX
from tidelog_core.errors import AuthenticationFailed, ErrorCode
from tidelog_core.metadata.security.scram_users import decoy_secret_key, scram_credential_key
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.security.plain import PlainLogin, check_password
from tidelog_core.security.scram import ScramServer
from tidelog_core.security.scram_client import ScramClient
from tidelog_core.security.scram_credentials import (
    ITERATIONS_MAX,
    SALT_SIZE_BYTES_MAX,
    ScramMechanism,
    salt_password,
)

from tests.node.handlers.control_plane import Node, cluster
from tests.node.handlers.unsteady_store import one_node
from tests.support.stored_items import stored_items

DESCRIBE, ALTER = 50, 51
SHA_256, SHA_512 = 1, 2
SALT = b"some salt"
BY_NUMBER = {SHA_256: ScramMechanism.SCRAM_SHA_256, SHA_512: ScramMechanism.SCRAM_SHA_512}


def upsertion(
    user: str,
    mechanism: int = SHA_256,
    *,
    password: str = "secret",
    iterations: int = 4096,
    salt: bytes = SALT,
) -> dict[str, Any]:
    salted = salt_password(
        BY_NUMBER.get(mechanism, ScramMechanism.SCRAM_SHA_256),
        password,
        salt=salt,
        iterations=max(1, min(iterations, 20_000)),
    )
    return {
        "name": user,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": salt,
        "salted_password": salted,
    }


def deletion(user: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": user, "mechanism": mechanism}


async def alter(
    node: Node, *upsertions: dict[str, Any], delete: tuple[dict[str, Any], ...] = ()
) -> dict[str, tuple[ErrorCode, str | None]]:
    """Return the result of each user."""
    answer = await node.ask(ALTER, 0, deletions=list(delete), upsertions=list(upsertions))
    results = {one.user: (one.error_code, one.error_message) for one in answer.results}
    assert len(results) == len(answer.results)
    return results


async def describe(node: Node, *users: str) -> dict[str, Any]:
    """Return iterations by mechanism of each user, or the error's code."""
    named = [{"name": user} for user in users]
    answer = await node.ask(DESCRIBE, 0, users=named or None)
    assert answer.error_code is ErrorCode.none
    return {
        one.user: {info.mechanism: info.iterations for info in one.credential_infos}
        if one.error_code is ErrorCode.none
        else one.error_code
        for one in answer.results
    }


def logs_in(node: Node, user: str, password: str, mechanism: int = SHA_256) -> bool:
    users = node.view.image.scram_users
    server = ScramServer(BY_NUMBER[mechanism], users, nonce="server-nonce")
    client = ScramClient(BY_NUMBER[mechanism], user, password, nonce="client-nonce")
    try:
        client.check(server.answer(client.final_message(server.answer(client.first_message()))))
    except AuthenticationFailed:
        return False
    return True


OK = (ErrorCode.none, None)
TWICE = (
    ErrorCode.duplicate_resource,
    "A user credential cannot be altered twice in the same request",
)
NO_NAME = (ErrorCode.unacceptable_credential, "Username must not be empty")
UNKNOWN = (ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
NOT_THERE = (
    ErrorCode.resource_not_found,
    "Attempt to delete a user credential that does not exist",
)


async def test_created_users_are_described_and_log_in_at_every_node(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as (one, other):
        assert await describe(one) == {}
        assert await alter(one, upsertion("alice"), upsertion("bob", SHA_512)) == {
            "alice": OK,
            "bob": OK,
        }
        assert logs_in(one, "alice", "secret"), "at once, where the change was made"
        assert await alter(other, upsertion("alice", SHA_512, iterations=8192)) == {"alice": OK}
        for node in (one, other):
            assert await describe(node) == {
                "alice": {SHA_256: 4096, SHA_512: 8192},
                "bob": {SHA_512: 4096},
            }
            assert await describe(node, "bob", "nobody") == {
                "bob": {SHA_512: 4096},
                "nobody": ErrorCode.resource_not_found,
            }
            assert logs_in(node, "alice", "secret", SHA_512)
            assert not logs_in(node, "bob", "secret", SHA_256)
            check_password(PlainLogin("bob", "secret"), node.view.image.scram_users)


async def test_changed_and_deleted_credentials_count_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await alter(node, upsertion("alice"), upsertion("bob"))
        assert await alter(node, upsertion("alice", password="new"), delete=(deletion("bob"),)) == {
            "alice": OK,
            "bob": OK,
        }
        assert [logs_in(node, "alice", password) for password in ("secret", "new")] == [False, True]
        assert not logs_in(node, "bob", "secret")
        assert await alter(node, delete=(deletion("alice"),)) == {"alice": OK}
        assert await describe(node) == {}


async def test_same_user_twice_is_refused_and_nothing_of_it_is_done(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await alter(node, upsertion("one"), upsertion("two"))
        for deletions, upsertions in (
            ([deletion("one")] * 2, [upsertion("two", password="new")] * 2),
            ([deletion("one"), deletion("two")], [upsertion("one"), upsertion("two")]),
            (
                [deletion("one")] * 3,
                [upsertion("two"), upsertion("two", SHA_512), upsertion("two")],
            ),
        ):
            assert await alter(node, *upsertions, delete=tuple(deletions)) == {
                "one": TWICE,
                "two": TWICE,
            }
        assert await describe(node) == {"one": {SHA_256: 4096}, "two": {SHA_256: 4096}}
        assert logs_in(node, "two", "secret")
        # The first error of a user is the one that is reported.
        assert await alter(node, upsertion("new"), delete=(deletion("new"),)) == {"new": NOT_THERE}


@pytest.mark.parametrize(
    ("one", "result"),
    [
        (upsertion(""), NO_NAME),
        (upsertion("", mechanism=0), NO_NAME),
        (upsertion("u", 0), UNKNOWN),
        (upsertion("u", 3), UNKNOWN),
        (upsertion("u", -1), UNKNOWN),
        (upsertion("u", 10, iterations=1), UNKNOWN),
        (
            upsertion("u", iterations=4095),
            (ErrorCode.unacceptable_credential, "Too few iterations"),
        ),
        (upsertion("u", iterations=-1), (ErrorCode.unacceptable_credential, "Too few iterations")),
        (
            upsertion("u", iterations=ITERATIONS_MAX + 1),
            (ErrorCode.unacceptable_credential, "Too many iterations"),
        ),
    ],
)
async def test_credential_that_kafka_refuses_is_refused(
    tmp_path: Path, one: dict[str, Any], result: tuple[ErrorCode, str]
) -> None:
    async with cluster(tmp_path) as (node,):
        results = await alter(node, one, upsertion("other", iterations=ITERATIONS_MAX))
        assert results == {one["name"]: result, "other": OK}
        assert list(await describe(node)) == ["other"]


async def test_deletion_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await alter(node, upsertion("alice"))
        results = await alter(
            node,
            delete=(deletion("alice", SHA_512), deletion("bob"), deletion(""), deletion("c", 9)),
        )
        assert results == {"alice": NOT_THERE, "bob": NOT_THERE, "": NO_NAME, "c": UNKNOWN}
        assert await describe(node) == {"alice": {SHA_256: 4096}}


async def test_what_the_store_cannot_hold_is_refused(tmp_path: Path) -> None:
    """Kafka has no such limits; without a password it answers UNKNOWN_SERVER_ERROR."""
    async with cluster(tmp_path) as (node,):
        longest = "é" * (USER_NAME_SIZE_BYTES_MAX // 2)
        results = await alter(
            node,
            upsertion(longest, salt=b"s" * SALT_SIZE_BYTES_MAX),
            upsertion(longest + "x"),
            upsertion("salty", salt=b"s" * (SALT_SIZE_BYTES_MAX + 1)),
            {**upsertion("empty"), "salted_password": b""},
            {**upsertion("unsalted"), "salt": b""},
        )
        refused = {user: code for user, (code, _) in results.items() if code is not ErrorCode.none}
        assert refused == dict.fromkeys(
            [longest + "x", "salty", "empty"], ErrorCode.unacceptable_credential
        )
        assert set(await describe(node)) == {longest, "unsalted"}


async def test_describe_refuses_a_user_who_is_named_twice(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await alter(node, upsertion("alice"))
        assert await describe(node, "alice", "alice", "bob") == {
            "alice": ErrorCode.duplicate_resource,
            "bob": ErrorCode.resource_not_found,
        }
        answer = await node.ask(DESCRIBE, 0, users=[])
        assert [one.user for one in answer.results] == ["alice"]


async def test_request_of_nothing_is_answered_with_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        assert await alter(node) == {}


async def test_more_users_than_a_transaction_takes_are_altered(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        one = upsertion("any")
        many = [{**one, "name": f"user-{number}"} for number in range(250)]
        assert set((await alter(node, *many)).values()) == {OK}
        assert len(await describe(node)) == 250
        deleted = await alter(node, delete=tuple(deletion(each["name"]) for each in many))
        assert set(deleted.values()) == {OK}
        assert await describe(node) == {}


async def test_concurrent_changes_of_one_user_are_all_made(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as nodes:
        changes = [upsertion("alice", password=f"password-{n}") for n in range(6)]
        results = await asyncio.gather(
            *(alter(nodes[n % 2], change) for n, change in enumerate(changes))
        )
        assert results == [{"alice": OK}] * 6
        for node in nodes:
            await node.view.refresh()
            found = [n for n in range(6) if logs_in(node, "alice", f"password-{n}")]
            assert len(found) == 1


async def test_secret_of_decoys_is_stored_once_with_the_first_credential(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as nodes:
        await alter(nodes[0], delete=(deletion("nobody"),))
        assert decoy_secret_key() not in stored_items(tmp_path / "metadata.db")
        await asyncio.gather(*(alter(node, upsertion(str(node.broker_id))) for node in nodes))
        await alter(nodes[1], upsertion("third"))
        assert stored_items(tmp_path / "metadata.db")[decoy_secret_key()][0] == 1
        for node in nodes:
            await node.view.refresh()
        decoys = {
            node.view.image.scram_users.decoy("nobody", BY_NUMBER[SHA_256]).salt for node in nodes
        }
        assert len(decoys) == 1
        assert len(decoys.pop()) == len(SALT)


async def test_unreadable_credential_is_described_as_such_and_can_be_altered(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as (node,):
        await alter(node, upsertion("alice"), upsertion("bob"))
        key = {
            user: scram_credential_key(user, BY_NUMBER[SHA_256]) for user in ("alice", "bob", "eve")
        }
        store = node.store
        for item_key in key.values():
            await store.commit([Write(item_key, {"of": "tomorrow"}, ANY_VERSION)])
        expected = dict.fromkeys(key, ErrorCode.unknown_server_error)
        assert await describe(node) == await describe(node, *key) == expected
        assert not logs_in(node, "alice", "secret")
        results = await alter(
            node, upsertion("alice", password="new"), delete=(deletion("bob"), deletion("eve"))
        )
        assert set(results.values()) == {OK}
        assert await describe(node) == {"alice": {SHA_256: 4096}}
        assert logs_in(node, "alice", "new")


async def test_stored_items_hold_no_salted_password(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        one = upsertion("alice")
        await alter(node, one)
        for _, body in stored_items(tmp_path / "metadata.db").values():
            assert one["salted_password"].hex() not in body


async def test_store_that_is_away_is_told_for_each_user(tmp_path: Path) -> None:
    store, node = await one_node(tmp_path)
    await alter(node, upsertion("alice"))
    store.is_unreadable = True
    results = await alter(node, upsertion("bob"), delete=(deletion("alice"),))
    assert {code for code, _ in results.values()} == {ErrorCode.request_timed_out}
    assert set(results) == {"alice", "bob"}
    assert await describe(node) == {"alice": {SHA_256: 4096}}
    store.is_unreadable = False
    store.is_away_after_commit = True
    assert await alter(node, upsertion("bob")) == {"bob": OK}, "what was committed is done"
    await store.close()

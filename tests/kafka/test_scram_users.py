"""Credentials of users: the requests, and Kafka's tool that makes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kafka.compare import Pair, compared
from tests.support.peer import Peer
from tools import kafka_broker

SHA_256, SHA_512 = 1, 2


def upsertion(user: str, mechanism: int = SHA_256, iterations: int = 4096) -> dict[str, object]:
    return {
        "name": user,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt",
        "salted_password": hashlib.sha256(user.encode()).digest(),
    }


def deletion(user: str, mechanism: int = SHA_256) -> dict[str, object]:
    return {"name": user, "mechanism": mechanism}


def alter(
    peer: Peer, *upsertions: dict[str, object], delete: tuple[dict[str, object], ...] = ()
) -> Any:
    return peer.call(
        "alter_user_scram_credentials", 0, deletions=list(delete), upsertions=list(upsertions)
    )


def describe(peer: Peer, *users: str) -> Any:
    named = [{"name": user} for user in users]
    return peer.call("describe_user_scram_credentials", 0, users=named or None)


def settled(peer: Peer, expected_count: int) -> Any:
    """Return all users once there are so many: Kafka's broker follows its controller."""
    return peer.until(
        lambda: describe(peer), lambda answer: len(answer["results"]) == expected_count
    )


@compared
def test_users_are_created_changed_described_and_deleted(peer: Peer) -> Iterator[tuple[str, Any]]:
    """Each answer, with its codes and whether it has a message."""
    yield "none", describe(peer)
    yield "nothing", alter(peer)
    yield "created", alter(peer, upsertion("a"), upsertion("b", SHA_512, 16_384), upsertion("ë"))
    yield "all", settled(peer, 3)
    yield "second", alter(peer, upsertion("a", SHA_512, 8192))
    yield (
        "some",
        peer.until(
            lambda: describe(peer, "a", "b", "nobody"),
            lambda answer: sum(len(one["credential_infos"]) for one in answer["results"]) == 3,
        ),
    )
    yield "twice", describe(peer, "a", "b", "a", "nobody", "nobody")
    yield "deleted", alter(peer, delete=(deletion("a"), deletion("b", SHA_512), deletion("ë")))
    yield "left", settled(peer, 1)
    yield "last", alter(peer, delete=(deletion("a", SHA_512),))
    yield "gone", settled(peer, 0)


@compared
def test_alterations_that_are_refused(peer: Peer) -> Iterator[tuple[str, Any]]:
    """What is wrong first with a user counts, and the other users are altered."""
    alter(peer, upsertion("one"), upsertion("two"))
    settled(peer, 2)
    one, two = deletion("one"), deletion("two")
    yield "twice", alter(peer, upsertion("two"), upsertion("two", SHA_512), delete=(one, one))
    yield "both", alter(peer, upsertion("one"), upsertion("two"), delete=(one, two))
    yield "both mechanisms", alter(peer, delete=(one, deletion("one", SHA_512)))
    yield "thrice", alter(peer, upsertion("two"), upsertion("two"), upsertion("two"))
    yield "not there", alter(peer, upsertion("x"), delete=(deletion("x"), deletion("one", SHA_512)))
    yield "no name", alter(peer, upsertion(""), delete=(deletion(""), deletion("")))
    yield "no name, no mechanism", alter(peer, upsertion("", 9))
    yield "mechanisms", alter(peer, *(upsertion(f"m{n}", n) for n in (-1, 0, 3, 10)))
    yield "mechanisms of deletions", alter(peer, delete=(deletion("one", 0), deletion("two", 3)))
    numbers = (-1, 0, 4095, 16_385, 2**31 - 1)
    yield "iterations", alter(peer, *(upsertion(f"i{n}", iterations=n) for n in numbers))
    yield "one of them", alter(peer, upsertion("one", iterations=1), upsertion("two"))
    yield "no password", alter(peer, {**upsertion("two"), "salted_password": b""})
    yield "left", settled(peer, 2)
    yield "no salt", alter(peer, {**upsertion("one"), "salt": b""})
    alter(peer, delete=(one, two))
    settled(peer, 0)


@pytest.mark.slow  # JVMs; the requests that the tool sends are compared above
@pytest.mark.parametrize("name", ["tidelog", "kafka"])
def test_credentials_are_set_and_deleted_by_the_tool(pair: Pair, name: str) -> None:
    """``kafka-configs.sh``."""
    peer: Peer = getattr(pair, name)
    tool = (
        *("kafka.admin.ConfigCommand", "--bootstrap-server", f"127.0.0.1:{peer.port}"),
        *("--alter", "--entity-type", "users", "--entity-name", "by-tool"),
    )
    added = "SCRAM-SHA-256=[iterations=8192,password=secret]"
    kafka_broker.run_tool(*tool, "--add-config", added)
    found = peer.until(lambda: describe(peer, "by-tool"), lambda one: not _is_missing(one))
    assert found["results"][0]["credential_infos"] == [{"mechanism": SHA_256, "iterations": 8192}]
    kafka_broker.run_tool(*tool, "--delete-config", "SCRAM-SHA-256")
    peer.until(lambda: describe(peer, "by-tool"), _is_missing)


def _is_missing(answer: Any) -> bool:
    return bool(answer["results"][0]["error_code"] == "resource_not_found")

"""The requests that show and change clients' quotas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kafka.compare import Pair, compared
from tests.support.client_quotas import (
    ANY_NAME,
    DEFAULT_NAME,
    EXACT,
    alter_quotas,
    component,
    describe_quotas,
    op,
)
from tests.support.peer import Peer
from tools import kafka_broker


def alter(peer: Peer, *entries: Any, version: int = 1, **fields: object) -> Any:
    return by_entity(alter_quotas(peer, *entries, version=version, **fields))


def describe(peer: Peer, *components: Any, strict: bool = False, version: int = 1) -> Any:
    return by_entity(describe_quotas(peer, *components, strict=strict, version=version))


def by_entity(answer: Any) -> Any:
    """Return an answer with its entries and their parts in an order: Kafka's have none."""
    for entry in answer["entries"] or ():
        entry["entity"].sort(key=lambda part: part["entity_type"])
        if "values" in entry:
            entry["values"].sort(key=lambda value: value["key"])
    if answer["entries"]:
        answer["entries"].sort(key=lambda entry: str(entry["entity"]))
    return answer


def settled(peer: Peer, expected_count: int) -> Any:
    """Return all quotas once there are so many entities: Kafka's broker follows its controller."""
    return peer.until(
        lambda: describe(peer), lambda answer: len(answer["entries"]) == expected_count
    )


ENTITIES: list[dict[str, str | None]] = [
    {"user": "ann"},
    {"user": None},
    {"user": "ann", "client-id": "a"},
    {"user": "ann", "client-id": None},
    {"user": None, "client-id": "a"},
    {"user": None, "client-id": None},
    {"client-id": "a"},
    {"client-id": None},
    {"user": "CN=ann,O=«ü» %2"},
]
ADDRESSES: list[dict[str, str | None]] = [{"ip": "10.0.0.1"}, {"ip": None}, {"ip": "::1"}]


@compared
def test_quotas_are_set_described_changed_and_removed(peer: Peer) -> Iterator[tuple[str, Any]]:
    yield "none", describe(peer)
    yield "nothing", alter(peer)
    set_all = [
        *(
            (entity, [op("producer_byte_rate", 1e12), op("request_percentage", 10_000.5)])
            for entity in ENTITIES
        ),
        *((entity, [op("connection_creation_rate", 70_000)]) for entity in ADDRESSES),
    ]
    yield "validated", alter(peer, *set_all, validate_only=True)
    yield "still none", describe(peer)
    yield "set", alter(peer, *set_all)
    yield "all", settled(peer, len(set_all))
    yield "version 0", describe(peer, version=0)
    for kind in ("user", "client-id", "ip"):
        for strict in (False, True):
            for match in (ANY_NAME, DEFAULT_NAME, EXACT):
                name = {EXACT: {"user": "ann", "client-id": "a", "ip": "10.0.0.1"}[kind]}.get(match)
                one = component(kind, match, name)
                yield f"{kind} {match} {strict}", describe(peer, one, strict=strict)
    both = [component("user", ANY_NAME), component("client-id", EXACT, "a")]
    for strict in (False, True):
        yield f"both {strict}", describe(peer, *both, strict=strict)
    yield "strict, of nothing", describe(peer, strict=True)
    yield (
        "changed",
        alter(
            peer,
            ({"user": "ann"}, [op("producer_byte_rate", None), op("consumer_byte_rate", 2**62)]),
            ({"client-id": None}, [op("producer_byte_rate", None), op("request_percentage", None)]),
            ({"ip": "10.0.0.1"}, [op("connection_creation_rate", None)]),
            ({"user": "nobody"}, [op("controller_mutation_rate", None)]),
            ({"user": None}, []),
            version=0,
        ),
    )
    yield "left", settled(peer, len(set_all) - 2)
    yield (
        "removed",
        alter(
            peer,
            *((entity, [op(key, None) for key in CLIENT_KEYS]) for entity in ENTITIES),
            *((entity, [op("connection_creation_rate", None)]) for entity in ADDRESSES),
        ),
    )
    yield "gone", settled(peer, 0)


CLIENT_KEYS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
ANN: dict[str, str | None] = {"user": "ann"}
IP: dict[str, str | None] = {"ip": "10.0.0.1"}


@compared
def test_quotas_that_are_refused(peer: Peer) -> Iterator[tuple[str, Any]]:
    """Each with one that is right."""
    right = ({"user": "right"}, [op("producer_byte_rate", 5)])
    for label, wrong in {
        "no entity": ({}, [op("producer_byte_rate", 5)]),
        "empty user": ({"user": ""}, [op("producer_byte_rate", 5)]),
        "empty client": ({"client-id": ""}, [op("producer_byte_rate", 5)]),
        "type": ({"group": "g"}, [op("producer_byte_rate", 5)]),
        "empty type": ({"": "g"}, [op("producer_byte_rate", 5)]),
        "address and user": ({"ip": "10.0.0.1", "user": "a"}, [op("producer_byte_rate", 5)]),
        "address": ({"ip": "no.such.host.invalid"}, [op("connection_creation_rate", 5)]),
        "key": (ANN, [op("producer_byte_rates", 5)]),
        "key of an address": (ANN, [op("connection_creation_rate", 5)]),
        "key of a user": (IP, [op("producer_byte_rate", 5)]),
        "zero": (ANN, [op("producer_byte_rate", 0)]),
        "negative": (ANN, [op("request_percentage", -0.5)]),
        "fraction": (ANN, [op("producer_byte_rate", 5.5)]),
        "too large": (ANN, [op("consumer_byte_rate", 1e19)]),
        "too many connections": (IP, [op("connection_creation_rate", 2**31)]),
        "fraction of connections": (IP, [op("connection_creation_rate", 1.5)]),
        "one of two": (ANN, [op("producer_byte_rate", 5), op("request_percentage", 0)]),
        "a key twice": (ANN, [op("producer_byte_rate", 5), op("producer_byte_rate", 6)]),
        "removed unknown key": (ANN, [op("nonsense", None)]),
    }.items():
        yield label, alter(peer, wrong, right)
        yield f"{label}, version 0", alter(peer, wrong, version=0)
    yield "created", settled(peer, 1)
    yield "whole almost", alter(peer, (ANN, [op("producer_byte_rate", 5.0000001)]))
    alter(peer, ({"user": "right"}, [op("producer_byte_rate", None)]))
    alter(peer, (ANN, [op("producer_byte_rate", None)]))
    yield "gone", settled(peer, 0)


@compared
def test_filters_of_quotas_that_are_refused(peer: Peer) -> Iterator[tuple[str, Any]]:
    for label, components in {
        "type": [component("group", ANY_NAME)],
        "empty type": [component("", ANY_NAME)],
        "twice": [component("user", ANY_NAME), component("user", EXACT, "a")],
        "twice exact": [component("user", EXACT, "a"), component("user", EXACT, "a")],
        "match type": [component("user", 3)],
        "negative match type": [component("user", -1)],
        "no name": [component("user", EXACT)],
        "named default": [component("user", DEFAULT_NAME, "a")],
        "named any": [component("user", ANY_NAME, "a")],
        "address and user": [component("ip", ANY_NAME), component("user", ANY_NAME)],
        "address and client": [component("client-id", EXACT, "a"), component("ip", DEFAULT_NAME)],
    }.items():
        for version in (0, 1):
            yield f"{label}, version {version}", describe(peer, *components, version=version)
    yield "empty name", describe(peer, component("user", EXACT, ""))


@pytest.mark.slow  # JVMs; the requests that the tool sends are compared above
@pytest.mark.parametrize("name", ["tidelog", "kafka"])
def test_quotas_are_set_shown_and_deleted_by_the_tool(pair: Pair, name: str) -> None:
    """``kafka-configs.sh``. To show a user it asks for credentials too."""
    peer: Peer = getattr(pair, name)
    tool = ("kafka.admin.ConfigCommand", "--bootstrap-server", f"127.0.0.1:{peer.port}")
    user = ("--entity-type", "users", "--entity-name", "by-tool")
    kafka_broker.run_tool(*tool, "--alter", *user, "--add-config", "producer_byte_rate=1000000")
    settled(peer, 1)
    shown = kafka_broker.run_tool(*tool, "--describe", *user)
    assert "producer_byte_rate=1000000" in shown
    kafka_broker.run_tool(*tool, "--alter", *user, "--delete-config", "producer_byte_rate")
    settled(peer, 0)

"""Settings: what describes them, what changes them, what must not."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from tests.kafka.compare import compared
from tests.kafka.peer import Peer

Observations = Iterator[tuple[str, Any]]
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def described(peer: Peer, name: str, *, version: int = 4, **fields: Any) -> Any:
    """Return what DescribeConfigs says of a topic; synonyms have a case of their own."""
    resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}
    return peer.call("describe_configs", version, resources=[{**resource, **fields}])


def own(peer: Peer, name: str) -> dict[str, str]:
    """Return the settings that are the topic's own, after every change acknowledged so far.

    Kafka's broker follows its controller's log a little later than the controller answers;
    a topic created after the change is seen after the change.
    """
    if peer.name == "kafka":
        peer.create_topic(f"barrier-{uuid.uuid4().hex[:8]}")
    configs = described(peer, name)["results"][0]["configs"]
    return {c["name"]: c["value"] for c in configs if c["config_source"] == 1}


@compared
def test_topic_settings_are_described_in_every_version(peer: Peer) -> Observations:
    peer.create_topic("settings", retention_ms="5000", cleanup_policy="compact,delete")
    keys = ["retention.ms", "cleanup.policy", "segment.bytes", "compression.type", "preallocate"]
    for version in range(1, 5):
        yield (
            f"some {version}",
            described(peer, "settings", version=version, configuration_keys=keys),
        )
        yield (
            f"unknown key {version}",
            described(peer, "settings", version=version, configuration_keys=["no.such.key", ""]),
        )
        none = described(peer, "settings", version=version, configuration_keys=[])
        yield f"no keys are all keys {version}", len(none["results"][0]["configs"]) > 20
    answer = described(peer, "settings")["results"][0]
    yield "names", sorted(c["name"] for c in answer["configs"])
    yield "values", {c["name"]: c["value"] for c in answer["configs"]}
    yield "types", {c["name"]: c["config_type"] for c in answer["configs"]}
    yield "sources", {c["name"]: c["config_source"] for c in answer["configs"]}
    yield "read only", {c["name"]: c["read_only"] for c in answer["configs"]}
    yield "sensitive", {c["name"]: c["is_sensitive"] for c in answer["configs"]}


@compared
def test_synonyms_name_where_a_value_comes_from(peer: Peer) -> Observations:
    peer.create_topic("synonyms", retention_bytes="5000")
    for key in ("retention.bytes", "max.message.bytes", "compression.type", "segment.bytes"):
        resource = {
            "resource_type": TOPIC,
            "resource_name": "synonyms",
            "configuration_keys": [key],
        }
        for version in (1, 4):
            answer = peer.call(
                "describe_configs", version, resources=[resource], include_synonyms=True
            )
            yield f"{key} {version}", answer


@compared
def test_resources_that_are_not_there(peer: Peer) -> Observations:
    for resource_type, name in (
        (TOPIC, "nowhere"),
        (TOPIC, ""),
        (TOPIC, "a b"),
        (BROKER, "9"),
        (BROKER, "one"),
        (BROKER, "-1"),
        (BROKER_LOGGER, "9"),
        (0, "x"),
        (3, "x"),
        (99, "x"),
        (-1, "x"),
    ):
        resource = {
            "resource_type": resource_type,
            "resource_name": name,
            "configuration_keys": ["retention.ms"],
        }
        yield (
            f"describe {resource_type} {name}",
            peer.call("describe_configs", 4, resources=[resource]),
        )
        change = {
            "resource_type": resource_type,
            "resource_name": name,
            "configs": [{"name": "retention.ms", "config_operation": SET, "value": "1"}],
        }
        yield (
            f"alter {resource_type} {name}",
            peer.call("incremental_alter_configs", 1, resources=[change]),
        )
        replacement = {
            "resource_type": resource_type,
            "resource_name": name,
            "configs": [{"name": "retention.ms", "value": "1"}],
        }
        yield (
            f"replace {resource_type} {name}",
            peer.call("alter_configs", 2, resources=[replacement]),
        )
    yield (
        "nothing",
        [
            peer.call("describe_configs", 4, resources=[]),
            peer.call("incremental_alter_configs", 1, resources=[]),
            peer.call("alter_configs", 2, resources=[]),
        ],
    )
    peer.create_topic("described-twice")
    twice = {
        "resource_type": TOPIC,
        "resource_name": "described-twice",
        "configuration_keys": ["retention.ms"],
    }
    yield "twice", peer.call("describe_configs", 4, resources=[twice, twice])


def altered(peer: Peer, name: str, *changes: tuple[str, int, str | None], **fields: Any) -> Any:
    """Change a topic's settings; return the answer and what the topic has after it."""
    resource = {
        "resource_type": TOPIC,
        "resource_name": name,
        "configs": [
            {"name": key, "config_operation": operation, "value": value}
            for key, operation, value in changes
        ],
    }
    answer = peer.call("incremental_alter_configs", 1, resources=[resource], **fields)
    expected = own(peer, name)
    return {"answer": answer["responses"], "own": expected}


@compared
def test_incremental_changes(peer: Peer) -> Observations:
    peer.create_topic("changing")
    cases: dict[str, list[tuple[str, int, str | None]]] = {
        "set": [("retention.ms", SET, "1000")],
        "set another": [("segment.ms", SET, "5000")],
        "set null": [("retention.ms", SET, None)],
        "set unknown": [("no.such", SET, "1")],
        "set wrong": [("retention.ms", SET, "soon")],
        "set too small": [("retention.ms", SET, "-2")],
        "one good, one bad": [("retention.ms", SET, "2000"), ("segment.ms", SET, "x")],
        "same key twice": [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
        "delete": [("retention.ms", DELETE, None)],
        "delete again": [("retention.ms", DELETE, None)],
        "delete with a value": [("segment.ms", DELETE, "77")],
        "delete unknown": [("no.such", DELETE, None)],
        "append": [("cleanup.policy", APPEND, "compact")],
        "append again": [("cleanup.policy", APPEND, "compact")],
        "subtract": [("cleanup.policy", SUBTRACT, "compact")],
        "subtract what is not there": [("cleanup.policy", SUBTRACT, "compact")],
        "append wrong": [("cleanup.policy", APPEND, "burn")],
        "append null": [("cleanup.policy", APPEND, None)],
        "append to a number": [("retention.ms", APPEND, "1")],
        "subtract from a string": [("compression.type", SUBTRACT, "gzip")],
        "append two": [("cleanup.policy", APPEND, "compact,delete")],
        "subtract all": [("cleanup.policy", SUBTRACT, "compact,delete")],
        "unknown operation": [("retention.ms", 4, "1")],
        "negative operation": [("retention.ms", -1, "1")],
        "empty key": [("", SET, "1")],
        "nothing": [],
        "set empty": [("cleanup.policy", SET, "")],
        "set spaces": [("cleanup.policy", SET, " delete , compact ")],
        "set case": [("message.timestamp.type", SET, "logappendtime")],
        "set codec": [("compression.type", SET, "GZIP")],
        "set boolean": [("preallocate", SET, "TRUE")],
        "set huge": [("retention.bytes", SET, "99999999999999999999")],
        "set hex": [("retention.bytes", SET, "0x10")],
        "set underscore": [("retention.bytes", SET, "1_000")],
        "set plus": [("retention.bytes", SET, "+10")],
        "set float": [("min.cleanable.dirty.ratio", SET, "0.25")],
    }
    for label, changes in cases.items():
        yield label, altered(peer, "changing", *changes)
    peer.create_topic("bolder")
    yield "nan", altered(peer, "bolder", ("min.cleanable.dirty.ratio", SET, "NaN"))
    peer.create_topic("tiered")
    yield "local over total", altered(peer, "tiered", ("local.retention.ms", SET, "99999999999"))
    yield "validate", altered(peer, "changing", ("segment.ms", SET, "1234"), validate_only=True)
    yield "validate wrong", altered(peer, "changing", ("segment.ms", SET, "x"), validate_only=True)


@compared
def test_one_topic_may_be_changed_once_in_a_request(peer: Peer) -> Observations:
    peer.create_topic("change-twice")
    peer.create_topic("change-once")

    def change(name: str, value: str) -> dict[str, Any]:
        return {
            "resource_type": TOPIC,
            "resource_name": name,
            "configs": [{"name": "retention.ms", "config_operation": SET, "value": value}],
        }

    yield (
        "twice",
        peer.call(
            "incremental_alter_configs",
            1,
            resources=[
                change("change-twice", "1"),
                change("change-once", "2"),
                change("change-twice", "3"),
            ],
        ),
    )
    yield "after", [own(peer, "change-twice"), own(peer, "change-once")]


@compared
def test_replacing_all_settings(peer: Peer) -> Observations:
    peer.create_topic("replaced", retention_ms="1", segment_ms="2")

    def replaced(*configs: tuple[str, str | None], version: int = 2, **fields: Any) -> Any:
        resource = {
            "resource_type": TOPIC,
            "resource_name": "replaced",
            "configs": [{"name": key, "value": value} for key, value in configs],
        }
        answer = peer.call("alter_configs", version, resources=[resource], **fields)
        return {"answer": answer["responses"], "own": own(peer, "replaced")}

    yield "validate", replaced(("retention.ms", "5"), validate_only=True)
    for version in (0, 1, 2):
        yield f"version {version}", replaced(("retention.ms", f"5{version}"), version=version)
    yield "wrong", replaced(("retention.ms", "x"))
    yield "unknown", replaced(("no.such", "1"))
    yield "null", replaced(("retention.ms", None))
    yield "twice", replaced(("retention.ms", "1"), ("retention.ms", "2"))
    yield "nothing", replaced()

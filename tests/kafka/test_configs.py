"""Settings: what describes them, what changes them, what must not."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from tests.kafka.compare import compared
from tests.support.peer import Peer

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


def group_resource(name: str, *changes: tuple[str, int, str | None]) -> dict[str, Any]:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in changes]
    return {"resource_type": GROUP, "resource_name": name, "configs": configs}


def group_settings(peer: Peer, name: str, *, version: int = 4) -> Any:
    """Return what DescribeConfigs says of a group, by setting, after every change so far."""
    if peer.name == "kafka":
        peer.create_topic(f"barrier-{uuid.uuid4().hex[:8]}")
    resource = {"resource_type": GROUP, "resource_name": name, "configuration_keys": None}
    answer = peer.call("describe_configs", version, resources=[resource], include_synonyms=True)[
        "results"
    ][0]
    return {c["name"]: c for c in answer["configs"]} or answer


@compared
def test_group_settings_are_described(peer: Peer) -> Observations:
    change = group_resource("described", ("consumer.session.timeout.ms", SET, "50000"))
    yield "altered", peer.call("incremental_alter_configs", 1, resources=[change])
    yield "names", sorted(group_settings(peer, "described"))
    for version in range(1, 5):
        yield f"described {version}", group_settings(peer, "described", version=version)
    yield "no such group", group_settings(peer, "nobody")["share.isolation.level"]
    yield "no name", group_settings(peer, "")


@compared
def test_changing_group_settings(peer: Peer) -> Observations:
    """A group's settings may be set before there is a group."""
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    reset, isolation = "share.auto.offset.reset", "share.isolation.level"
    lock = "share.record.lock.duration.ms"
    cases: dict[str, list[tuple[str, int, str | None]]] = {
        "nothing": [],
        "set": [(session, SET, "50000")],
        "set spaces": [(session, SET, " 55000 ")],
        "set null": [(session, SET, None)],
        "set unknown": [("retention.ms", SET, "1")],
        "delete unknown": [("retention.ms", DELETE, None)],
        "twice": [(session, SET, "50000"), (session, SET, "51000")],
        "append": [(isolation, APPEND, "read_committed")],
        "unknown operation": [(session, 9, "50000")],
        "one good, one bad": [(heartbeat, SET, "6000"), (session, SET, "x")],
        "both": [(heartbeat, SET, "6000"), (session, SET, "51000")],
        "delete": [(session, DELETE, None)],
        **{
            f"{name} {value}": [(name, SET, value)]
            for name, values in {
                session: ("0", "1", "44999", "45000", "60000", "60001", "1_0", "", "5000000000000"),
                heartbeat: ("4999", "5000", "15000", "15001"),
                "share.session.timeout.ms": ("44999", "60000", "60001"),
                "share.heartbeat.interval.ms": ("4999", "15000", "15001"),
                lock: ("999", "14999", "15000", "60000", "60001"),
                isolation: ("read_committed", "READ_COMMITTED", ""),
                reset: (
                    *("earliest", " latest ", "EARLIEST", "none", "", "by_duration:PT1H"),
                    *("by_duration:-PT1H", "by_duration:PT1H-30M", "by_duration:P1Y"),
                    *("by_duration:P1W", "by_duration:pt0s", "by_duration:P", "by_duration:P1DT"),
                    *("by_duration:P2DT3H4M5.5S", "by_duration:-PT-1M", "by_duration:PT.5S"),
                ),
            }.items()
            for value in values
        },
    }
    for label, changes in cases.items():
        answer = peer.call(
            "incremental_alter_configs", 1, resources=[group_resource("changed", *changes)]
        )
        yield label, {"answer": answer["responses"]}
    own = group_settings(peer, "changed")
    yield "after", {name: c["value"] for name, c in own.items() if c["config_source"] == 8}
    for name in ("", "g 2 é", "x" * 300):
        change = group_resource(name, (session, SET, "50000"))
        yield f"named {name}", peer.call("incremental_alter_configs", 1, resources=[change])
    for label, configs in {
        "replaced": [{"name": heartbeat, "value": "7000"}],
        "replaced by null": [{"name": heartbeat, "value": None}],
        "replaced by a wrong one": [{"name": heartbeat, "value": "1"}],
    }.items():
        resource = {"resource_type": GROUP, "resource_name": "changed", "configs": configs}
        yield label, peer.call("alter_configs", 2, resources=[resource])
    own = group_settings(peer, "changed")
    yield "in the end", {name: c["value"] for name, c in own.items() if c["config_source"] == 8}


@compared
def test_resources_with_settings_are_listed(peer: Peer) -> Observations:
    name = "listed-group"
    change = group_resource(name, ("share.isolation.level", SET, "read_committed"))
    peer.call("incremental_alter_configs", 1, resources=[change])
    peer.create_topic("listed-topic")

    def listed(*types: int, version: int = 1) -> Any:
        fields = {} if version == 0 else {"resource_types": list(types)}
        answer = peer.call("list_config_resources", version, **fields)
        kept = [
            resource
            for resource in answer["config_resources"]
            if resource["resource_name"] in ("1", name, "listed-topic")
            and resource["resource_type"] != BROKER_LOGGER  # Tidelog shows none
        ]
        kept.sort(key=lambda resource: resource["resource_type"])
        return {**answer, "config_resources": kept}

    yield "before there were types", listed(version=0)
    yield "all", listed()
    for types in ((GROUP,), (TOPIC,), (BROKER,), (CLIENT_METRICS,), (GROUP, TOPIC), (GROUP, GROUP)):
        yield f"{types}", listed(*types)
    for types in ((0,), (99,), (GROUP, 99), (-1,)):
        yield f"unknown {types}", listed(*types)


@compared
def test_where_clients_find_the_broker(peer: Peer) -> Observations:
    for version in range(1, 5):
        answer = described(
            peer,
            str(peer.call("metadata", 12, topics=[])["brokers"][0]["node_id"]),
            version=version,
            resource_type=BROKER,
            configuration_keys=["advertised.listeners"],
        )
        (config,) = answer["results"][0]["configs"]
        first, *_ = config.pop("value").split(",")  # Tidelog has one more, for nodes.
        yield f"value {version}", first == f"PLAINTEXT://127.0.0.1:{peer.port}"
        yield f"entry {version}", config

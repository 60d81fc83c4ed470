"""Subscriptions to the metrics of clients (KIP-714): their settings."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kafka.compare import Pair, compared
from tests.kafka.test_tools import run
from tests.support.peer import Peer

pytestmark = pytest.mark.slow  # a broker of its own; make test-kafka

Observations = Iterator[tuple[str, Any]]
CLIENT_METRICS = 16
TOOL = "ClientMetricsCommand"
OF_SUBSCRIPTION = 7
SET, DELETE, APPEND, SUBTRACT = range(4)
METRICS, INTERVAL, MATCH = "metrics", "interval.ms", "match"


def subscription(name: str, *changes: tuple[str, int, str | None]) -> dict[str, Any]:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in changes]
    return {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}


def described(peer: Peer, name: str, *, version: int = 4) -> Any:
    """Return what DescribeConfigs says of a subscription, after every change so far."""
    if peer.name == "kafka":
        peer.create_topic(f"barrier-{uuid.uuid4().hex[:8]}")
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configuration_keys": None}
    answer = peer.call("describe_configs", version, resources=[resource], include_synonyms=True)
    (result,) = answer["results"]
    return {c["name"]: c for c in result["configs"]} or result


def delete(peer: Peer, name: str) -> None:
    """Delete a subscription, so that it is none of other tests' clients."""
    gone = subscription(name, *((key, DELETE, None) for key in (METRICS, INTERVAL, MATCH)))
    peer.call("incremental_alter_configs", 1, resources=[gone])


def own(peer: Peer, name: str) -> Any:
    found = described(peer, name)
    return {key: c["value"] for key, c in found.items() if c["config_source"] == OF_SUBSCRIPTION}


@compared
def test_subscriptions_are_described(peer: Peer) -> Observations:
    change = subscription("described", (INTERVAL, SET, "5000"), (METRICS, SET, "a.,b."))
    yield "altered", peer.call("incremental_alter_configs", 1, resources=[change])
    for version in range(1, 5):
        yield f"described {version}", described(peer, "described", version=version)
    delete(peer, "described")
    yield "no such subscription", described(peer, "nobody's")
    yield "no name", described(peer, "")


@compared
def test_changing_subscriptions(peer: Peer) -> Observations:
    cases: dict[str, list[tuple[str, int, str | None]]] = {
        "nothing": [],
        "set": [(INTERVAL, SET, "50000")],
        "set null": [(INTERVAL, SET, None)],
        "set unknown": [("retention.ms", SET, "1")],
        "delete unknown": [("retention.ms", DELETE, None)],
        "twice": [(INTERVAL, SET, "50000"), (INTERVAL, SET, "51000")],
        "append to a number": [(INTERVAL, APPEND, "1")],
        "unknown operation": [(INTERVAL, 9, "50000")],
        "one good, one bad": [(INTERVAL, SET, "6000"), (MATCH, SET, "x")],
        "metrics": [(METRICS, SET, "a.,b.")],
        "append": [(METRICS, APPEND, "c.,a.")],
        "subtract": [(METRICS, SUBTRACT, "b.")],
        "append a pattern": [(MATCH, APPEND, "client_id=b.*")],
        "no metrics": [(METRICS, SET, "")],
        **{
            f"{name} {value}": [(name, SET, value)]
            for name, values in {
                INTERVAL: ("-1", "0", "99", "100", "3600000", "3600001", "x", "", "5000000000000"),
                METRICS: ("*", "org.apache.kafka.producer.", "a b"),
                MATCH: (
                    *("client_id=a", "client_id = a , client_software_name=b", "client_id=", "=a"),
                    *("nothing=a", "client_id=a=b", "client_id", "client_id=[", "client_id=a|b"),
                    *("client_source_port=9.*", "client_source_address=127.0.0.1", "CLIENT_ID=a"),
                    *("client_instance_id=.*", "client_software_version=1\\.2", "client_id=a,"),
                ),
            }.items()
            for value in values
        },
    }
    for label, changes in cases.items():
        answer = peer.call(
            "incremental_alter_configs", 1, resources=[subscription("changed", *changes)]
        )
        yield label, {"answer": answer["responses"]}
    yield "after", own(peer, "changed")
    for name in ("", "g 2 é", "x" * 300):
        change = subscription(name, (INTERVAL, SET, "50000"))
        yield f"named {name}", peer.call("incremental_alter_configs", 1, resources=[change])
    for label, configs in {
        "replaced": [{"name": INTERVAL, "value": "7000"}],
        "replaced by null": [{"name": INTERVAL, "value": None}],
        "replaced by a wrong one": [{"name": INTERVAL, "value": "1"}],
    }.items():
        resource = {
            "resource_type": CLIENT_METRICS,
            "resource_name": "changed",
            "configs": configs,
        }
        yield label, peer.call("alter_configs", 2, resources=[resource])
    yield "in the end", own(peer, "changed")
    for name in ("changed", "g 2 é", "x" * 300):
        delete(peer, name)


@compared
def test_subscriptions_are_listed_while_they_have_settings(peer: Peer) -> Observations:
    def listed(version: int) -> Any:
        if peer.name == "kafka":
            peer.create_topic(f"barrier-{uuid.uuid4().hex[:8]}")
        types = {} if version == 0 else {"resource_types": [CLIENT_METRICS]}
        answer = peer.call("list_config_resources", version, **types)
        kept = [one for one in answer["config_resources"] if "listed" in one["resource_name"]]
        return {**answer, "config_resources": kept}

    change = subscription("listed", (METRICS, SET, "*"))
    yield "made", peer.call("incremental_alter_configs", 1, resources=[change])
    for version in (0, 1):
        yield f"listed {version}", listed(version)
    gone = subscription("listed", (METRICS, DELETE, None))
    yield "deleted", peer.call("incremental_alter_configs", 1, resources=[gone])
    for version in (0, 1):
        yield f"not listed {version}", listed(version)


@pytest.mark.slow  # six JVMs
@pytest.mark.parametrize("name", ["tidelog", "kafka"])
def test_subscriptions_by_the_tool(pair: Pair, name: str) -> None:
    """``kafka-client-metrics.sh``: the same commands, and the same that is expected of them."""
    peer: Peer = getattr(pair, name)
    subscription_name = ("--name", "by-tool")
    settings = ("--metrics", "a.,b.", "--interval", "5000", "--match", "client_id=c.*")
    assert "Altered" in run(peer, TOOL, "--alter", *subscription_name, *settings)
    described(peer, "by-tool")
    assert "by-tool" in run(peer, TOOL, "--list").split()
    shown = run(peer, TOOL, "--describe", *subscription_name)
    assert "interval.ms=5000" in shown
    assert "match=client_id=c.*" in shown
    assert "metrics=a.,b." in shown
    assert "Deleted" in run(peer, TOOL, "--delete", *subscription_name)
    described(peer, "by-tool")
    assert "by-tool" not in run(peer, TOOL, "--list").split()

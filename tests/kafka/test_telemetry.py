"""GetTelemetrySubscriptions and PushTelemetry: Kafka's broker with a receiver, and Tidelog's node."""

from __future__ import annotations

import gzip
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

from tidelog_core.records.codecs import CompressionType, compress

from tests.kafka.compare import compared
from tests.kafka.test_client_metrics import described
from tests.support import client_metrics
from tests.support.client_metrics import NO_ID, ask
from tests.support.otlp_receiver import metrics_data
from tests.support.peer import Peer

Observations = Iterator[tuple[str, Any]]
BYTES_MAX = 10_000  # telemetry.max.bytes of both
DATA = metrics_data("m")


def another(peer: Peer, client_id: str) -> AbstractContextManager[Peer]:
    """Give another client of the same broker."""
    return closing(Peer(peer.name, peer.port, client_id=client_id.encode()))


def subscribe(peer: Peer, name: str, **settings: str) -> None:
    client_metrics.subscribe(peer, name, **settings)
    described(peer, name)  # once Kafka's broker has seen it


def push(peer: Peer, asked: Any, metrics: bytes = DATA, **fields: Any) -> Any:
    return client_metrics.push(peer, asked, metrics, **fields)


def ask_as(peer: Peer, client_id: str, instance_id: uuid.UUID = NO_ID) -> Any:
    with another(peer, client_id) as client:
        return ask(client, instance_id)


def shown(answer: Any) -> Any:
    """Return an answer to a question without what is random."""
    names = sorted(answer["requested_metrics"])
    given = answer["client_instance_id"] not in (None, NO_ID)
    return {
        **answer,
        "client_instance_id": given,
        "subscription_id": bool(answer["subscription_id"]),
        "requested_metrics": names,
    }


@compared
def test_what_clients_are_asked_for(peer: Peer) -> Observations:
    yield "nothing", shown(ask_as(peer, "nobody's"))
    subscribe(peer, "one", metrics="a.,b.", interval_ms="5000", match="client_id=asked.*")
    yield "one", shown(ask_as(peer, "asked"))
    yield "not another", shown(ask_as(peer, "was asked"))
    subscribe(peer, "two", metrics="b.,c.", interval_ms="2000", match="client_id=asked too")
    yield "two", shown(ask_as(peer, "asked too"))
    subscribe(peer, "all", metrics="*", match="client_id=asked all,client_source_address=127.*")
    yield "all", shown(ask_as(peer, "asked all"))
    subscribe(peer, "software", metrics="s.", match="client_software_name=apache.*")
    yield "no software", shown(ask_as(peer, "without a name"))
    # One metric, so that the order of a hash table does not matter.
    subscribe(peer, "fixed", metrics="only.", interval_ms="3000", match="client_id=fixed")
    for number in (2, 2**31, 2**63 + 12345, 2**127 + 2**64 + 2**32 + 99, 2**128 - 1):
        answer = ask_as(peer, "fixed", uuid.UUID(int=number))
        yield f"subscription of {number}", answer["subscription_id"]


@compared
def test_when_clients_have_to_wait(peer: Peer) -> Observations:
    subscribe(peer, "slow", metrics="t.", interval_ms="60000", match="client_id=slow")
    with another(peer, "slow") as client:
        asked = ask(client)
        instance_id = asked["client_instance_id"]
        yield "asks twice", shown(ask(client, instance_id))
        yield "pushes at once", push(client, asked)
        yield "pushes twice", push(client, asked)
        yield "asks after it pushed", shown(ask(client, instance_id))
        yield "its last push need not wait", push(client, asked, terminating=True)
        yield "none after it", push(client, asked)
        yield "after the refusal it may", push(client, asked, terminating=True)


@compared
def test_when_clients_have_waited(peer: Peer) -> Observations:
    subscribe(peer, "quick", metrics="t.", interval_ms="100", match="client_id=quick")
    with another(peer, "quick") as client:
        asked = ask(client)
        instance_id = asked["client_instance_id"]
        yield "pushes at once", push(client, asked)
        time.sleep(0.15)
        yield "pushes an interval later", push(client, asked)
        time.sleep(0.15)
        yield "asks an interval later", shown(ask(client, instance_id))
        yield "pushes after it asked", push(client, asked)
        yield "its last one", push(client, asked, terminating=True)
        time.sleep(0.15)
        yield "asks after its end", shown(ask(client, instance_id))


@compared
def test_pushes_that_are_refused(peer: Peer) -> Observations:
    subscribe(peer, "refusals", metrics="r.", interval_ms="60000", match="client_id=refused")
    cases: dict[str, dict[str, Any]] = {
        "no id": {"client_instance_id": NO_ID},
        "reserved id": {"client_instance_id": uuid.UUID(int=1)},
        "unknown id": {"client_instance_id": uuid.UUID(int=77)},
        "another subscription": {"subscription_id": 5},
        "unknown codec": {"compression_type": 5},
        "negative codec": {"compression_type": -1},
        "too large": {"metrics": bytes(BYTES_MAX + 1)},
        "too large and unknown codec": {"metrics": bytes(BYTES_MAX + 1), "compression_type": 9},
        "no gzip": {"compression_type": 1},
        "cut gzip": {"compression_type": 1, "metrics": gzip.compress(DATA)[:-9]},
        "no metrics": {"metrics": b""},
        "no metrics, in gzip": {"metrics": b"", "compression_type": 1},
        **{
            f"by {codec.name}": {
                "compression_type": int(codec),
                "metrics": compress(codec, DATA),
            }
            for codec in CompressionType
        },
    }
    for label, fields in cases.items():
        with another(peer, "refused") as client:
            asked = ask(client)
            yield label, push(client, asked, **fields)
            yield f"{label}, asked again", shown(ask(client, asked["client_instance_id"]))


@compared
def test_a_subscription_that_changes_is_asked_for_at_once(peer: Peer) -> Observations:
    subscribe(peer, "change", metrics="c.", interval_ms="60000", match="client_id=changing")
    with another(peer, "changing") as client:
        asked = ask(client)
        yield "first", push(client, asked)
        subscribe(peer, "change", metrics="c.,d.", interval_ms="60000")
        yield "by the old one", push(client, asked)
        again = ask(client, asked["client_instance_id"])
        yield "asked", shown(again)
        yield "by the new one", push(client, again)


@compared
def test_a_client_is_forgotten_when_its_connection_ends(peer: Peer) -> Observations:
    subscribe(peer, "ends", metrics="e.", interval_ms="60000", match="client_id=ending")
    instance_id = ask_as(peer, "ending")["client_instance_id"]
    with another(peer, "ending") as client:
        deadline = time.monotonic() + 60
        while (answer := ask(client, instance_id))["error_code"] != "none":
            assert time.monotonic() < deadline
        yield "asks from another connection", shown(answer)
        yield "asks from a second one", shown(ask_as(peer, "ending", instance_id))

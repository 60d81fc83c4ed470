"""Where the listeners of a broker are reached."""

from __future__ import annotations

from uuid import UUID

import pytest
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.endpoints import BrokerEndpoint, plaintext_endpoints
from tidelog_core.metadata.records import Broker, broker_key
from tidelog_core.metadata.store import Item, JsonValue

ID = UUID(int=7)
CLIENTS = BrokerEndpoint("CLIENTS", "h", 9092)
NODE = BrokerEndpoint("NODE", "::1", 9093)


def broker(*endpoints: BrokerEndpoint) -> Broker:
    return Broker(broker_id=1, incarnation=ID, endpoints=endpoints)


def test_a_broker_is_reached_at_the_endpoint_of_the_listener() -> None:
    both = broker(CLIENTS, NODE)
    assert both.endpoint == both.endpoint_of("CLIENTS") == CLIENTS
    assert both.endpoint_of("NODE") == NODE
    assert both.endpoint_of("PLAINTEXT") is None


def test_an_endpoint_shows_as_an_address() -> None:
    assert [str(CLIENTS), str(NODE)] == ["h:9092", "[::1]:9093"]


def test_a_broker_without_named_listeners_is_stored_as_before_there_were_any() -> None:
    body = broker(*plaintext_endpoints("h", 1)).to_body()
    assert (body["host"], body["port"]) == ("h", 1)
    assert "endpoints" not in body


def test_one_listener_of_another_name_keeps_its_name() -> None:
    body = broker(NODE).to_body()
    assert "host" not in body
    assert Broker.from_item(Item(broker_key(1), 3, body)) == broker(NODE)


@pytest.mark.parametrize(
    "endpoints",
    [
        [],
        "CLIENTS",
        ["CLIENTS"],
        [{"listener": "CLIENTS", "host": "h"}],
        [{"listener": "CLIENTS", "host": "h", "port": 1, "protocol": "SSL"}],
        [{"listener": "", "host": "h", "port": 1}],
        [{"listener": "CLIENTS", "host": None, "port": 1}],
        [{"listener": "CLIENTS", "host": "h", "port": True}],
        [{"listener": "CLIENTS", "host": "h", "port": -1}],
        [{"listener": "CLIENTS", "host": "h", "port": 65_536}],
        [{"listener": "CLIENTS", "host": "h", "port": 2**63}],
        [{"listener": "CLIENTS", "host": "h", "port": 1}] * 2,
    ],
)
def test_an_item_with_broken_endpoints_is_refused(endpoints: JsonValue) -> None:
    body: dict[str, JsonValue] = {"broker_id": 1, "incarnation": str(ID), "rack": None}
    with pytest.raises(CorruptItem, match="endpoints"):
        Broker.from_item(Item(broker_key(1), 3, body | {"endpoints": endpoints}))


def test_an_item_with_an_address_and_endpoints_is_refused() -> None:
    body: dict[str, JsonValue] = dict(broker(CLIENTS).to_body())
    with pytest.raises(CorruptItem, match="host"):
        Broker.from_item(Item(broker_key(1), 3, body | {"host": "h", "port": 1}))

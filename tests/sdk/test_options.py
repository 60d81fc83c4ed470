"""Options are checked before anything is sent, all problems together."""

from __future__ import annotations

from dataclasses import fields

import pytest
from tidelog import Admin, Consumer, Producer
from tidelog.errors import InvalidConfig, InvalidRequest
from tidelog.options import ClientOptions, ClientSettings, parse_bootstrap
from tidelog.wire.backoff import Backoff
from tidelog.wire.connection import Address


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(InvalidConfig) as caught:
        Producer("localhost", linger_ms=-1, batch_size_bytes=0, request_timeout_ms=0)
    assert len(caught.value.problems) == 3


def test_idempotence_names_what_rules_it_out() -> None:
    with pytest.raises(InvalidConfig) as caught:
        Producer("localhost", acks=1, max_in_flight=6, retries=0, enable_idempotence=True)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"acks": 2},
        {"compression": "zip"},
        {"partitioner": "random"},
        {"delivery_timeout_ms": 100},
        {"retries": -1},
    ],
)
def test_producer_refuses(options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        Producer("localhost", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"auto_offset_reset": "first"},
        {"isolation_level": "serializable"},
        {"assignors": "fair"},
        {"assignors": ()},
        {"assignors": ("range", "cooperative-sticky")},
        {"heartbeat_interval_ms": 50_000},
        {"group_id": ""},
        {"group_instance_id": "a"},
        {"max_poll_records": 0},
    ],
)
def test_consumer_refuses(options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        Consumer("localhost", **options)  # type: ignore[arg-type]


def test_subscribing_needs_a_group() -> None:
    with pytest.raises(InvalidRequest, match="group_id"):
        Consumer("localhost", topics=["t"])


@pytest.mark.parametrize("servers", ["", [], "host:port", "host:0", "host:70000", "[::1", ":9092"])
def test_bootstrap_servers_that_are_none_are_refused(servers: str | list[str]) -> None:
    with pytest.raises(InvalidConfig):
        Admin(servers)


def test_bootstrap_servers_in_every_form() -> None:
    assert parse_bootstrap("a:1, b:2,c") == (("a", 1), ("b", 2), ("c", 9092))
    assert parse_bootstrap(["[::1]:5", "[::1]"]) == (("::1", 5), ("::1", 9092))
    assert str(Address("::1", 5)) == "[::1]:5"


def test_waits_double_up_to_the_longest_and_start_over_after_success() -> None:
    backoff = Backoff(100, 1_000, uniform=lambda low, high: 1.0)
    assert [backoff.next_s() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.next_s() == 0.1
    backoff.failure_count = 10_000
    assert backoff.next_s() == 1.0


def test_every_client_can_be_told_each_of_the_options_that_clients_share() -> None:
    names = {field.name for field in fields(ClientOptions)}
    assert set(ClientSettings.__annotations__) == names - {"bootstrap"}


@pytest.mark.parametrize("client", [Admin, Consumer, Producer])
def test_an_option_that_is_not_known_is_named(client: type[Admin | Consumer | Producer]) -> None:
    with pytest.raises(TypeError, match="requst_timeout_ms"):
        client("localhost:1", requst_timeout_ms=1)

"""Options are checked before anything is sent, all problems together."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from tidelog import Admin, Consumer, Producer, scan_arrow
from tidelog.errors import InvalidConfig, InvalidRequest
from tidelog.options import ClientOptions, ClientSettings, parse_bootstrap
from tidelog.wire.backoff import Backoff
from tidelog.wire.connection import Address

from tests.sdk.scripted_node import TOPIC, ScriptedNode


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


@pytest.mark.parametrize("name", ["request_timeout_ms", "timeout_ms"])
def test_a_time_that_nodes_are_told_has_32_bits(name: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        Admin("localhost", **{name: 2**31})  # type: ignore[arg-type]


async def test_a_producer_may_wait_for_ever_as_kafkas_do() -> None:
    """Kafka's own programs have this ``max.block.ms``."""
    for_ever = 2**63 - 1
    async with ScriptedNode() as node:
        producer = Producer(
            node.address,
            max_block_ms=for_ever,
            metadata_max_age_ms=for_ever,
            retry_backoff_max_ms=for_ever,
            reconnect_backoff_max_ms=for_ever,
        )
        async with producer:
            await producer.send_and_wait(TOPIC, b"v")


def test_values_of_other_types_are_reported_together() -> None:
    """As they come out of the environment: a comparison with a text raised a ``TypeError``."""
    with pytest.raises(InvalidConfig) as caught:
        Producer("localhost", linger_ms="5", batch_size_bytes=None, request_timeout_ms="300")  # type: ignore[arg-type]
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("value", ["300", None, True, float("nan"), float("inf"), 2**63, 10**30])
@pytest.mark.parametrize("name", ["request_timeout_ms", "metadata_max_age_ms", "timeout_ms"])
def test_a_time_is_a_number_that_clocks_can_wait_for(name: str, value: object) -> None:
    """A timer that is no number is out of order in every event loop."""
    with pytest.raises(InvalidConfig, match=name):
        Admin("localhost", **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"enable_auto_commit": "false"},
        {"enable_auto_commit": None},
        {"check_crcs": 0},
        {"max_poll_records": "500"},
        {"max_poll_records": 2.5},
        {"fetch_max_wait_ms": "100"},
        {"group_id": 5},
        {"rack": b"a"},
    ],
)
def test_a_text_is_not_taken_for_a_flag_or_a_number(options: dict[str, object]) -> None:
    """``"false"`` committed, because a text that is not empty is true."""
    with pytest.raises(InvalidConfig, match=f"{next(iter(options))} must be"):
        Consumer("localhost", **options)  # type: ignore[arg-type]


def test_numbers_may_be_any_kind_of_integer_and_times_have_fractions() -> None:
    Producer("localhost", linger_ms=np.int64(5), batch_size_bytes=np.int32(1_000))  # type: ignore[arg-type]
    Admin("localhost", timeout_ms=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("servers", [None, 5, b"h:1", ["h:1", None], [("h", 1)], [b"h:1"]])
def test_servers_that_are_no_texts_are_refused(servers: object) -> None:
    with pytest.raises(InvalidConfig, match="bootstrap"):
        Admin(servers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("client", "name", "instead"),
    [
        (Producer, "compression_type", "compression"),
        (Producer, "compression.type", "compression"),
        (Producer, "linger.ms", "linger_ms"),
        (Producer, "value_serializer", "values are bytes: encode them"),
        (Consumer, "auto_offset_rest", "auto_offset_reset"),
        (Consumer, "group.id", "group_id"),
        (Consumer, "consumer_timeout_ms", "poll(timeout_ms=…)"),
        (Producer, "message.timeout.ms", "delivery_timeout_ms"),
        (Admin, "security_protocol", "ssl=ssl.create_default_context(), sasl=Sasl(…)"),
        (Admin, "request_timeout", "request_timeout_ms"),
        (scan_arrow, "isolation.level", "isolation_level"),
    ],
)
def test_the_error_of_an_option_of_another_client_names_the_one_here(
    client: Any, name: str, instead: str
) -> None:
    given: dict[str, Any] = {"bootstrap_servers": "localhost:1", name: 1}
    with pytest.raises(TypeError) as caught:
        client(*(["orders"] if client is scan_arrow else []), **given)
    assert str(caught.value) == f"{client.__name__} has no option {name!r}; here it is: {instead}"


def test_an_option_like_no_other_is_named_alone() -> None:
    with pytest.raises(TypeError, match=r"^Admin has no option 'zzz'$"):
        Admin("localhost:1", zzz=1)  # type: ignore[call-arg]


def test_options_in_a_dict_are_not_taken_for_servers() -> None:
    """As confluent-kafka has them: its names were looked up as hosts."""
    given: Any = {"bootstrap.servers": "localhost:1"}
    for client in (Producer, Consumer, Admin):
        with pytest.raises(InvalidConfig, match="not of type dict; each other option is an arg"):
            client(given)


def test_security_of_other_types_is_refused_without_showing_a_secret() -> None:
    wrong: dict[str, Any] = {"ssl": True, "sasl": ("PLAIN", "alice", "secret")}
    with pytest.raises(InvalidConfig) as caught:
        Admin("localhost:1", **wrong)
    assert [problem.split(",")[0] for problem in caught.value.problems] == [
        "ssl must be an ssl.SSLContext",
        "sasl must be a Sasl or SaslToken",
    ]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"compression": "gzip", "compression_level": 99},
            "compression_level of gzip must be 1 to 9",
        ),
        ({"compression": "zstd", "compression_level": 23}, "compression_level of zstd must be"),
        ({"compression": "snappy", "compression_level": 1}, "snappy has no compression_level"),
    ],
)
def test_a_level_that_its_codec_does_not_have_is_refused(
    options: dict[str, Any], problem: str
) -> None:
    """Every record failed, once it was to be sent."""
    with pytest.raises(InvalidConfig, match=problem):
        Producer("localhost:1", **options)


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_limit_of_calls_that_ends_before_they_begin_is_refused(timeout_ms: int) -> None:
    with pytest.raises(InvalidConfig, match="timeout_ms must be above zero"):
        Admin("localhost:1", timeout_ms=timeout_ms)


def test_a_fetch_waits_for_no_time_below_zero() -> None:
    with pytest.raises(InvalidConfig, match="fetch_max_wait_ms must not be negative"):
        Consumer("localhost:1", fetch_max_wait_ms=-1)
    Consumer("localhost:1", fetch_max_wait_ms=0)

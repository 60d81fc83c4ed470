"""What a request about very many things costs everybody else."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_core.message_schemas import load_request_schema
from tidelog_node.fairness.request_turns import HOLD_SECONDS_MAX

from tests.node.answer_times import AnswerTimes
from tests.node.large_requests import (
    CONTROL_REQUESTS,
    describe_groups,
    fetch,
    metadata,
    offset_fetch,
    produce,
    string,
)
from tests.node.many_elements import requests_with
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient, api_versions_request, frame

ELEMENTS_MAX = 12_000
ATTEMPTS = 5
SECONDS_MAX = 120.0
ELEMENTS = 20_000
CARRIED_OUT_ON_THE_SPOT = (0, 1, 78)  # Produce, Fetch, ShareFetch: see test_partition_pace


def prepare(node: NodeProcess) -> None:
    """Make topic «t», and the node the coordinator of «group»."""
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
    coordinator: Any = load_request_schema(10, 0)
    deadline = time.monotonic() + SECONDS_MAX
    with WireClient(node.port) as client:
        while client.call(coordinator(key="group")).error_code.value:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _join(group: str, subscription: bytes) -> bytes:
    """Return a JoinGroup request of a new member."""
    body = (
        string(group)
        + struct.pack(">ii", 30_000, 60_000)
        + string("")
        + string("consumer")
        + struct.pack(">i", 1)
        + string("range")
        + struct.pack(">i", len(subscription))
        + subscription
    )
    return frame(11, 1, 1, body, tags=b"")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    config = {
        "socket.request.max.elements": str(ELEMENTS_MAX),
        "auto.create.topics.enable": "false",
    }
    with NodeProcess(tmp_path_factory.mktemp("large") / "node", config=config) as process:
        prepare(process)
        yield process


@pytest.mark.parametrize("name", CONTROL_REQUESTS)
def test_others_are_answered_while_a_large_request_is_served(node: NodeProcess, name: str) -> None:
    request = CONTROL_REQUESTS[name](ELEMENTS_MAX - 10)
    counts: list[int] = []
    for _ in range(ATTEMPTS):  # On a busy machine the others may not even ask.
        with WireClient(node.port) as client, AnswerTimes(node.port) as times:
            client.socket.settimeout(SECONDS_MAX)
            client.send(request)
            answer = client.receive()
        assert len(answer) > 2 * ELEMENTS_MAX
        counts.append(len(times.seconds))
        if counts[-1] > 5:  # Unless it is cut into turns there are three at most.
            break
    assert max(counts) > 5


def test_large_requests_that_wait_for_others_are_in_nobodys_way(node: NodeProcess) -> None:
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(WireClient(node.port)) for _ in range(6)]
        members[0].send(_join("group", b"x" * 40_000))
        members[0].receive()
        for member in members[1:]:
            member.send(_join("group", b"x" * 40_000))  # waits for the first, which is silent
        began = time.monotonic()
        client = stack.enter_context(WireClient(node.port))
        client.send(offset_fetch(ELEMENTS_MAX - 10))
        client.receive()
        # Were each in the way for as long as one may be, it would be more.
        assert time.monotonic() - began < len(members[1:]) * HOLD_SECONDS_MAX


def test_too_many_elements_are_refused_where_the_answer_has_a_place(node: NodeProcess) -> None:
    with WireClient(node.port) as client:
        client.send(offset_fetch(ELEMENTS_MAX + 1, version=2))
        assert client.receive() == struct.pack(">iih", 1, 0, 42)  # no topics, INVALID_REQUEST
        client.send(offset_fetch(10, version=2))
        assert client.receive().endswith(struct.pack(">h", 0))
    node.wait_logged("OffsetFetchRequest.topics.partition_indexes has more elements than the")


@pytest.mark.parametrize("make", [metadata, describe_groups])
def test_too_many_elements_close_the_connection_where_it_has_none(
    node: NodeProcess, make: Any
) -> None:
    with WireClient(node.port) as client:
        with contextlib.suppress(ConnectionError):
            client.send(make(ELEMENTS_MAX + 1))
        assert client.is_closed_by_node()
    node.wait_logged("elements than the 12000 that are allowed, see socket.request.max.elements")


def allowed_seconds(node: NodeProcess) -> float:
    """Return how long others may wait: a tenth of a second, more where the machine is busy."""
    with AnswerTimes(node.port) as times:
        time.sleep(2)
    return 0.1 + 5 * times.longest_seconds


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_largest_requests_cost_others_less_than_a_tenth_of_a_second(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"auto.create.topics.enable": "false"}
    with NodeProcess(tmp_path / "node", config=config) as node:
        prepare(node)
        before = node.rss_bytes()
        allowed = allowed_seconds(node)
        for name, make in {**CONTROL_REQUESTS, "Produce": produce, "Fetch": fetch}.items():
            for count in (10_000, 100_000, 700_000):
                request = make(count)
                began = time.monotonic()
                with WireClient(node.port) as client, AnswerTimes(node.port) as times:
                    client.socket.settimeout(SECONDS_MAX)
                    with contextlib.suppress(ConnectionError, EOFError):
                        client.send(request)
                        client.receive()
                p99_ms = times.percentile(99) * 1000
                with capsys.disabled():
                    print(
                        f"\n{name} of {count}, {len(request)} bytes: {time.monotonic() - began:.2f} s,"
                        f" others' p99 {p99_ms:.0f} ms, longest {times.longest_seconds * 1000:.0f} ms"
                    )
                assert p99_ms < allowed * 1000
        assert node.rss_bytes() - before < 150_000_000
        assert "lease" not in node.log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_list_of_any_api_costs_others_more_than_a_tenth_of_a_second(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"auto.create.topics.enable": "false"}
    with NodeProcess(tmp_path / "node", config=config) as node:
        prepare(node)
        with WireClient(node.port) as client:
            apis = client.call(api_versions_request()).api_keys
        allowed = allowed_seconds(node)
        slow = []
        for api in apis:
            if api.api_key in CARRIED_OUT_ON_THE_SPOT:
                continue
            for name, request in requests_with(ELEMENTS, api.api_key, api.max_version):
                with WireClient(node.port) as client, AnswerTimes(node.port) as times:
                    client.socket.settimeout(SECONDS_MAX)
                    with contextlib.suppress(ConnectionError, EOFError):
                        client.send(request)
                        client.receive()
                if times.percentile(99) >= allowed:
                    slow.append(f"API {api.api_key}, {name}: {times.percentile(99) * 1000:.0f} ms")
        with capsys.disabled():
            print(f"\nmore than {allowed * 1000:.0f} ms:", *slow, sep="\n")
        assert len(slow) <= 3  # of some 80; the machine has other things to do, too
        assert node.rss_bytes() < 300_000_000
        assert "request failed" not in node.log

"""Requests about very many partitions: how many they may name, and how fast they follow."""

from __future__ import annotations

import asyncio
import select
import struct
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tidelog_core.errors import TooManyElements
from tidelog_node.fairness.partition_pace import NotYet, PartitionPace
from tidelog_node.wire.fetch import parse_fetch
from tidelog_node.wire.produce import parse_produce

from tests.node.answer_times import AnswerTimes
from tests.node.fairness.test_large_requests import prepare
from tests.node.large_requests import array, fetch, produce, string
from tests.support.batches import batch_of
from tests.support.node_peers import connected_as, register_peer
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient, frame, produce_body

BODY_AT = 4 + 10 + 4  # behind size, header and client id
MANY = 10_000


@pytest.mark.parametrize(("make", "parse"), [(produce, parse_produce), (fetch, parse_fetch)])
def test_topics_and_partitions_count_before_they_are_read(make: Any, parse: Any) -> None:
    version = 3 if parse is parse_produce else 4
    request = memoryview(make(1000))
    assert parse(request, BODY_AT, version, 1001).element_count == 1001
    with pytest.raises(TooManyElements):
        parse(request, BODY_AT, version, 1000)
    # What says that it has more than anyone could send is not begun.
    with pytest.raises(TooManyElements):
        parse(memoryview(request[: len(request) // 2]), BODY_AT, version, 1000)


async def test_the_next_one_waits_for_twice_as_long_as_the_last_one_took() -> None:
    pace = PartitionPace()
    order: list[str] = []
    are_done = asyncio.Event()

    def try_again(name: str) -> None:
        began = pace.begin("a", is_follower=False)
        order.append(name)
        pace.end(began - 0.02)
        if name == "b":
            are_done.set()

    pace.end(pace.begin("a", is_follower=False) - 0.02)
    for name in ("a", "b"):
        with pytest.raises(NotYet) as held:
            pace.begin("a", is_follower=False)
        held.value.wait(lambda name=name: try_again(name))  # type: ignore[misc]
    assert not order
    began = time.monotonic()
    await asyncio.wait_for(are_done.wait(), 60)
    assert order == ["a", "b"]
    assert time.monotonic() - began > 0.07


async def test_who_does_not_come_back_for_its_turn_keeps_nobody_waiting() -> None:
    pace = PartitionPace()
    pace.end(pace.begin("a", is_follower=False) - 0.01)
    tried = asyncio.Event()
    for callback in (lambda: None, tried.set):
        with pytest.raises(NotYet) as held:
            pace.begin("a", is_follower=False)
        held.value.wait(callback)
    await asyncio.wait_for(tried.wait(), 60)
    pace.begin("a", is_follower=False)


def order_of_turns(*waiting: tuple[str, str, bool], work_seconds: float = 0.005) -> list[str]:
    """Return the names of (name, host, is a follower) as each of them has its turn."""

    async def scenario() -> list[str]:
        pace = PartitionPace()
        order: list[str] = []
        have_all_begun = asyncio.Event()

        def request(name: str, host: str, *, is_follower: bool) -> None:
            pace.end(pace.begin(host, is_follower=is_follower) - work_seconds)
            order.append(name)
            if len(order) == len(waiting):
                have_all_begun.set()

        pace.end(pace.begin("first", is_follower=False) - work_seconds)
        for name, host, is_follower in waiting:
            again = partial(request, name, host, is_follower=is_follower)
            with pytest.raises(NotYet) as held:
                again()
            held.value.wait(again)
        await asyncio.wait_for(have_all_begun.wait(), 60)
        return order

    return asyncio.run(scenario())


def test_hosts_take_turns_however_many_connections_wait() -> None:
    many = [(f"a{n}", "a", False) for n in range(5)]
    order = order_of_turns(*many, ("b0", "b", False), ("c0", "c", False), ("b1", "b", False))
    assert order == ["a0", "b0", "c0", "a1", "b1", "a2", "a3", "a4"]


def test_a_follower_goes_before_the_clients_that_wait() -> None:
    clients = [(f"client {n}", f"host {n}", False) for n in range(3)]
    assert order_of_turns(*clients, ("follower", "node", True))[0] == "follower"


def test_who_poses_as_a_follower_leaves_half_of_the_time_to_clients() -> None:
    posing = [("posing", f"host {n}", True) for n in range(6)]
    clients = [("client", "other", False)] * 6
    order = order_of_turns(*posing, *clients, work_seconds=0.01)
    assert 2 <= order[:6].count("client") <= 4


def test_who_poses_as_a_follower_takes_turns_with_the_hosts_of_followers() -> None:
    posing = [("posing", "host", True) for _ in range(6)]
    order = order_of_turns(*posing, ("follower", "node", True))
    assert order.index("follower") == 1


async def test_connections_that_have_closed_take_no_turn_of_their_host_and_leave_the_line() -> None:
    pace = PartitionPace()
    tried: list[int] = []
    has_begun = asyncio.Event()

    def begin() -> None:
        pace.end(pace.begin("a", is_follower=False) - 60)
        has_begun.set()

    pace.end(pace.begin("a", is_follower=False) - 0.005)
    for number in range(1000):
        with pytest.raises(NotYet) as held:
            pace.begin("a", is_follower=False)
        held.value.wait(partial(tried.append, number))
    held.value.wait(begin)
    with pytest.raises(NotYet) as held:
        pace.begin("b", is_follower=False)
    held.value.wait(lambda: tried.append(-1))
    await asyncio.wait_for(has_begun.wait(), 60)
    assert tried == list(range(1000))


# -- a node --


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("pace") / "node") as process:
        prepare(process)
        yield process


@pytest.mark.parametrize(("make", "name"), [(produce, "0"), (fetch, "1")])
def test_a_request_about_a_million_partitions_is_not_carried_out(
    node: NodeProcess, make: Any, name: str
) -> None:
    before = node.rss_bytes()
    cpu_seconds = node.cpu_seconds()
    with WireClient(node.port) as client:
        client.send(make(400_000))
        assert client.is_closed_by_node()
    assert node.cpu_seconds() - cpu_seconds < 0.6
    assert node.rss_bytes() - before < 20_000_000
    node.wait_logged(f"a request of API {name}: the request has more elements than the")
    node.wait_logged("that are allowed, see socket.request.max.partitions")


def test_others_are_answered_between_requests_about_many_partitions(node: NodeProcess) -> None:
    clients = [WireClient(node.port) for _ in range(6)]
    with AnswerTimes(node.port) as times:
        for client in clients:
            client.send(fetch(MANY) * 2)
        for client in clients:
            for _ in range(2):
                assert len(client.receive()) > 20 * MANY
            client.socket.close()
    assert len(times.seconds) > 2 * len(clients)  # Without rests there is one for each round.


def test_requests_of_a_connection_stay_in_order_while_one_waits(node: NodeProcess) -> None:
    first = batch_of(b"first")
    named = [struct.pack(">ii", 0, len(first)) + first]
    named += [struct.pack(">ii", number, -1) for number in range(1, MANY)]
    topic = string("t") + array(named)
    many = frame(0, 3, 1, struct.pack(">hhii", -1, 1, 1000, 1) + topic, tags=b"")
    small = [
        frame(0, 3, 2 + number, produce_body("t", batch_of(value)), tags=b"")
        for number, value in enumerate((b"second", b"third", b"fourth"))
    ]
    with WireClient(node.port) as other, WireClient(node.port) as client:
        other.send(fetch(MANY))
        client.send(many + b"".join(small))
        other.receive()
        answers = [client.receive() for _ in range(4)]
        assert [struct.unpack_from(">i", answer)[0] for answer in answers] == [1, 2, 3, 4]
        records = bytes(client.fetch("t", 0).records)
    places = [records.index(value) for value in (b"first", b"second", b"third", b"fourth")]
    assert places == sorted(places)


def test_a_follower_is_answered_before_the_clients_in_line(node: NodeProcess) -> None:
    database = node.data_dir / "metadata.db"
    identity = register_peer(database, 2)
    clients = [WireClient(node.port) for _ in range(40)]
    with connected_as(identity, database, 1) as follower:
        for client in clients:
            client.send(produce(MANY))
        clients[0].receive()
        follower.send(fetch(1000, replica_id=2))
        follower.receive()
        answered, _, _ = select.select([client.socket for client in clients], (), (), 0)
    for client in clients:
        client.socket.close()
    assert len(answered) < len(clients) // 2

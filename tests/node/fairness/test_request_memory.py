"""One budget for the unfinished requests of all connections: order, progress, giving back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_node.fairness.request_memory import RequestMemory

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.virtual_time import VirtualTimeLoop, run
from tests.support.wire_client import WireClient, api_versions_request, encode, frame, produce_body

MIB = 1 << 20
BUDGET_BYTES = 64 * MIB
REQUEST_BYTES_MAX = 20 * MIB
RECEIVE_TIMEOUT_MS = 1500
SECONDS_MAX = 60.0
SEED = 20_261_122


class Claimant:
    """A connection that notes what it is told."""

    def __init__(self, client_host: str = "a") -> None:
        self.client_host = client_host
        self.arrived_bytes = 0
        self.unsent_bytes = 0
        self.is_held_up = False
        self.granted_count = 0
        self.closed_for = ""
        self.memory: RequestMemory | None = None

    def on_memory(self) -> None:
        """Count it."""
        self.granted_count += 1

    def release_idle_buffer(self) -> None:
        """Do as told."""
        assert self.memory is not None
        self.memory.release(self)

    def close(self, reason: str = "", *, is_expected: bool = True) -> None:
        """Do as told, and give everything back."""
        assert not is_expected
        self.closed_for = reason
        self.release_idle_buffer()
        assert self.memory is not None
        self.memory.release_answer(self)


def a_memory(*, frame_seconds_max: float = 60.0) -> RequestMemory:
    return RequestMemory(
        8 * MIB,
        frame_seconds_max=frame_seconds_max,
        loop=asyncio.get_running_loop(),
        on_short=lambda _: None,
    )


def claim(
    memory: RequestMemory, claimant: Claimant, size_bytes: int, *, carries_records: bool = True
) -> bool:
    claimant.memory = memory
    return memory.claim(
        claimant,
        size_bytes,
        arrived_bytes=claimant.arrived_bytes,
        api_key=0 if carries_records else 20,
    )


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Return the test as pytest runs it, in virtual time: a busy machine is late for nothing."""

    @functools.wraps(test)
    def run_in_virtual_time(*arguments: object, **named: object) -> None:
        run(test(*arguments, **named))

    return run_in_virtual_time


def now() -> float:
    return asyncio.get_running_loop().time()


async def turn() -> None:
    """Let the memory grant what it can."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@in_a_loop
async def test_claims_are_granted_in_order_as_others_give_back() -> None:
    memory = a_memory()
    first, *others = (Claimant() for _ in range(4))
    assert claim(memory, first, 2 * MIB)
    for other in others:
        assert not claim(memory, other, MIB)
    memory.release(first)
    await turn()
    assert [other.granted_count for other in others] == [1, 1, 0]
    memory.release(others[0])
    await turn()
    assert [other.granted_count for other in others] == [1, 1, 1]
    assert memory.waiting_count == 0


@in_a_loop
async def test_hosts_take_turns_however_many_connections_they_have() -> None:
    memory = a_memory()
    first, *many = (Claimant("many") for _ in range(6))
    other, late = Claimant("one"), Claimant("late")
    assert claim(memory, first, 2 * MIB)
    for waiting in (*many, other, late):
        assert not claim(memory, waiting, 2 * MIB)
    turns = [first]
    while len(turns) < 6:
        memory.release(turns[-1])
        await turn()
        (granted,) = (c for c in (*many, other, late) if c.granted_count and c not in turns)
        turns.append(granted)
    assert [claimant.client_host for claimant in turns[1:]] == [
        "many",
        "one",
        "late",
        "many",
        "many",
    ]


@in_a_loop
async def test_a_small_claim_does_not_overtake_a_larger_one_of_its_kind() -> None:
    memory = a_memory()
    first, large, small = (Claimant() for _ in range(3))
    assert claim(memory, first, MIB)
    assert not claim(memory, large, 2 * MIB)
    assert not claim(memory, small, MIB)
    memory.release(first)
    await turn()
    assert (large.granted_count, small.granted_count) == (1, 0)


@in_a_loop
async def test_a_claim_larger_than_its_share_is_granted_alone() -> None:
    memory = a_memory()
    first, huge = Claimant(), Claimant()
    assert claim(memory, first, 4 * MIB + 1)
    assert not claim(memory, huge, 100 * MIB)
    memory.release(first)
    await turn()
    assert huge.granted_count == 1


@in_a_loop
async def test_shares_do_not_wait_for_each_other() -> None:
    memory = a_memory()
    for size_bytes, kind in (
        (100_000, True),
        (2 * MIB, True),
        (5 * MIB, True),
        (2 * MIB, False),
    ):
        assert claim(memory, Claimant(), size_bytes, carries_records=kind)


@in_a_loop
async def test_idle_buffers_are_given_up_for_those_who_need_them() -> None:
    memory = a_memory()
    idle, other = Claimant(), Claimant()
    assert claim(memory, idle, 2 * MIB)
    assert memory.keep_idle(idle, 2 * MIB)
    assert claim(memory, other, 2 * MIB)
    assert memory.held_bytes == 2 * MIB
    assert not memory.keep_idle(idle, MIB)


@in_a_loop
async def test_who_brings_nothing_while_others_wait_is_closed() -> None:
    memory = a_memory(frame_seconds_max=0.3)
    silent, other = Claimant(), Claimant()
    assert claim(memory, silent, 2 * MIB)
    await asyncio.sleep(0.2)
    assert not silent.closed_for  # nobody waits
    assert not claim(memory, other, 2 * MIB)
    deadline = now() + SECONDS_MAX
    while not other.granted_count:
        assert now() < deadline
        silent.arrived_bytes += 1  # a byte now and then is not enough
        await asyncio.sleep(0.01)
    assert "while others wait for memory: see queued.max.request.bytes" in silent.closed_for


@pytest.mark.parametrize("reason", ["it brings its frame", "the node does not read it"])
@in_a_loop
async def test_who_is_not_to_blame_is_not_closed(reason: str) -> None:
    memory = a_memory(frame_seconds_max=0.3)
    busy, other = Claimant(), Claimant()
    busy.is_held_up = reason == "the node does not read it"
    assert claim(memory, busy, 2 * MIB)
    assert not claim(memory, other, 2 * MIB)
    for _ in range(20):
        await asyncio.sleep(0.02)
        if not busy.is_held_up:
            busy.arrived_bytes += 2 * MIB // 5
    assert not busy.closed_for


@in_a_loop
async def test_who_takes_no_answer_while_others_wait_is_closed() -> None:
    memory = a_memory(frame_seconds_max=0.3)
    takes_none, takes_some, other = Claimant(), Claimant(), Claimant()
    for holder in (takes_none, takes_some):
        holder.memory = memory
        holder.unsent_bytes = MIB
        memory.hold_answer(holder, MIB)
    await asyncio.sleep(0.2)
    assert not takes_none.closed_for  # nobody waits
    under_way = Claimant()
    assert claim(memory, under_way, MIB, carries_records=False)
    under_way.is_held_up = True
    assert not claim(memory, other, MIB, carries_records=False)
    deadline = now() + SECONDS_MAX
    while not takes_none.closed_for:
        assert now() < deadline
        await asyncio.sleep(0.01)
        takes_some.unsent_bytes = max(takes_some.unsent_bytes - MIB // 4, 0)
    assert "bytes of answers have not been taken" in takes_none.closed_for
    assert not takes_some.closed_for


@in_a_loop
async def test_who_takes_no_answer_is_closed_however_many_more_it_gets() -> None:
    memory = a_memory(frame_seconds_max=0.3)
    greedy, other = Claimant(), Claimant()
    greedy.memory = memory
    under_way = Claimant()
    assert claim(memory, under_way, MIB, carries_records=False)
    under_way.is_held_up = True
    assert not claim(memory, other, MIB, carries_records=False)
    deadline = now() + SECONDS_MAX
    while not greedy.closed_for:
        assert now() < deadline
        greedy.unsent_bytes += 70_000
        memory.hold_answer(greedy, greedy.unsent_bytes)
        await asyncio.sleep(0.01)


@in_a_loop
async def test_bytes_of_paused_connections_keep_no_small_request_waiting() -> None:
    memory = a_memory()
    for _ in range(20):
        memory.hold(Claimant(), 100_000)
    assert memory.held_bytes == 2_000_000
    assert all(claim(memory, Claimant(), 100_000) for _ in range(5))


@pytest.mark.parametrize("takes_answers", [True, False])
@in_a_loop
async def test_a_paused_connection_is_closed_only_if_its_client_takes_no_answers(
    takes_answers: bool,
) -> None:
    memory = a_memory(frame_seconds_max=0.3)
    paused, busy, other = Claimant(), Claimant(), Claimant()
    paused.memory = memory
    paused.unsent_bytes = 20 * MIB
    memory.hold(paused, 100_000)
    assert claim(memory, busy, 2 * MIB)
    busy.is_held_up = True
    assert not claim(memory, other, 2 * MIB)
    ends_at = now() + 0.4
    while now() < ends_at:
        await asyncio.sleep(0.01)
        if takes_answers:
            paused.unsent_bytes -= 100_000
    assert bool(paused.closed_for) != takes_answers


@in_a_loop
async def test_a_control_request_waits_while_others_have_the_budget() -> None:
    memory = a_memory()
    memory.add_control(8 * MIB)
    large, medium, small, fetch = (Claimant() for _ in range(4))
    assert claim(memory, small, 4096, carries_records=False)
    assert memory.is_short
    assert not claim(memory, large, 2 * MIB, carries_records=False)
    assert not claim(memory, medium, 100_000, carries_records=False)
    assert memory.claim(fetch, 100_000, arrived_bytes=0, api_key=1)
    memory.add_control(100)  # A small one is answered all the same.
    memory.give_back_control(8 * MIB)
    await turn()
    assert (large.granted_count, medium.granted_count) == (1, 0)
    memory.release(large)
    await turn()
    assert medium.granted_count == 1


@in_a_loop
async def test_a_control_request_waits_for_its_share_or_the_whole_budget() -> None:
    memory = a_memory()
    memory.add_control(2 * MIB)
    hoarder, waiting = Claimant(), Claimant()
    memory.hold(hoarder, 7 * MIB)
    assert not claim(memory, waiting, MIB, carries_records=False)
    memory.release(hoarder)  # Not of the share, but it makes room in the whole.
    await turn()
    assert waiting.granted_count == 1


@in_a_loop
async def test_a_control_request_larger_than_the_budget_waits_for_control_requests_alone() -> None:
    memory = a_memory()
    memory.add_control(1)
    waiting = Claimant()
    assert not claim(memory, waiting, 9 * MIB, carries_records=False)
    memory.give_back_control(1)
    await turn()
    assert waiting.granted_count == 1


@in_a_loop
async def test_a_late_look_closes_nobody() -> None:
    """The process may have been stopped, and its clients could bring nothing."""
    memory = a_memory(frame_seconds_max=0.3)
    honest, other = Claimant(), Claimant()
    assert claim(memory, honest, 2 * MIB)
    assert not claim(memory, other, 2 * MIB)
    await asyncio.sleep(0.07)  # It has been looked at once.
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    for _ in range(4):
        loop.stall(0.2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not honest.closed_for


@in_a_loop
async def test_no_claims_are_lost_whatever_happens() -> None:
    generator = random.Random(SEED)
    memory = a_memory()
    claimants = [Claimant() for _ in range(30)]
    unanswered: list[int] = []
    for _ in range(3000):
        claimant = generator.choice(claimants)
        size_bytes = generator.choice((4096, 100_000, MIB, 3 * MIB, 5 * MIB))
        act = generator.random()
        if act < 0.5:
            claim(memory, claimant, size_bytes, carries_records=generator.random() < 0.7)
        elif act < 0.6:
            memory.hold(claimant, size_bytes // 32)
        elif act < 0.7:
            memory.keep_idle(claimant, size_bytes)
        elif act < 0.8:
            memory.add_control(size_bytes)
            unanswered.append(size_bytes)
        elif act < 0.9 and unanswered:
            memory.give_back_control(unanswered.pop())
        else:
            memory.release(claimant)
        if generator.random() < 0.3:
            await turn()
    for claimant in claimants:
        memory.release(claimant)
    for size_bytes in unanswered:
        memory.give_back_control(size_bytes)
    await turn()
    assert memory.held_bytes == 0
    assert memory.waiting_count == 0


# -- a node --


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    config = {
        "socket.request.max.bytes": str(REQUEST_BYTES_MAX),
        "message.max.bytes": str(REQUEST_BYTES_MAX),
        "queued.max.request.bytes": str(BUDGET_BYTES),
        "queued.request.receive.timeout.ms": str(RECEIVE_TIMEOUT_MS),
    }
    with NodeProcess(tmp_path_factory.mktemp("memory") / "node", config=config) as process:
        admin = AdminClient({"bootstrap.servers": process.address})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        with WireClient(process.port) as client:  # what is made once is made
            client.produce("t", batch_of(b"x" * 9 * MIB))
        yield process


def a_produce(size_bytes: int) -> bytes:
    return frame(0, 8, 1, produce_body("t", batch_of(b"x" * size_bytes)), tags=b"")


def produced(node: NodeProcess, size_bytes: int) -> bool:
    """Return whether a request gets through; a busy machine may be taken for a silent client."""
    for _ in range(3):
        with contextlib.suppress(ConnectionError, EOFError), WireClient(node.port) as client:
            client.socket.settimeout(SECONDS_MAX)
            client.send(a_produce(size_bytes))
            return bool(client.receive())
    return False


def eventually_closed(client: WireClient) -> bool:
    client.socket.settimeout(SECONDS_MAX)
    return client.is_closed_by_node()


def test_unfinished_requests_of_all_connections_share_one_budget(node: NodeProcess) -> None:
    half_request = a_produce(9 * MIB)[: 5 * MIB]
    before = node.rss_bytes()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(WireClient(node.port)) for _ in range(12)]
        for client in silent:
            client.socket.setblocking(False)
        unsent = dict.fromkeys(silent, half_request)
        stuck_since = time.monotonic()
        while time.monotonic() - stuck_since < 0.3:
            for client, left in unsent.items():
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    sent = client.socket.send(left) if left else 0
                    if sent:
                        unsent[client] = left[sent:]
                        stuck_since = time.monotonic()
        assert node.rss_bytes() - before < BUDGET_BYTES // 2 + 8 * MIB
        # Everyone else goes on: small requests, usual ones, those without records.
        with WireClient(node.port) as client:
            assert client.call(api_versions_request()).api_keys
            for size_bytes in (100, 100_000, 130_000, MIB, 3 * MIB):
                assert client.produce("t", batch_of(b"x" * size_bytes)).error_code == 0
            names = struct.pack(">i", 50_000) + b"\x00\x04nope" * 50_000
            client.send(frame(20, 1, 1, names + struct.pack(">i", 1), tags=b""))
            assert client.receive()
            # And who sends as large a request as the silent ones has its turn.
            assert produced(node, 9 * MIB)
    node.wait_logged("while others wait for memory: see queued.max.request.bytes")
    deadline = time.monotonic() + SECONDS_MAX
    while node.rss_bytes() - before > BUDGET_BYTES // 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_all_who_send_get_through_however_little_memory_there_is(tmp_path: Path) -> None:
    generator = random.Random(SEED)
    config = {
        "queued.max.request.bytes": str(4 * MIB),
        "message.max.bytes": str(REQUEST_BYTES_MAX),
    }
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(NodeProcess(tmp_path / "node", config=config))
        answer_bytes = len(_answer_of(node))
        unsent: dict[WireClient, memoryview] = {}
        for _ in range(24):
            client = stack.enter_context(WireClient(node.port))
            client.socket.setblocking(False)
            sizes = (generator.choice((100, 100_000, 200_000, 2 * MIB, 5 * MIB)) for _ in range(3))
            unsent[client] = memoryview(b"".join(map(a_produce, sizes)))
        answers = dict.fromkeys(unsent, b"")
        deadline = time.monotonic() + 2 * SECONDS_MAX
        while any(len(answer) < 3 * answer_bytes for answer in answers.values()):
            assert time.monotonic() < deadline
            for client, left in unsent.items():
                with contextlib.suppress(BlockingIOError):
                    if left:
                        step = generator.choice((1000, MIB))
                        unsent[client] = left[client.socket.send(left[:step]) :]
                with contextlib.suppress(BlockingIOError):
                    answers[client] += client.socket.recv(1000)


def _answer_of(node: NodeProcess) -> bytes:
    """Return an answer to a Produce request for a topic that is not there yet."""
    with WireClient(node.port) as client:
        client.send(a_produce(1))
        return struct.pack(">i", 0) + client.receive()


def test_answers_that_nobody_takes_count_until_they_are_taken(tmp_path: Path) -> None:
    config = {
        "queued.max.request.bytes": str(4 * MIB),
        "queued.request.receive.timeout.ms": str(RECEIVE_TIMEOUT_MS),
    }
    names = struct.pack(">i", 9_000) + b"".join(
        struct.pack(">h", 200) + b"%0200d" % number for number in range(9_000)
    )
    request = frame(20, 1, 1, names + struct.pack(">i", 1), tags=b"")
    with (
        NodeProcess(tmp_path / "node", config=config) as node,
        contextlib.ExitStack() as stack,
    ):
        slow = [stack.enter_context(WireClient(node.port)) for _ in range(6)]
        for client in slow:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.socket.settimeout(SECONDS_MAX)
            with contextlib.suppress(ConnectionError):
                client.send(request)
        deadline = time.monotonic() + SECONDS_MAX
        is_answered = False
        while not is_answered:  # as clients do that are refused
            assert time.monotonic() < deadline
            with contextlib.suppress(ConnectionError, EOFError), WireClient(node.port) as client:
                client.socket.settimeout(SECONDS_MAX)
                client.send(request)
                is_answered = len(client.receive()) > len(request) // 2
        node.wait_logged("bytes of answers have not been taken")


def test_a_request_of_another_kind_is_refused_by_its_size_alone(node: NodeProcess) -> None:
    schema = type(api_versions_request())
    head = frame(20, 1, 1, encode(schema, api_versions_request()), tags=b"")[4:]
    with WireClient(node.port) as client:
        client.send(struct.pack(">i", 9 * MIB) + head)
        assert eventually_closed(client)
    node.wait_logged(f"a request of API 20 of {9 * MIB} bytes, allowed are 8388608")

"""Connections over transports that hand out little and hold back much: all is answered in order."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tidelog_core.model import FileSlice, ReadableFile
from tidelog_node.answers import (
    NO_ANSWER,
    Answer,
    ControlReply,
    HeldReply,
    PendingReply,
    Reply,
    Segment,
    TaskReply,
)
from tidelog_node.connections.transport import PlainTransport, Transport
from tidelog_node.requests.session import Session

from tests.node.connections.served_connections import REQUEST, connect
from tests.support.holding_transport import HoldingTransport
from tests.support.waiting import eventually_async

SEEDS = 3
REQUEST_COUNT = 60
SECONDS_MAX = 60.0
ANSWER_BYTES_MAX = 300
FILE_BYTES = 4_096
ANSWER = bytes(range(100))
NUMBER = struct.Struct(">xxxxI")


class RandomAnswers:
    """Answers request after request in a way that chance decides, and keeps what it answered."""

    def __init__(self, chance: random.Random, path: Path) -> None:
        self.expected = b""
        self.seen: list[int] = []
        self.tasks: set[asyncio.Task[Reply]] = set()
        self._chance = chance
        self._data = chance.randbytes(FILE_BYTES)
        path.write_bytes(self._data)
        self._file = ReadableFile(path)
        self._ways: list[Callable[[Reply], Answer]] = [
            *(lambda reply: reply, lambda _: NO_ANSWER, self._owe, self._in_turn, self._by_task),
            self._hold,
        ]

    def __call__(self, frame: memoryview, _: Session) -> Answer:
        (number,) = NUMBER.unpack_from(frame)
        self.seen.append(number)
        way = self._chance.choice(self._ways)
        reply, content = self._reply(number)
        answer = way(reply)
        if answer is not NO_ANSWER:
            self.expected += content
        return answer

    def _reply(self, number: int) -> tuple[Reply, bytes]:
        """Return an answer of segments in memory and in a file, and its bytes."""
        content, segments = b"", list[Segment]()
        for _ in range(self._chance.randint(1, 3)):
            if self._chance.random() < 0.3:
                size_bytes = self._chance.randint(1, ANSWER_BYTES_MAX)
                position = self._chance.randint(0, FILE_BYTES - size_bytes)
                segments.append(FileSlice(self._file, position, size_bytes))
                content += self._data[position : position + size_bytes]
            else:
                data = b"%d:" % number + bytes(self._chance.randint(0, ANSWER_BYTES_MAX))
                segments.append(data)
                content += data
        return segments, content

    def _owe(self, reply: Reply) -> PendingReply:
        pending = PendingReply()
        self._later(lambda: pending.settle(reply))
        return pending

    def _in_turn(self, reply: Reply) -> ControlReply:
        return ControlReply(lambda: self._work(reply))

    def _by_task(self, reply: Reply) -> TaskReply:
        return TaskReply(self._start(reply))

    def _hold(self, reply: Reply) -> HeldReply:
        held = HeldReply()

        def release() -> None:
            held.release()
            held.come_from(self._start(reply))

        self._later(release)
        return held

    def _start(self, reply: Reply) -> asyncio.Task[Reply]:
        task = asyncio.get_running_loop().create_task(self._work(reply))
        self.tasks.add(task)
        return task

    async def _work(self, reply: Reply) -> Reply:
        for _ in range(self._chance.randint(0, 3)):
            await asyncio.sleep(0)
        return reply

    def _later(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(self._chance.choice([0, 0, 0.001]), call)


def plain(sock: socket.socket, _: random.Random) -> Transport:
    """Return the transport of production."""
    return PlainTransport(sock)


def byte_by_byte(sock: socket.socket, chance: random.Random) -> Transport:
    """Return one that hands out a byte at a time."""
    return HoldingTransport(sock, chance=chance)


def hesitant(sock: socket.socket, chance: random.Random) -> Transport:
    """Return one that holds back more than the socket takes at a time."""
    pieces = chance.randint(1, 500), chance.randint(1, 1000), chance.randint(20, 200)
    return HoldingTransport(
        sock,
        receive_bytes_max=pieces[0],
        held_bytes_max=pieces[1],
        send_bytes_max=pieces[2],
        chance=chance,
    )


@pytest.mark.parametrize("make", [plain, byte_by_byte, hesitant])
async def test_every_request_is_answered_in_order_over_any_transport(
    make: Callable[[socket.socket, random.Random], Transport], tmp_path: Path
) -> None:
    for _ in range(SEEDS):
        seed = random.randrange(10**6)
        print(f"{seed=}")
        await exchange(random.Random(seed), tmp_path / str(seed), make)


async def exchange(
    chance: random.Random,
    path: Path,
    make: Callable[[socket.socket, random.Random], Transport],
) -> None:
    """Have random requests answered in random ways, and look at all that arrives."""
    answers = RandomAnswers(chance, path)
    client, served = connect(answers, make_transport=lambda sock, _: make(sock, chance))
    client.setblocking(False)
    requests = b"".join(
        struct.pack(">i", 8 + extra) + NUMBER.pack(number) + bytes(extra)
        for number in range(REQUEST_COUNT)
        for extra in [chance.choice([0, 0, 1, 700])]
    )
    received = bytearray()
    loop = asyncio.get_running_loop()
    sending = loop.create_task(send_in_pieces(client, requests, chance))
    async with asyncio.timeout(SECONDS_MAX):
        while len(answers.seen) < REQUEST_COUNT or len(received) < len(answers.expected):
            with contextlib.suppress(BlockingIOError):
                received += client.recv(65_536)
            await asyncio.sleep(0)
        await sending
    assert answers.seen == list(range(REQUEST_COUNT))
    assert received == answers.expected
    await eventually_async(lambda: served.is_answered)
    memory = served._buffers.memory
    served.close()
    assert memory.held_bytes == 0
    client.close()


async def send_in_pieces(client: socket.socket, data: bytes, chance: random.Random) -> None:
    """Send the data, cut wherever chance has it."""
    loop = asyncio.get_running_loop()
    while data:
        size_bytes = chance.choice([1, 3, 11, 1000, 20_000])
        await loop.sock_sendall(client, data[:size_bytes])
        data = data[size_bytes:]
        await asyncio.sleep(0)


async def test_a_connection_has_not_answered_while_its_transport_holds_bytes_back() -> None:
    client, served = connect(
        lambda _, __: [ANSWER],
        make_transport=lambda sock, _: HoldingTransport(
            sock, receive_bytes_max=1000, send_bytes_max=1
        ),
    )
    client.sendall(REQUEST)
    client.setblocking(False)
    received = await receive(client, 1)
    assert not served._sender.unsent
    assert not served.is_answered
    await eventually_async(lambda: served.is_answered)
    assert received + await receive(client, len(ANSWER) - len(received)) == ANSWER
    served.close()
    client.close()


async def test_a_transport_may_send_while_there_is_nothing_to_answer() -> None:
    """As a handshake does, and what renews the keys."""
    client, served = connect(
        lambda _, __: [b"answer"],
        make_transport=lambda sock, _: HoldingTransport(sock, greeting=b"greeting"),
    )
    client.sendall(REQUEST[:2])
    client.setblocking(False)
    assert await receive(client, 8) == b"greeting"
    client.sendall(REQUEST[2:])
    assert await receive(client, 6) == b"answer"
    served.close()
    client.close()


async def test_requests_that_a_transport_has_received_go_on_when_a_held_one_is_released() -> None:
    """No event tells of them: the socket is empty."""
    held = HeldReply()
    answers: list[Answer] = [held, [b"second"]]
    client, served = connect(
        lambda _, __: answers.pop(0), make_transport=lambda sock, _: HoldingTransport(sock)
    )
    client.sendall(REQUEST * 2)
    await eventually_async(lambda: len(answers) == 1)
    await asyncio.sleep(0)
    held.release()
    held.settle([b"first"])
    client.setblocking(False)
    assert await receive(client, 11) == b"firstsecond"
    served.close()
    client.close()


async def receive(client: socket.socket, size_bytes: int) -> bytes:
    """Return so many bytes from the node."""
    received = b""
    async with asyncio.timeout(SECONDS_MAX):
        while len(received) < size_bytes:
            received += await asyncio.get_running_loop().sock_recv(client, 100)
    return received

"""A connection and a peer that misbehaves. The peer here is no node but a script."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from kio.schema.metadata.v13.request import MetadataRequest
from tidelog.errors import (
    ConnectionFailed,
    MalformedResponse,
    NotKafka,
    RequestTimedOut,
    UnsupportedVersion,
)
from tidelog.wire.connection import Address, Connection
from tidelog.wire.frame_buffers import FrameBuffers
from tidelog.wire.opening import open_connection
from tidelog.wire.requests import METADATA
from tidelog_core.wire_messages import build

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
METADATA_REQUEST = build(MetadataRequest, topics=())
# Metadata version 12: throttle, no brokers, cluster "c", controller 1, no topics, no tags.
METADATA_ANSWER = struct.pack(">ib", 0, 1) + b"\x02c" + struct.pack(">ibb", 1, 1, 0)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def api_versions(correlation_id: bytes, *apis: tuple[int, int, int]) -> bytes:
    entries = b"".join(struct.pack(">hhhb", *api, 0) for api in apis)
    return frame(correlation_id + struct.pack(">hb", 0, len(apis) + 1) + entries + b"\0\0\0\0\0")


async def negotiate(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *apis: tuple[int, int, int]
) -> None:
    request = await read_frame(reader)
    writer.write(api_versions(request[4:8], *(apis or ((18, 0, 3), (3, 0, 12)))))


@asynccontextmanager
async def peer(script: Script) -> AsyncIterator[Address]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])


async def connect(address: Address, *, timeout_s: float = 5) -> Connection:
    return await open_connection(address, client_id="test", timeout_s=timeout_s)


async def test_requests_are_pipelined_and_answers_matched() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        requests = [await read_frame(reader) for _ in range(3)]  # All come before any answer.
        for request in requests:
            answer = frame(request[4:8] + b"\0" + METADATA_ANSWER)
            for n in range(len(answer)):  # In the smallest pieces.
                writer.write(answer[n : n + 1])
                await writer.drain()
                await asyncio.sleep(0)

    async with peer(script) as address:
        connection = await connect(address)
        answers = await asyncio.gather(
            *(connection.request(METADATA, METADATA_REQUEST, timeout_s=60) for _ in range(3))
        )
        assert [answer.cluster_id for answer in answers] == ["c"] * 3
        assert connection.in_flight_count == 0
        await connection.close()


async def test_large_answers_come_whole() -> None:
    host = b"x" * 30_000

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        request = await read_frame(reader)
        size = len(host) + 1
        varint = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
        broker = bytes(4) + varint + host + bytes(6)
        body = struct.pack(">ib", 0, 11) + broker * 10 + b"\x02c" + struct.pack(">ibb", 1, 1, 0)
        small = frame(request[4:8] + b"\0" + METADATA_ANSWER)
        large = frame(request[4:8] + b"\0" + body)
        for piece in (large[:70_000], large[70_000:-1], large[-1:]):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        second = await read_frame(reader)
        writer.write(small[:4] + second[4:8] + small[8:])

    async with peer(script) as address:
        connection = await connect(address)
        answer = await connection.request(METADATA, METADATA_REQUEST, timeout_s=60)
        assert [broker.host for broker in answer.brokers] == [host.decode()] * 10
        answer = await connection.request(METADATA, METADATA_REQUEST, timeout_s=60)
        assert answer.cluster_id == "c"
        await connection.close()


async def test_a_large_answer_that_is_cut_off_fails_its_request() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        request = await read_frame(reader)
        writer.write(struct.pack(">i", 4_000_000) + request[4:8] + bytes(100_000))
        writer.close()

    buffers = FrameBuffers()
    async with peer(script) as address:
        connection = await open_connection(address, client_id="test", timeout_s=60, buffers=buffers)
        with pytest.raises(ConnectionFailed):
            await connection.request(METADATA, METADATA_REQUEST, timeout_s=60)
        await connection.close()
    [block] = buffers._memory._kept
    assert buffers.take(4_000_000).obj is block, "the next connection uses its memory"
    buffers.close()


async def test_an_answer_that_does_not_come_breaks_the_connection() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)

    async with peer(script) as address:
        connection = await connect(address)
        behind = connection.send(METADATA, METADATA_REQUEST, timeout_s=60)
        started = time.monotonic()
        with pytest.raises(RequestTimedOut, match=r"metadata within 0\.2 s"):
            await connection.request(METADATA, METADATA_REQUEST, timeout_s=0.2)
        assert time.monotonic() - started < 30
        with pytest.raises(RequestTimedOut):
            await behind
        assert not connection.is_open
        with pytest.raises(RequestTimedOut):
            connection.send(METADATA, METADATA_REQUEST, timeout_s=1)
        await connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"\0\0\0\0" + b"\0" * 4,  # a size that cannot be
        b"\x7f\xff\xff\xff" + b"\0" * 4,  # a size beyond the limit
        frame(b"\0\0\x09\x99" + METADATA_ANSWER),  # an answer to nothing
        frame(b"\0\0\0\1\0" + METADATA_ANSWER[:9]),  # cut
        frame(b"\0\0\0\1\0" + b"\xff" * 40),  # nonsense
    ],
)
async def test_nonsense_is_refused_and_no_one_hangs(answer: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        await read_frame(reader)
        writer.write(answer)

    async with peer(script) as address:
        connection = await connect(address)
        with pytest.raises(MalformedResponse):
            await connection.request(METADATA, METADATA_REQUEST, timeout_s=60)
        assert not connection.is_open
        await connection.close()


@pytest.mark.parametrize(
    ("answer", "protocol"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "TLS"),  # an alert; as a size it is 352 MB
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
    ],
)
async def test_a_server_of_another_protocol_is_recognised(answer: bytes, protocol: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(answer)

    async with peer(script) as address:
        with pytest.raises(NotKafka, match=protocol) as failure:
            await connect(address)
    assert failure.value.protocol == protocol
    assert not failure.value.retriable


async def test_a_peer_that_hangs_up_is_said_so() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        await read_frame(reader)
        raise OSError

    async with peer(script) as address:
        connection = await connect(address)
        with pytest.raises(ConnectionFailed, match="was lost"):
            await connection.request(METADATA, METADATA_REQUEST, timeout_s=60)
        await connection.close()


async def test_versions_without_a_common_one_are_named() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer, (18, 0, 3), (3, 0, 4))

    async with peer(script) as address:
        connection = await connect(address)
        with pytest.raises(
            UnsupportedVersion,
            match="metadata needs a version from 11 to 13; the node has 0 to 4",
        ):
            connection.send(METADATA, METADATA_REQUEST, timeout_s=60)
        await connection.close()


async def test_a_node_that_only_knows_old_api_versions_is_understood() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_frame(reader)
        ranges = struct.pack(">hhhhhhh", 35, 0, 2, 18, 0, 2, 3)
        writer.write(frame(request[4:8] + ranges + struct.pack(">hh", 0, 12)))

    async with peer(script) as address:
        connection = await connect(address)
        assert connection.versions == {18: (0, 2), 3: (0, 12)}
        await connection.close()
    # The count is an int32: 35, then 0 and 2 as its halves, then two ranges.


async def test_a_peer_that_never_answers_the_first_request_is_given_up() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)

    async with peer(script) as address:
        with pytest.raises(RequestTimedOut):
            await connect(address, timeout_s=0.3)
    with pytest.raises(ConnectionFailed, match="cannot connect"):
        await connect(Address("127.0.0.1", 1))

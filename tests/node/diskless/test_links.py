"""A gateway's connection to a leader: in which version it speaks, and when it can say nothing."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from tidelog_core.api_keys import ApiKey
from tidelog_node.dialing.pipelined_connection import PipelinedConnection
from tidelog_node.diskless.gateway.links import LeaderLink, NotSent
from tidelog_node.wire.gateway_append import (
    API_KEY,
    HEADER_REST_SIZE,
    VERSION_MAX,
    GatewayAppend,
    GatewayResult,
    GatewaySlice,
    encode_answer,
    parse_request,
)

HEAD = struct.Struct(">ihhih")  # size, key, version, correlation id, no client id
PRODUCE_RANGE = (0, 3, 13)
REQUEST = GatewayAppend(
    UUID(int=1),
    8,
    7,
    [GatewaySlice(UUID(int=2), 0, 112, 90, 5, 9, -1, 1_000, None, b"h" * HEADER_REST_SIZE)],
)
RESULT = GatewayResult(0, 4, is_referenced=True)


class Leader:
    """Answers as a leader that announces these versions of GatewayAppend, and takes no others."""

    def __init__(self, versions: tuple[int, int] | None) -> None:
        self._versions = versions
        self.taken: list[tuple[int, GatewayAppend]] = []  # versions, requests
        self.asked_count = self.connection_count = 0
        self.is_silent = False
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        try:
            while True:
                size = await reader.readexactly(4)
                frame = size + await reader.readexactly(int.from_bytes(size, "big"))
                _, api_key, version, correlation_id, _ = HEAD.unpack_from(frame)
                if self.is_silent:
                    return
                if api_key == ApiKey.API_VERSIONS:
                    assert version == 0
                    self.asked_count += 1
                    writer.write(self._announced(correlation_id))
                    continue
                assert api_key == API_KEY
                if version > (self._versions or (0, 0))[1]:
                    return
                self.taken.append((version, parse_request(memoryview(frame), HEAD.size, version)))
                writer.writelines(encode_answer(correlation_id, [RESULT]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def _announced(self, correlation_id: int) -> bytes:
        ranges = [PRODUCE_RANGE]
        if self._versions is not None:
            ranges.append((API_KEY, *self._versions))
        body = struct.pack(">ihi", correlation_id, 0, len(ranges))
        body += b"".join(struct.pack(">hhh", *one) for one in ranges)
        return len(body).to_bytes(4, "big") + body

    async def dial(self) -> PipelinedConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(PipelinedConnection, "127.0.0.1", self.port)
        return connection


@asynccontextmanager
async def leader(versions: tuple[int, int] | None) -> AsyncIterator[Leader]:
    made = Leader(versions)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


async def test_a_leader_that_announces_headers_gets_them() -> None:
    async with leader((0, VERSION_MAX)) as made:
        link = LeaderLink(made.dial)
        assert await asyncio.gather(link.send(REQUEST), link.send(REQUEST)) == [[RESULT]] * 2
        assert made.taken == [(1, REQUEST)] * 2
        link.close()


@pytest.mark.parametrize("versions", [None, (0, 0)], ids=["not announced", "version 0"])
async def test_a_leader_of_an_older_version_gets_requests_without_headers(
    versions: tuple[int, int] | None,
) -> None:
    """It closes connections on which others come."""
    async with leader(versions) as made:
        link = LeaderLink(made.dial)
        assert await asyncio.gather(link.send(REQUEST), link.send(REQUEST)) == [[RESULT]] * 2
        (one,) = REQUEST.slices
        plain = REQUEST._replace(slices=[one._replace(header_rest=None)])
        assert made.taken == [(0, plain)] * 2
        assert made.connection_count == 1
        link.close()


async def test_a_leaders_process_is_asked_once() -> None:
    async with leader((0, VERSION_MAX)) as made:
        link = LeaderLink(made.dial)
        assert await link.send(REQUEST) == [RESULT]
        assert link._connection is not None
        link._connection.close()
        assert await link.send(REQUEST) == [RESULT]
        assert (made.asked_count, made.connection_count) == (1, 2)
        assert made.taken == [(1, REQUEST)] * 2
        link.close()


async def test_nothing_is_sent_to_a_leader_that_does_not_say_its_versions() -> None:
    async with leader((0, VERSION_MAX)) as made:
        made.is_silent = True
        link = LeaderLink(made.dial)
        with pytest.raises(NotSent):
            await link.send(REQUEST)
        made.is_silent = False
        assert await link.send(REQUEST) == [RESULT]
        assert made.taken == [(1, REQUEST)]
        link.close()


async def test_nothing_is_sent_to_a_leader_that_cannot_be_reached() -> None:
    async with leader((0, VERSION_MAX)) as made:
        pass
    link = LeaderLink(made.dial)
    with pytest.raises(NotSent):
        await link.send(REQUEST)
    link.close()

"""An HTTP proxy between one node and DynamoDB that refuses, delays and loses answers.

throttle     some requests are refused, as DynamoDB refuses what is over the table's rate
lose         some requests are carried out and their answers are never sent: the caller
             times out, or has its connection closed, and cannot know
delay        every answer comes later
cut          no request gets through
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

REFUSAL = (
    b'{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",'
    b'"message":"The level of configured provisioned throughput for the table was exceeded."}'
)
HOLD_SECONDS = 8.0  # longer than a caller waits for an answer


@dataclass(frozen=True, slots=True)
class StoreBehaviour:
    """What happens to requests. The default passes them on."""

    throttled_part: float = 0.0  # of the requests, 0 to 1
    lost_part: float = 0.0  # of the answers, 0 to 1
    delay_s: float = 0.0
    is_cut: bool = False


STORE_PASSES = StoreBehaviour()


class StoreProxy:
    """Relays one request at a time per connection to ``upstream``."""

    def __init__(self, upstream: str, chance: random.Random) -> None:
        parts = urlsplit(upstream)
        self.behaviour = STORE_PASSES
        self.url = ""
        self.refused_count = 0
        self.lost_count = 0
        self._address = parts.hostname, parts.port
        self._chance = chance
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._closing = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> StoreProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._closing.set()
        self._server.close()
        self._abort()
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()

    def behave(self, behaviour: StoreBehaviour) -> None:
        """Treat requests like this from now on."""
        self.behaviour = behaviour
        if behaviour.is_cut:
            self._abort()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        ends = [writer]
        self._writers.add(writer)
        try:
            answers, upstream = await asyncio.open_connection(*self._address)
            ends.append(upstream)
            self._writers.add(upstream)
            while await self._relay_one(reader, writer, answers, upstream):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for end in ends:
                self._writers.discard(end)
                end.transport.abort()

    async def _relay_one(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        request = await _read_message(reader)
        behaviour = self.behaviour
        if behaviour.is_cut:
            return False
        if self._chance.random() < behaviour.throttled_part:
            self.refused_count += 1
            writer.write(_refusal())
            await writer.drain()
            return True
        upstream.write(request)
        answer = await _read_message(answers)
        if self._chance.random() < behaviour.lost_part:
            self.lost_count += 1
            if self._chance.random() < 0.5:
                await self._pause(HOLD_SECONDS)
            return False
        if behaviour.delay_s > 0:
            await self._pause(behaviour.delay_s)
        writer.write(answer)
        await writer.drain()
        return True

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()


def _refusal() -> bytes:
    head = (
        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/x-amz-json-1.0\r\n"
        f"Content-Length: {len(REFUSAL)}\r\n\r\n"
    )
    return head.encode() + REFUSAL


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    size_bytes = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            size_bytes = int(value)
    return head + await reader.readexactly(size_bytes)

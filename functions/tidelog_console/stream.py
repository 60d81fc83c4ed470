"""Server-sent events: a bounded number of streams, each with a beat that finds dead ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from tidelog_core.errors import TidelogError

from tidelog_console.guard import HEADERS
from tidelog_console.sessions import Visitor
from tidelog_console.web_context import console_of, visitor_of

STREAMS_MAX = 64  # of the console
STREAMS_PER_VISITOR_MAX = 8  # where visitors log in
BEAT_SECONDS = 10.0
WRITE_SECONDS_MAX = 10.0  # a browser that takes no event for so long is gone
STREAM_SECONDS_MAX = 4 * 3600.0


class TooManyStreams(TidelogError):
    """No more pages can be followed just now."""

    hint = "close another page that follows something"


class StreamEnded(Exception):
    """The browser is gone, or has had the stream long enough."""


@dataclass(slots=True)
class EventStream:
    """Events to one browser."""

    response: web.StreamResponse
    visitor: Visitor
    ends_at: float = field(
        default_factory=lambda: asyncio.get_running_loop().time() + STREAM_SECONDS_MAX
    )

    async def send(self, event: str, data: object) -> None:
        """Send an event with JSON. Raises ``StreamEnded``."""
        text = json.dumps(data, separators=(",", ":"))
        await self._write(f"event: {event}\ndata: {text}\n\n".encode())

    async def beat(self) -> None:
        """Send nothing. Raises ``StreamEnded`` if the browser is gone."""
        await self._write(b": beat\n\n")

    async def _write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        if self.visitor.ended.is_set() or loop.time() > self.ends_at:
            raise StreamEnded
        if self.visitor.name is not None:
            self.visitor.keep_alive()
        try:
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                await self.response.write(data)
        except (ConnectionError, TimeoutError):
            raise StreamEnded from None


@asynccontextmanager
async def opened_stream(request: web.Request) -> AsyncIterator[EventStream]:
    """Give a stream for the length of the block. Raises ``TooManyStreams``."""
    console, visitor = console_of(request), visitor_of(request)
    if console.stream_count >= STREAMS_MAX:
        raise TooManyStreams(f"{STREAMS_MAX} pages are followed already")
    if visitor.name is not None and visitor.stream_count >= STREAMS_PER_VISITOR_MAX:
        raise TooManyStreams(f"you follow {STREAMS_PER_VISITOR_MAX} pages already")
    console.stream_count += 1
    visitor.stream_count += 1
    try:
        response = web.StreamResponse(
            headers={
                **HEADERS,
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        await response.prepare(request)
        yield EventStream(response, visitor)
    finally:
        console.stream_count -= 1
        visitor.stream_count -= 1

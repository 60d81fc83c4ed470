"""An HTTP proxy that loses requests or answers, to order, and shows requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from urllib.parse import urlsplit

from tests.support.store_proxy import reset


class LossyProxy:
    """Relays one request at a time per connection to ``upstream``.

    A lost request never reaches the server; a lost answer was carried out. Either way
    the connection is closed without a word, or reset if that is asked for.
    """

    def __init__(
        self, upstream: str, *, on_request: Callable[[bytes], None] = lambda _: None
    ) -> None:
        """``on_request`` is called with each whole request before it is passed on."""
        parts = urlsplit(upstream)
        self._on_request = on_request
        self._address = (parts.hostname, parts.port)
        self._requests_to_lose = 0
        self._answers_to_lose = 0
        self._every_nth = 0
        self._resets = False
        self._answer_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.lost_request_count = 0
        self.lost_answer_count = 0
        self.url = ""

    def lose_requests(self, count: int) -> None:
        self._requests_to_lose = count

    def lose_answers(self, count: int, *, resets: bool = False) -> None:
        self._answers_to_lose = count
        self._resets = resets

    def lose_every_nth_answer(self, n: int) -> None:
        self._every_nth = n

    async def __aenter__(self) -> LossyProxy:
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
        self._server.close()
        # Ending their connections ends the tasks; asyncio.streams does not take it well
        # when its tasks are cancelled.
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        upstream: asyncio.StreamWriter | None = None
        self._writers.add(writer)
        try:
            answers, upstream = await asyncio.open_connection(*self._address)
            self._writers.add(upstream)
            while await self._relay_one(reader, writer, answers, upstream):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for one in (writer, upstream):
                if one is not None:
                    self._writers.discard(one)
                    one.close()
                    with contextlib.suppress(ConnectionError):
                        await one.wait_closed()

    async def _relay_one(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        request = await _read_message(reader)
        if self._requests_to_lose > 0:
            self._requests_to_lose -= 1
            self.lost_request_count += 1
            return False
        self._on_request(request)
        upstream.write(request)
        answer = await _read_message(answers)
        self._answer_count += 1
        is_nth = self._every_nth > 0 and self._answer_count % self._every_nth == 0
        if self._answers_to_lose > 0 or is_nth:
            self._answers_to_lose = max(0, self._answers_to_lose - 1)
            self.lost_answer_count += 1
            if self._resets:
                reset(writer)
            return False
        writer.write(answer)
        await writer.drain()
        return True


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    size_bytes = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        match name.strip().lower():
            case b"content-length":
                size_bytes = int(value)
            case b"transfer-encoding":
                raise AssertionError("a message in chunks is not expected here")
    return head + await reader.readexactly(size_bytes)

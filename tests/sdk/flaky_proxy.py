"""A TCP proxy that loses connections at the worst moments, for tests of retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tools.ports import free_port

Rule = Callable[[int, bytes], bool]


class FlakyProxy:
    """Forwards to a node; ``loses_answer`` decides which answers are lost, connection included.

    A rule gets the number of the answer over all connections and its bytes. The node has
    dealt with the request by then: the client cannot know.
    """

    def __init__(
        self,
        target_port: int,
        *,
        port: int | None = None,
        loses_answer: Rule = lambda *_: False,
    ) -> None:
        self.port = free_port() if port is None else port
        self.loses_answer = loses_answer
        self.lost_count = 0
        self.is_down = False  # refuses connections
        self._target_port = target_port
        self._answer_count = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FlakyProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break every connection now."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self.is_down:
                return
            up, down = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._writers.add(down)
            try:
                await asyncio.gather(
                    self._pump(reader, down, lambda _: False),
                    self._pump(up, writer, self._is_lost),
                )
            finally:
                down.transport.abort()
                self._writers.discard(down)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    def _is_lost(self, frame: bytes) -> bool:
        self._answer_count += 1
        lost = self.loses_answer(self._answer_count, frame)
        self.lost_count += lost
        return lost

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_lost: Callable[[bytes], bool],
    ) -> None:
        while True:
            size = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(size, "big"))
            if is_lost(frame):
                raise ConnectionResetError
            writer.write(size + frame)
            await writer.drain()

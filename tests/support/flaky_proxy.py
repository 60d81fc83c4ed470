"""A TCP proxy that loses connections or withholds answers at the worst moments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum

from tests.support.tcp_proxy import HOST, ProxiedConnection, TcpProxy

Rule = Callable[[int, bytes], bool]


class _Fate(Enum):
    PASSES = "passes"
    KEPT_BACK = "kept back"
    LOST = "lost"  # with its connection


class FlakyProxy(TcpProxy):
    """Forwards to a node; ``loses_answer`` decides which answers are lost, connection included.

    A rule gets the number of the answer over all connections and its bytes. The node has
    dealt with the request by then: the client cannot know.
    """

    def __init__(
        self,
        target_port: int,
        *,
        port: int = 0,
        loses_answer: Rule = lambda *_: False,
        on_request: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """``on_request`` is called with each request, size left out."""
        super().__init__((HOST, target_port), port=port)
        self._on_request = on_request
        self.loses_answer = loses_answer
        self.lost_count = 0
        self.kept_back_count = 0
        self.is_down = False  # refuses connections
        self.keeps_back: int | None = None  # the API key of requests that get no answer
        self.held_count = 0
        self._answer_count = 0
        self._held: tuple[int, frozenset[ProxiedConnection]] | None = None
        self._let_go = asyncio.Event()

    def hold(self, api_key: int) -> None:
        """Hold answers to such requests of the present connections until ``let_go``."""
        self._held = api_key, frozenset(self._connections)
        self._let_go = asyncio.Event()

    def let_go(self) -> None:
        """Pass on the answers that are held."""
        self._held = None
        self._let_go.set()

    async def relay(self, connection: ProxiedConnection) -> None:
        """Relay frame after frame, until one is lost."""
        if self.is_down:
            return
        client, node = connection.client, await connection.dial()
        apis: set[int] = set()  # of this connection's requests
        unanswered: dict[bytes, int] = {}  # APIs by correlation id

        async def on_request(frame: bytes) -> _Fate:
            api_key = int.from_bytes(frame[:2], "big")
            apis.add(api_key)
            unanswered[frame[4:8]] = api_key
            self._on_request(frame)
            return _Fate.PASSES

        async def on_answer(frame: bytes) -> _Fate:
            api_key = unanswered.pop(frame[:4], None)
            if self._held is not None and connection in self._held[1] and api_key == self._held[0]:
                self.held_count += 1
                await self._let_go.wait()
            if self.keeps_back in apis:
                self.kept_back_count += 1
                return _Fate.KEPT_BACK
            return _Fate.LOST if self._is_lost(frame) else _Fate.PASSES

        await asyncio.gather(
            self._pump(client[0], node[1], on_request), self._pump(node[0], client[1], on_answer)
        )

    def _is_lost(self, frame: bytes) -> bool:
        self._answer_count += 1
        lost = self.loses_answer(self._answer_count, frame)
        self.lost_count += lost
        return lost

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decide: Callable[[bytes], Awaitable[_Fate]],
    ) -> None:
        while True:
            size = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(size, "big"))
            fate = await decide(frame)
            if fate is _Fate.LOST:
                raise ConnectionResetError
            if fate is _Fate.KEPT_BACK:
                continue
            writer.write(size + frame)
            await writer.drain()

"""Handlers that are imported and made by the first request of one of their APIs.

Most nodes are asked for few of Kafka's APIs, and the modules behind the others would take a third
of a node's start and memory. A ``LateHandler`` has the routes of its handler from a table, so that
ApiVersions, guards and recorders see them. The first request waits while a thread imports the
handler's modules; then the event loop makes the handler.

``late_imports`` says what the loop does meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from tidelog_node.processes.late_imports import imported
from tidelog_node.requests.routes import RequestContext, Route

Handle = Callable[[Any, RequestContext], Awaitable[object]]


class Handler(Protocol):
    """The handler of some APIs."""

    def routes(self) -> Iterable[Route]:
        """Return its routes."""


class Versions(NamedTuple):
    """An API and the versions of it that one route serves, both included."""

    api_key: int
    min_version: int
    max_version: int


Make = Callable[[], Handler]
Load = Callable[[], Make]
"""Imports the handler, in any thread; what it returns makes the handler, on the event loop."""


class LateHandler:
    """The routes of a handler that need not be there yet. For the tasks of one event loop."""

    def __init__(
        self,
        load: Load,
        versions: Iterable[tuple[int, int, int]],
        *,
        prepare: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """``prepare`` is awaited before the handler is made, by each request until that has worked.

        ``versions`` has API key, lowest and highest version of each of the handler's routes.
        """
        self._load = load
        self._versions = [Versions(*one) for one in versions]
        self._prepare = prepare
        self._lock = asyncio.Lock()
        self._handles: dict[Versions, Handle] = {}

    def routes(self) -> list[Route]:
        """Return the routes, whose first request makes the handler."""
        return [Route(*one, partial(self._handle, one)) for one in self._versions]

    async def make(self) -> None:
        """Make the handler, if it is not made yet."""
        async with self._lock:
            if self._handles:
                return
            make = await imported(self._load)
            if self._prepare is not None:
                await self._prepare()
            handles = {
                Versions(route.api_key, route.min_version, route.max_version): route.handle
                for route in make().routes()
            }
            assert handles.keys() == set(self._versions), "the table names the handler's routes"
            self._handles = handles

    async def _handle(self, versions: Versions, request: Any, context: RequestContext) -> object:
        if not self._handles:
            await self.make()
        return await self._handles[versions](request, context)

"""Handlers that the first request of one of their APIs makes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from tidelog_node.requests.late_routes import Handler, LateHandler
from tidelog_node.requests.routes import RequestContext, Route

from tests.support.request_contexts import context_of

VERSIONS = ((7, 0, 3), (7, 4, 5))


class Echo:
    """Answers with the request, and which of its routes it came by."""

    def routes(self) -> list[Route]:
        return [Route(7, 0, 3, self.older), Route(7, 4, 5, self.newer)]

    async def older(self, request: object, _: RequestContext) -> object:
        return "older", request

    async def newer(self, request: object, _: RequestContext) -> object:
        return "newer", request


async def test_the_first_request_makes_the_handler_and_a_thread_imports_it() -> None:
    loaded_by: list[threading.Thread] = []

    def load() -> Callable[[], Handler]:
        loaded_by.append(threading.current_thread())
        return Echo

    late = LateHandler(load, VERSIONS)
    older, newer = late.routes()
    assert [(one.api_key, one.min_version, one.max_version) for one in late.routes()] == [*VERSIONS]
    assert loaded_by == []
    context = context_of(5)
    # Of those that come together, one has it made.
    assert await asyncio.gather(older.handle(1, context), newer.handle(2, context)) == [
        ("older", 1),
        ("newer", 2),
    ]
    assert await newer.handle(3, context) == ("newer", 3)
    assert len(loaded_by) == 1
    assert loaded_by[0] is not threading.main_thread()


async def test_a_handler_that_cannot_be_made_is_tried_again_by_the_next_request() -> None:
    failures = [OSError("no memory"), OSError("still none")]

    async def prepare() -> None:
        if failures:
            raise failures.pop(0)

    late = LateHandler(lambda: Echo, VERSIONS, prepare=prepare)
    route = late.routes()[0]
    for problem in ("no memory", "still none"):
        with pytest.raises(OSError, match=problem):
            await route.handle(1, context_of(5))
    assert await route.handle(1, context_of(5)) == ("older", 1)


async def test_a_table_that_differs_from_the_handler_is_a_bug() -> None:
    late = LateHandler(lambda: Echo, ((7, 0, 5),))
    with pytest.raises(AssertionError, match="the table"):
        await late.routes()[0].handle(1, context_of(5))

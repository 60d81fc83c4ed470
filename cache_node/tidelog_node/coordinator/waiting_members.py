"""Classic members that wait for the answers to their JoinGroup and SyncGroup requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from kio.schema.errors import ErrorCode

from tidelog_node.coordinator.turns import AT_ONCE
from tidelog_node.groups.classic_messages import JoinAnswer, RequestNumber, SyncAnswer
from tidelog_node.groups.step import Step

Answer = TypeVar("Answer")


class WaitingMembers:
    """The waiting requests of one group, by number."""

    def __init__(self) -> None:
        self._joins: dict[RequestNumber, asyncio.Future[JoinAnswer]] = {}
        self._syncs: dict[RequestNumber, asyncio.Future[SyncAnswer]] = {}

    def join(self, number: RequestNumber) -> AbstractContextManager[asyncio.Future[JoinAnswer]]:
        """Return the context in which a JoinGroup waits for its answer."""
        return _waiting(self._joins, number)

    def sync(self, number: RequestNumber) -> AbstractContextManager[asyncio.Future[SyncAnswer]]:
        """Return the context in which a SyncGroup waits for its answer."""
        return _waiting(self._syncs, number)

    def answer(self, step: Step) -> None:
        """Send the step's answers, a few at a time: a generation may have thousands."""
        for number, joined in step.joins[:AT_ONCE]:
            _answer(self._joins.get(number), joined)
        for number, synced in step.syncs[:AT_ONCE]:
            _answer(self._syncs.get(number), synced)
        rest = Step(joins=step.joins[AT_ONCE:], syncs=step.syncs[AT_ONCE:])
        if rest.joins or rest.syncs:
            asyncio.get_running_loop().call_soon(self.answer, rest)

    def fail(self, error: ErrorCode) -> None:
        """Answer all requests with the error."""
        for join in self._joins.values():
            _answer(join, JoinAnswer(error=error))
        for sync in self._syncs.values():
            _answer(sync, SyncAnswer(error=error))


@contextmanager
def _waiting(
    waiting: dict[RequestNumber, asyncio.Future[Answer]], number: RequestNumber
) -> Iterator[asyncio.Future[Answer]]:
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    waiting[number] = answer
    try:
        yield answer
    finally:
        waiting.pop(number, None)


def _answer(waiting: asyncio.Future[Answer] | None, answer: Answer) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(answer)

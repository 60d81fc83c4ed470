"""The start, close and retry logic that all calls of ``Admin`` share."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TypeVar

from kio.schema.errors import ErrorCode

from tidelog.client import Client
from tidelog.cluster import Cluster
from tidelog.errors import (
    ClientClosed,
    RequestTimedOut,
    SeveralFailed,
    TidelogError,
    error_for,
    topic_error,
)

T = TypeVar("T")
Outcomes = Mapping[str, tuple[ErrorCode, str | None]]
"""The code and message of each name."""


class AdminCalls(Client):
    """Owns the admin's connections and retries its calls."""

    def __init__(self, cluster: Cluster, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_ms / 1000
        self._starting = asyncio.Lock()
        self._is_closed = False

    async def start(self) -> None:
        """Connect. Idempotent; every call starts the admin if needed.

        Raises ``ConnectionFailed`` if no node answers within the request timeout.
        """
        async with self._starting:
            if self._is_closed:
                raise ClientClosed("the admin is closed")
            await self._cluster.start()

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            await self._cluster.close()

    @property
    def _request_timeout(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self._cluster.request_timeout_s)

    async def _retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the attempt's result; retriable errors are retried until the timeout."""
        await self.start()
        backoff = self._cluster.backoff()
        failure: TidelogError | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        return await attempt()
                    except TidelogError as error:
                        failure = error
                        if not _may_pass(error):
                            raise
                        self._cluster.invalidate()
                        await asyncio.sleep(backoff.next_s())
        except TimeoutError:
            raise failure or RequestTimedOut(f"no answer within {self._timeout_s:g} s") from None

    async def _each_retried(
        self,
        names: Iterable[str],
        send: Callable[[Collection[str]], Awaitable[Outcomes]],
        what: str,
    ) -> None:
        """Have ``send`` ask for all names, and again for those whose error may pass.

        A request may fail for some names and be carried out for the others, which must not be
        asked for twice. Raises the errors that are left, as ``raise_failures``.
        """
        left, failed = dict.fromkeys(names), dict[object, tuple[ErrorCode, str | None]]()

        async def attempt() -> None:
            for name in left:
                failed.pop(name, None)
            passing: TidelogError | None = None
            answered = await send(left.keys())
            for name in left.keys() - answered.keys():
                del left[name]  # Whether it was done is unknown.
                failed[name] = ErrorCode.unknown_server_error, "the node's answer lacks it"
            for name, (code, message) in answered.items():
                if code is not ErrorCode.none:
                    failed[name] = code, message
                    error = _failure(what, name, code, message)
                    if _may_pass(error):
                        passing = error
                        continue
                left.pop(name, None)
            if passing is not None:
                raise passing

        try:
            await self._retried(attempt)
        except TidelogError:
            if not failed:
                raise
        raise_failures(failed, what=what)


def _may_pass(error: TidelogError) -> bool:
    # Only clients that wait for a topic to appear retry this error. An admin asked for the
    # topic by name and reports that it does not exist.
    return error.retriable and error.code is not ErrorCode.unknown_topic_or_partition


def raise_failures(failures: Mapping[object, tuple[ErrorCode, str | None]], *, what: str) -> None:
    """Raise the only error among the answers as it is, or several as ``SeveralFailed``."""
    errors = {
        name: _failure(what, name, code, message)
        for name, (code, message) in failures.items()
        if code is not ErrorCode.none
    }
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        raise SeveralFailed({str(name): error for name, error in errors.items()})


def _failure(what: str, name: object, code: ErrorCode, message: str | None) -> TidelogError:
    if what == "topic":
        return topic_error(code, message, topic=str(name))
    return error_for(code, message, about=f"{what} {name}" if what else name)

"""The start, close and retry logic that all calls of ``Admin`` share."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from tidelog.client import Client
from tidelog.cluster import Cluster
from tidelog.consuming.coordinator import Coordinator
from tidelog.errors import (
    ClientClosed,
    EntryNotAnswered,
    RequestTimedOut,
    SeveralFailed,
    TidelogError,
    error_for,
    topic_error,
)
from tidelog.wire.answers import find_entries
from tidelog.wire.requests import Api

T = TypeVar("T")
NameT = TypeVar("NameT", bound=Hashable)


class AdminCalls(Client):
    """Owns the admin's connections and retries its calls."""

    def __init__(self, cluster: Cluster, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_ms / 1000
        self._starting = asyncio.Lock()
        self._is_closed = False

    async def start(self) -> None:
        """Connect. Idempotent; every call starts the admin if needed.

        Raises ``ConnectionFailed`` if no node answers within ``bootstrap_timeout_ms``.
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

    async def _ask(
        self,
        api: Api,
        request: object,
        *,
        about: object,
        node_id: int | None = None,
    ) -> Any:
        """Return the answer, retried; raises the error that the answer has as a whole."""

        async def attempt() -> Any:
            response = await self._cluster.request(api, request, node_id=node_id)
            raise_error(response, about)
            return response

        return await self._retried(attempt)

    async def _ask_coordinator(self, coordinator: Coordinator, api: Api, request: object) -> Any:
        """As ``_ask``, with a request for the coordinator."""

        def read(response: Any) -> Any:
            raise_error(response, coordinator)
            return response

        await self.start()
        return await coordinator.retried(api, request, read, timeout_s=self._timeout_s)

    async def _ask_coordinator_for_entry(
        self, coordinator: Coordinator, api: Api, request: object
    ) -> Any:
        """Return the answer's entry of what is coordinated; retried. Raises the entry's error."""

        def read(response: Any) -> Any:
            (entry,) = find_entries(api, response, [coordinator.group_id], depth=1).values()
            raise_error(entry, coordinator)
            return entry

        await self.start()
        entry = await coordinator.retried(api, request, read, timeout_s=self._timeout_s)
        if entry is None:
            raise EntryNotAnswered([coordinator], about="")
        return entry

    async def _ask_for_each(
        self,
        api: Api,
        names: Iterable[NameT],
        request_for: Callable[[list[NameT]], object],
        *,
        what: str,
        node_id: int | None = None,
    ) -> dict[NameT, Any]:
        """Return the entry of each name in the answer; ask again for those whose error may pass.

        ``request_for`` makes the request for the names that are left. It may fail for some and be
        carried out for the others, which must not be asked for twice, nor must those that an
        answer lacks. Raises the errors that are left, as ``raise_failures``.
        """
        left = dict.fromkeys(names)
        found: dict[NameT, Any] = {}
        failed: dict[NameT, TidelogError] = {}
        if not left:
            return found  # To some nodes, no names are all.

        async def attempt() -> None:
            for name in left:
                failed.pop(name, None)
            response = await self._cluster.request(api, request_for(list(left)), node_id=node_id)
            raise_error(response, what)
            entries = find_entries(api, response, left)
            errors = failures_in(entries, what)
            failed.update(errors)
            found.update((name, entry) for name, entry in entries.items() if name not in errors)
            passing = {name: error for name, error in errors.items() if _may_pass(error)}
            for name in entries.keys() - passing.keys():
                del left[name]
            if passing:
                raise next(iter(passing.values()))

        try:
            await self._retried(attempt)
        except TidelogError:
            if not failed:
                raise
        raise_failures(failed)
        return found


def raise_error(answer: Any, about: object) -> None:
    """Raise the error of an answer, or of an entry, if it has one."""
    code = getattr(answer, "error_code", ErrorCode.none)
    if code is not ErrorCode.none:
        raise error_for(code, getattr(answer, "error_message", None), about=about)


def failures_in(entries: Mapping[NameT, Any], what: str) -> dict[NameT, TidelogError]:
    """Return the errors of entries, and of those that are ``None``: the answer lacks them."""
    failures = {name: _failure(what, name, entry) for name, entry in entries.items()}
    return {name: error for name, error in failures.items() if error is not None}


def raise_failures(failures: Mapping[Any, TidelogError]) -> None:
    """Raise the only error as it is, or several as ``SeveralFailed``."""
    if len(failures) == 1:
        raise next(iter(failures.values()))
    if failures:
        raise SeveralFailed({str(name): error for name, error in failures.items()})


def _may_pass(error: TidelogError) -> bool:
    # Only clients that wait for a topic to appear retry this error. An admin asked for the
    # topic by name and reports that it does not exist.
    return (
        error.retriable
        and error.code is not ErrorCode.unknown_topic_or_partition
        and not isinstance(error, EntryNotAnswered)  # Whether it was done is unknown.
    )


def _failure(what: str, name: object, entry: Any) -> TidelogError | None:
    if entry is None:
        return EntryNotAnswered([name], about=what.rstrip(","))
    if entry.error_code is ErrorCode.none:
        return None
    message = getattr(entry, "error_message", None)
    if what == "topic":
        return topic_error(entry.error_code, message, topic=str(name))
    return error_for(entry.error_code, message, about=f"{what} {name}" if what else name)

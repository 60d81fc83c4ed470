"""``SyncConsumer`` for programs without an event loop."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from tidelog_core.model import TopicPartition

from tidelog.consuming.reader import RecordReader
from tidelog.consuming.records import ConsumerRecord
from tidelog.consuming.subscription import RebalanceListener, SubscriptionPattern
from tidelog.errors import ClientClosed, InvalidRequest
from tidelog.sync import Blocking, InLoop, SyncClient

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")


class Polling(Blocking[C, P, list[T]]):
    """Turns a poll into a blocking method. Records that an interrupt takes away are read again."""

    def __get__(
        self, sync_client: SyncClient[Any], owner: type[SyncClient[Any]]
    ) -> Callable[P, list[T]]:
        """Return the method, bound to the client."""

        def call(*args: P.args, **kwargs: P.kwargs) -> list[T]:
            taken: list[T] = []

            async def poll() -> list[T]:
                taken[:] = await self._method(sync_client.client, *args, **kwargs)
                return taken

            try:
                return sync_client.thread.run(poll())
            except Exception:
                raise
            except BaseException:
                # The records may be taken already: nobody would process them, but the next poll,
                # or close(), would commit them.
                with suppress(ClientClosed):
                    sync_client.thread.call_soon(lambda: sync_client.client.give_back(taken))
                raise

        return call


class SyncConsumer(SyncClient[RecordReader]):
    """``Consumer`` without an event loop; iterate it, or poll. Read from one thread.

    A rebalance listener's methods run in their own thread and may call the consumer, but for
    ``close`` and ``unsubscribe``, which raise ``InvalidRequest`` there.
    """

    _threaded: _Threaded | None = None  # the listener of the last ``subscribe``

    assign = InLoop(RecordReader.assign)
    subscription = InLoop(RecordReader.subscription)
    assignment = InLoop(RecordReader.assignment)
    pause = InLoop(RecordReader.pause)
    resume = InLoop(RecordReader.resume)
    paused = InLoop(RecordReader.paused)
    poll = Polling(RecordReader.poll)
    poll_arrow = Polling(RecordReader.poll_arrow)
    position = Blocking(RecordReader.position)
    seek = InLoop(RecordReader.seek)
    seek_to_beginning = InLoop(RecordReader.seek_to_beginning)
    seek_to_end = InLoop(RecordReader.seek_to_end)
    seek_to_committed = InLoop(RecordReader.seek_to_committed)
    positions = InLoop(RecordReader.positions)
    group_metadata = InLoop(RecordReader.group_metadata)
    high_watermark = InLoop(RecordReader.high_watermark)
    beginning_offsets = Blocking(RecordReader.beginning_offsets)
    end_offsets = Blocking(RecordReader.end_offsets)
    offsets_for_times = Blocking(RecordReader.offsets_for_times)
    commit = Blocking(RecordReader.commit)
    committed = Blocking(RecordReader.committed)

    def subscribe(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | SubscriptionPattern | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """As ``Consumer.subscribe``."""
        threaded = self._threaded = None if listener is None else _Threaded(listener)

        async def subscribe() -> None:
            self.client.subscribe(topics, pattern=pattern, listener=threaded)

        self.thread.run(subscribe())

    def unsubscribe(self) -> None:
        """As ``Consumer.unsubscribe``."""
        self._check_caller()
        self.thread.run(self.client.unsubscribe())

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records one by one, without end."""
        while True:
            yield from self.client.hand_out_run(self.thread.run(self.client.next_run()))

    def _close(self, *, has_failed: bool) -> None:
        self._check_caller()
        super()._close(has_failed=has_failed)

    def _check_caller(self) -> None:
        """Raise ``InvalidRequest`` in a thread of the listener: leaving would wait for its end."""
        if self._threaded is not None and self._threaded.is_caller:
            raise InvalidRequest(
                "a rebalance listener cannot close or unsubscribe its consumer: do so behind the"
                " poll, or in another thread"
            )

    def _end(self, *, has_failed: bool) -> Coroutine[Any, Any, None]:
        return self.client.close(has_failed=has_failed)


class _Threaded(RebalanceListener):
    """Runs a plain listener's methods in a thread: they may block and call the consumer."""

    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener
        self._threads: set[int] = set()  # the ids of those that call the listener now

    @property
    def is_caller(self) -> bool:
        """Whether the running thread calls the listener."""
        return threading.get_ident() in self._threads

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Call the listener in a thread."""
        await asyncio.to_thread(self._call, self._listener.on_partitions_assigned, partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Call the listener in a thread."""
        await asyncio.to_thread(self._call, self._listener.on_partitions_revoked, partitions)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Call the listener in a thread."""
        await asyncio.to_thread(self._call, self._listener.on_partitions_lost, partitions)

    def _call(
        self,
        method: Callable[[Collection[TopicPartition]], object],
        partitions: Collection[TopicPartition],
    ) -> None:
        self._threads.add(threading.get_ident())
        try:
            method(partitions)
        finally:
            self._threads.discard(threading.get_ident())

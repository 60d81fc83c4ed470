"""Carries out a chain writer's decisions about objects, each request in a task of its own.

An object has one request, which builds it and puts it at once. The writer hears of the header as
soon as it is built, and decides on the first PUT when that has begun already: it never decides
otherwise. Further PUTs have requests of their own.

**Errors.** Nothing that the store answers ends a chain, except that somebody else has its next
place. Requests are repeated by the writer's decision alone. An object that can never be built
(``ChainBroken``), and any unexpected failure, end the chain.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

from tidelog_core.diskless.chain.chain_writer import BuildObject, ChainWriter, Decision, PutOutcome
from tidelog_core.diskless.wal.header import WalHeader
from tidelog_core.errors import TidelogError

from tidelog_node.counters import ChainTraffic
from tidelog_node.diskless.chain.pending_objects import ChainBroken, PendingObject, PendingObjects
from tidelog_node.diskless.chain.wal_client import WalClient

logger = logging.getLogger(__name__)

# Until then the next build may tell the worker what is committed. It bounds how long the last
# objects of an idle chain are kept, and the slower one of two PUTs goes on.
DROP_SECONDS = 0.25
LAST_DROP_SECONDS_MAX = 2.0  # of the end of a chain, also if the worker hangs
FIRST_ATTEMPT = 1  # of an object's PUTs, as ``ChainWriter`` counts them
HEADER_SECONDS_MAX = 5.0  # of one read: all later acks wait for it


class WorkedChain(Protocol):
    """The chain that has objects built and put; ``OwnedChain``."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to be done."""

    def act(self, decisions: Sequence[Decision], /) -> None:
        """Carry out the writer's decisions."""

    def abandon(self, reason: str, /) -> None:
        """End the chain as if it were deposed."""


class ChainWork:
    """The requests of one chain that are under way. For the node's event loop."""

    def __init__(
        self,
        chain: WorkedChain,
        writer: ChainWriter,
        *,
        wal: WalClient,
        objects: PendingObjects,
        traffic: ChainTraffic,
    ) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._chain = chain
        self._writer = writer
        self._wal = wal
        self._objects = objects
        self._traffic = traffic
        self._dropped_end = 0  # the worker has forgotten the objects below
        self._dropping: asyncio.TimerHandle | None = None

    def build(self, decision: BuildObject) -> None:
        """Have an object built and put: the next one, or one whose build has failed before."""
        if self._objects.get(decision.sequence) is None:
            self._objects.add(decision)
        self._spawn(self._build_and_put(decision.sequence))

    def put(self, sequence: int, attempt: int) -> None:
        """Put an object by one request. The request that has built it is the first attempt."""
        if attempt > FIRST_ATTEMPT:
            self._spawn(self._put_again(sequence, attempt))

    def read_header(self, sequence: int) -> None:
        """Read the header of the object at a sequence of the chain."""
        self._spawn(self._read(sequence))

    def drop_committed(self) -> None:
        """Have the worker forget the committed objects, soon: the next build names them, too."""
        if self._dropping is None and not self._wal.is_local:
            self._dropping = self._loop.call_later(DROP_SECONDS, self._drop)

    async def end(self) -> None:
        """Cancel all requests; the worker forgets the objects."""
        if self._dropping is not None:
            self._dropping.cancel()
            self._dropping = None
        tasks = [task for task in self.tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._writer.next_sequence:
            with suppress(TimeoutError):  # A worker that goes on later finds the request.
                async with asyncio.timeout(LAST_DROP_SECONDS_MAX):
                    await self._objects.drop(self._writer.next_sequence)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._chain.has_ended:
            work.close()
            return
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, ChainBroken):
            logger.error("chain has failed unexpectedly", exc_info=error)
        self._chain.abandon(str(error) or repr(error))

    async def _build_and_put(self, sequence: int) -> None:
        pending = self._objects.get(sequence)
        assert pending is not None  # Nothing commits it before it is built.
        try:
            outcome = await self._objects.build_and_put(sequence, self._on_built)
        except ChainBroken:
            raise
        except (TidelogError, OSError) as error:
            # The worker is starting or full, or the log is being exchanged.
            logger.info("object is not built yet", extra={"reason": str(error)})
            self._chain.act(self._writer.on_build_failed(sequence, self._now_ms()))
        else:
            self._on_answer(pending, FIRST_ATTEMPT, outcome)

    def _on_built(self, header: WalHeader) -> None:
        """Take the header of an object whose first PUT begins. Raises nothing."""
        pending = self._objects.get(header.sequence)
        if pending is None or self._chain.has_ended:
            return
        self._count_attempt(pending)
        self._note_dropped(pending.built.committed_end)
        try:
            self._chain.act(self._writer.on_built(header.sequence, header, self._now_ms()))
        except Exception as error:
            self._fail(error)

    async def _put_again(self, sequence: int, attempt: int) -> None:
        pending = self._objects.get(sequence)
        if pending is None:
            return  # The first PUT has been answered in this turn.
        self._count_attempt(pending)
        outcome = await self._objects.put(sequence, attempt)
        self._on_answer(pending, attempt, outcome)

    def _on_answer(self, pending: PendingObject, attempt: int, outcome: PutOutcome) -> None:
        pending.open -= 1
        self._count_outcome(outcome, self._loop.time() - pending.began_s)
        sequence = pending.built.sequence
        self._chain.act(self._writer.on_put(sequence, attempt, outcome, self._now_ms()))

    async def _read(self, sequence: int) -> None:
        try:
            async with asyncio.timeout(HEADER_SECONDS_MAX):
                header = await self._wal.header(sequence)
        except (TidelogError, TimeoutError) as error:
            logger.warning(
                "the object at a sequence of the chain cannot be read, will retry",
                extra={"sequence": sequence, "reason": repr(error)},
            )
            decisions = self._writer.on_header_unreadable(sequence, self._now_ms())
        else:
            decisions = self._writer.on_header(sequence, header, self._now_ms())
        self._chain.act(decisions)

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _note_dropped(self, below: int) -> None:
        """Note that a build request named the committed end: no request of its own is needed."""
        self._dropped_end = max(self._dropped_end, below)
        if self._dropping is not None and self._dropped_end == self._writer.committed_end:
            self._dropping.cancel()
            self._dropping = None

    def _drop(self) -> None:
        self._dropping = None
        if self._dropped_end < self._writer.committed_end:
            self._dropped_end = self._writer.committed_end
            self._spawn(self._objects.drop(self._dropped_end))

    # -- counting --

    def _count_attempt(self, pending: PendingObject) -> None:
        if pending.open:
            self._traffic.hedge_count += 1
        elif pending.attempt_count:
            self._traffic.retry_count += 1
        pending.attempt_count += 1
        pending.open += 1

    def _count_outcome(self, outcome: PutOutcome, seconds: float) -> None:
        if outcome is PutOutcome.STORED:
            self._traffic.puts.observe(seconds)
        elif outcome is PutOutcome.THROTTLED:
            self._traffic.throttled_count += 1
        elif outcome is PutOutcome.UNKNOWN:
            self._traffic.unknown_count += 1

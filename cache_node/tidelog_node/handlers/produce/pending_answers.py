"""Produce answers that wait for replication or a chain, for flushes, or both.

Each partition's leader state knows its waiting acks. One timer for all waiting requests is all that
runs in the meantime. A follower's fetch releases the acks of many requests at once; the answers
are sent in the loop's next turn, one call for each connection. An ack that comes late or twice has
no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog_core.errors import ErrorCode, NotLeaderOrFollower, TidelogError

from tidelog_node.answers import PendingReply, Reply
from tidelog_node.replicas.replica import Replica
from tidelog_node.requests.routes import RequestContext
from tidelog_node.wire.primitives import cut_error_text
from tidelog_node.wire.produce import ProduceResult

ACK_TIMEOUT_SWEEP_SECONDS = 0.1  # how late a request may time out

Topics = list[tuple[bytes, list[ProduceResult]]]
_NO_RESULTS: list[ProduceResult] = []  # of an ack that is settled; never changed


GATEWAY_WAIT = -1  # for an offset: the partition's leader gives the ack, not this node's role


class PendingAck:
    """One partition of a request that waits for other replicas, or for a chain.

    With ``GATEWAY_WAIT`` as its offset it waits for ``on_placed``.
    """

    __slots__ = (
        "_index",
        "_results",
        "answer",
        "error_code",
        "is_settled",
        "replica",
        "required_offset",
    )

    def __init__(
        self, replica: Replica, required_offset: int, results: list[ProduceResult], index: int
    ) -> None:
        self.replica = replica
        self.required_offset = required_offset
        self.is_settled = False
        self.error_code = 0  # 0: none
        self.answer: PendingAnswer | None = None  # its answer, once that waits
        self._results = results
        self._index = index

    def on_ack(self, error: TidelogError | None) -> None:
        """Take the ack, or the error instead."""
        if error is not None:
            self.fail(error.code, str(error))
        elif not self.is_settled:
            self._settle()

    def on_placed(self, base_offset: int) -> None:
        """Take the ack of a batch that went through this node as a gateway, and its offset."""
        if not self.is_settled:
            result = self._results[self._index]
            self._results[self._index] = result._replace(base_offset=base_offset)
            self._settle()

    def fail(self, code: ErrorCode, message: str) -> None:
        """Answer with an error; the records stay in this node's log."""
        if not self.is_settled:
            result = self._results[self._index]
            self.error_code = int(code)
            self._results[self._index] = result._replace(
                error_code=code, error_message=cut_error_text(message).encode()
            )
            self._settle()

    def _settle(self) -> None:
        self.is_settled = True
        answer, self.answer = self.answer, None
        # The leader knows a late ack until its offset is committed: it must not keep the answer.
        self._results = _NO_RESULTS
        assert answer is not None
        answer.settle_one()


class PendingFlush(NamedTuple):
    """One partition of a request that waits for its records to be flushed."""

    done: asyncio.Future[None]
    results: list[ProduceResult]
    place: int  # the place of the partition's result


class PendingAnswer(PendingReply):
    """The results of a request so far, and the acks and flushes that it waits for."""

    __slots__ = (
        "_flushes",
        "_missing_count",
        "_owner",
        "acks",
        "context",
        "deadline",
        "topics",
    )

    def __init__(self, owner: PendingAnswers, context: RequestContext, topics: Topics) -> None:
        super().__init__()
        self.context = context
        self.topics = topics
        self.acks: Sequence[PendingAck] = ()
        self.deadline = 0.0  # the loop's time
        self._owner = owner
        self._missing_count = 0
        self._flushes: Sequence[PendingFlush] = ()

    def wait_for_acks(self, acks: Sequence[PendingAck]) -> None:
        """Wait for these acks, too."""
        self.acks = acks
        self._missing_count += len(acks)
        for ack in acks:
            ack.answer = self

    def wait_for_flushes(self, flushes: Sequence[PendingFlush]) -> None:
        """Wait for these flushes, too."""
        if not flushes:
            return
        self._missing_count += 1
        self._flushes = flushes
        gathered = asyncio.gather(*(flush.done for flush in flushes), return_exceptions=True)
        gathered.add_done_callback(self._on_flushed)

    def settle_one(self) -> None:
        """Note that an ack has come, or that all flushes are done."""
        self._missing_count -= 1
        if self._missing_count == 0:
            self._owner.finish(self)

    def _on_flushed(self, done: asyncio.Future[list[BaseException | None]]) -> None:
        for flush, problem in zip(self._flushes, done.result(), strict=True):
            if problem is not None:
                # It is unknown whether the records are durable: the producer sends them again.
                flush.results[flush.place] = flush.results[flush.place]._replace(
                    error_code=ErrorCode.kafka_storage_error,
                    error_message=f"flush failed: {problem}".encode(),
                )
        self.settle_one()


class PendingAnswers:
    """All waiting answers. For the node's event loop only."""

    def __init__(self, encode: Callable[[PendingAnswer], Reply]) -> None:
        self.loop = asyncio.get_running_loop()
        self._encode = encode
        self._waiting: set[PendingAnswer] = set()  # for acks
        self._sweep_timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Answer the waiting requests with a time-out."""
        self._expire(everything=True)

    def wait_for_acks(
        self, answer: PendingAnswer, acks: Sequence[PendingAck], *, timeout_ms: int
    ) -> None:
        """Wait for these acks before answering, up to ``timeout_ms``. May settle it at once."""
        if not acks:
            return
        answer.deadline = self.loop.time() + timeout_ms / 1000
        answer.wait_for_acks(acks)
        self._waiting.add(answer)
        if self._sweep_timer is None:
            self._start_sweep()
        for ack in acks:
            if ack.required_offset == GATEWAY_WAIT:
                continue
            role = ack.replica.role
            if role is None or role.leader is None:
                # The leadership ended while the request's other partitions were appended to.
                ack.on_ack(NotLeaderOrFollower("another node leads the partition"))
            else:
                role.add_pending_ack(ack.required_offset, ack)

    def finish(self, answer: PendingAnswer) -> None:
        """Send the answer: nothing is missing any more."""
        self._waiting.discard(answer)
        if not answer.is_settled:
            answer.settle(self._encode(answer))

    def _start_sweep(self) -> None:
        self._sweep_timer = self.loop.call_later(ACK_TIMEOUT_SWEEP_SECONDS, self._expire)

    def _expire(self, *, everything: bool = False) -> None:
        """Answer the requests whose time is up."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        now = self.loop.time()
        for answer in tuple(self._waiting):
            if everything or answer.deadline <= now:
                for ack in answer.acks:
                    ack.fail(ErrorCode.request_timed_out, "not committed within the request's time")
        if self._waiting and not everything:
            self._start_sweep()

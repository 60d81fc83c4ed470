"""A gateway's batches without an answer, and the lost batches of their producers.

add     the gateway has taken the batch
end     it has its answer: it is no longer needed here
lose    it was not appended, or nobody knows: it ends, and later batches of its producer are
        refused until the producer repeats it (``BrokenProducers``)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import ErrorCode
from tidelog_core.subscribers import Subscribers

from tidelog_node.counters import GatewayTraffic
from tidelog_node.diskless.chain.chain_fullness import stays_full
from tidelog_node.diskless.gateway.broken_producers import BrokenProducers, ProducerBatch
from tidelog_node.diskless.gateway.gateway_batches import GatewayBatch
from tidelog_node.diskless.gateway.gateway_objects import GatewayObjects
from tidelog_node.diskless.gateway.spool import GatewaySpool

# About 1 KiB each. All of them may get into one object, whose slices are listed for the worker in
# one turn of the loop.
PENDING_COUNT_MAX = 10_000


class PendingBatches:
    """The batches, in the order in which they were taken. For the node's event loop."""

    def __init__(
        self,
        traffic: GatewayTraffic,
        *,
        spool: GatewaySpool,
        objects: GatewayObjects,
        bytes_max: int,
        now_s: Callable[[], float],
    ) -> None:
        self.broken = BrokenProducers(now_s)
        self.is_full = False
        self.fullness = Subscribers[[bool]]()
        self._traffic = traffic
        self._spool = spool
        self._objects = objects
        self._bytes_max = bytes_max
        self._batches: dict[int, GatewayBatch] = {}  # in order
        # The numbers of an idempotent producer's batches; the first one has no answer.
        self._numbers: dict[tuple[PartitionName, int], deque[int]] = {}

    def __iter__(self) -> Iterator[GatewayBatch]:
        """Yield the batches in order; they may end while this is iterated."""
        return iter(tuple(self._batches.values()))

    def __contains__(self, one: GatewayBatch) -> bool:
        """Return whether the batch has no answer yet."""
        return one.number in self._batches

    @property
    def are_too_many(self) -> bool:
        """Whether no further batch may be added."""
        return len(self._batches) >= PENDING_COUNT_MAX

    def get(self, number: int) -> GatewayBatch | None:
        """Return the batch with the number, ``None`` once it has ended."""
        return self._batches.get(number)

    def add(self, batch: GatewayBatch) -> None:
        """Add a batch; the numbers grow."""
        self._batches[batch.number] = batch
        if batch.producer is not None:
            self._numbers.setdefault(_producer_of(batch), deque()).append(batch.number)
        self._traffic.batch_count += 1
        self._traffic.batch_bytes += batch.size_bytes
        self._traffic.pending_bytes += batch.size_bytes
        self._note_fullness()

    # -- the batches of one producer --

    def has_of(self, producer: ProducerBatch) -> bool:
        """Return whether batches of the producer and partition have no answer yet."""
        return (producer.partition, producer.producer_id) in self._numbers

    def is_behind_lost(self, batch: GatewayBatch) -> bool:
        """Return whether an earlier batch of its producer is lost and has not come again."""
        return batch.producer is not None and self.broken.blocks(batch.producer, batch.number)

    def is_behind_another(self, batch: GatewayBatch) -> bool:
        """Return whether an earlier batch of its producer is on its way."""
        numbers = self._numbers.get(_producer_of(batch))
        return numbers is not None and numbers[0] < batch.number

    def _later_of(self, one: GatewayBatch) -> Iterator[tuple[int, ProducerBatch]]:
        """Yield the later batches of the producer without an answer, with their numbers."""
        for number in self._numbers.get(_producer_of(one), ()):
            later = self._batches.get(number)
            if number > one.number and later is not None and later.producer is not None:
                yield number, later.producer

    # -- the end of a batch --

    def lose(
        self, batch: GatewayBatch, code: ErrorCode, message: str, *, keeps_place: bool = False
    ) -> None:
        """End a batch that was not appended, or whose outcome nobody knows, as ``end``."""
        if batch.producer is not None:
            self.broken.lose(batch.producer, batch.number, self._later_of(batch))
        self.end(batch, code, message, keeps_place=keeps_place)

    def end(
        self,
        batch: GatewayBatch,
        code: ErrorCode = ErrorCode.none,
        message: str = "",
        *,
        keeps_place: bool = False,
    ) -> None:
        """Forget the batch; its request fails if there is an error.

        With ``keeps_place`` the caller releases its place in the spool later.
        """
        if self._batches.pop(batch.number, None) is None:
            return
        self._traffic.pending_bytes -= batch.size_bytes
        numbers = self._numbers.get(_producer_of(batch))
        while numbers and numbers[0] not in self._batches:
            numbers.popleft()
        if not numbers:
            self._numbers.pop(_producer_of(batch), None)
        if code is not ErrorCode.none:
            self._traffic.lost_count += 1
            if batch.waiter is not None:
                batch.waiter.fail(code, message)
        if batch.gateway_object is not None:
            self._objects.settle(batch.gateway_object)
        elif not keeps_place:
            self._spool.release(batch.place)
        self._note_fullness()

    def _note_fullness(self) -> None:
        is_full = stays_full(
            len(self._batches), PENDING_COUNT_MAX, was_full=self.is_full
        ) or stays_full(self._traffic.pending_bytes, self._bytes_max, was_full=self.is_full)
        if is_full != self.is_full:
            self.is_full = is_full
            self.fullness.notify(is_full)


def _producer_of(one: GatewayBatch) -> tuple[PartitionName, int]:
    """Return the partition and the producer's id, -1 for a producer that is not idempotent."""
    return one.name, -1 if one.producer is None else one.producer.producer_id

"""Idempotence: the producer's id and epoch, and each partition's sequences.

Every batch of a partition carries (producer id, epoch, sequence of its first record).
The leader accepts a batch only if its sequence follows the last, and answers a known
batch with its offsets: so a batch may be sent again until there is a definite answer,
and is written once.

A batch keeps its numbers from the first attempt to its outcome. If the leader rejects
the sequence of the first unfinished batch (``OUT_OF_ORDER_SEQUENCE``), something before
it is missing for good: a batch that expired or was rejected, or a log that lost its end.
Then no unfinished batch was written. Once every answer is in, the partition starts over
at sequence 0 in a higher epoch, which the leader accepts as a new start; late copies of
the old epoch are fenced.

A leader without state of a producer accepts any first sequence. So the first batch of
each epoch is sent alone: if it were still in flight to a leader that died, the next
leader would accept the second batch as the first, and the records would change order.
Source: KIP-98, KIP-360.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from tidelog_core.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from tidelog_core.wire_messages import build

from tidelog.cluster import Cluster
from tidelog.errors import MalformedResponse, TidelogError, error_for
from tidelog.options import IN_FLIGHT_MAX_IDEMPOTENT
from tidelog.producing.accumulator import PartitionQueue, advance_sequence
from tidelog.producing.batch import ProducerBatch
from tidelog.wire.requests import INIT_PRODUCER_ID

logger = logging.getLogger(__name__)

PRODUCER_EPOCH_MAX = 32766  # leaves room for one more epoch, as in Kafka


class ProducerIdentity:
    """The producer's id and epoch; fetched when first needed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.producer_id: int = NO_PRODUCER_ID
        self.epoch: int = NO_PRODUCER_EPOCH

    @property
    def is_known(self) -> bool:
        """Whether batches can be numbered."""
        return self.producer_id != NO_PRODUCER_ID

    def discard(self) -> None:
        """Drop the id: the next batch needs a new one."""
        self.producer_id, self.epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH

    async def fetch(self) -> None:
        """Fetch an id; retriable errors are retried without limit.

        Raises errors that are not retriable.
        """
        backoff = self._cluster.backoff()
        request = build(
            InitProducerIdRequest,
            transactional_id=None,
            transaction_timeout=datetime.timedelta(milliseconds=2**31 - 1),
        )
        while not self.is_known:
            try:
                response = await self._cluster.request(INIT_PRODUCER_ID, request)
                if response.error_code is not ErrorCode.none:
                    raise error_for(response.error_code, None, about="producer id")
                self.producer_id, self.epoch = identity_in(response)
            except TidelogError as error:
                if not error.retriable:
                    raise
                logger.info("no producer id yet, will retry", extra={"reason": str(error)})
                await asyncio.sleep(backoff.next_s())

    def prepare(self, queue: PartitionQueue) -> bool:
        """Update the queue's producer id and epoch; return whether batches may be sent.

        Starts over in a higher epoch if necessary and nothing is in flight.
        """
        if queue.needs_new_epoch or queue.producer_id == NO_PRODUCER_ID:
            if queue.in_flight or not self.is_known:
                return False
            if (queue.producer_id, queue.producer_epoch) == (self.producer_id, self.epoch):
                if self.epoch >= PRODUCER_EPOCH_MAX:
                    self.discard()
                    return False
                self.epoch += 1
            self._start_over(queue)
        return True

    def adopt(self, queue: PartitionQueue) -> bool:
        """Update the queue's producer id and epoch; return whether batches may be sent.

        For a transactional producer, whose coordinator assigns the epochs.
        """
        if (queue.producer_id, queue.producer_epoch) != (self.producer_id, self.epoch):
            if queue.in_flight:
                return False
            self._start_over(queue)
        return True

    def _start_over(self, queue: PartitionQueue) -> None:
        queue.producer_id, queue.producer_epoch = self.producer_id, self.epoch
        queue.next_sequence = 0
        queue.is_known_to_leader = False
        queue.needs_new_epoch = False
        for batch in queue.batches:
            batch.base_sequence = NO_SEQUENCE
            batch.may_be_written = False


def identity_in(response: Any) -> tuple[int, int]:
    """Return the producer id and epoch in an answer. Raises ``MalformedResponse``: it has none."""
    producer_id, epoch = int(response.producer_id), int(response.producer_epoch)
    if producer_id < 0 or epoch < 0:
        raise MalformedResponse(f"the node gave producer id {producer_id} with epoch {epoch}")
    return producer_id, epoch


def may_send(queue: PartitionQueue, batch: ProducerBatch) -> bool:
    """Whether the first queued batch may be sent in addition to those in flight.

    The leader remembers five batches: with more unfinished ones, a repeated batch could be
    taken for a new one. Until it has acknowledged one, batches are sent one at a time.
    """
    if not queue.is_known_to_leader:
        return not queue.in_flight
    if batch.base_sequence != NO_SEQUENCE:
        return True
    return queue.unacknowledged_count < IN_FLIGHT_MAX_IDEMPOTENT


def number(queue: PartitionQueue, batch: ProducerBatch) -> None:
    """Set the batch's sequence if it has none."""
    if batch.base_sequence == NO_SEQUENCE:
        batch.base_sequence = queue.next_sequence
        queue.next_sequence = advance_sequence(queue.next_sequence, batch.count_records())


def is_first_open(queue: PartitionQueue, batch: ProducerBatch) -> bool:
    """Whether no batch with a lower sequence is unfinished."""
    numbered = [b for b in (*queue.in_flight, *queue.batches) if b.base_sequence != NO_SEQUENCE]
    return all((b.base_sequence - batch.base_sequence) & 0x7FFFFFFF < 1 << 30 for b in numbered)


def give_up_sequence(queue: PartitionQueue, batch: ProducerBatch, record_count: int) -> None:
    """Handle the sequences of a numbered batch that failed for good.

    If it certainly was not written, its sequences leave a gap: they are reused if it was the
    last batch; else the partition starts over.
    """
    if batch.base_sequence == NO_SEQUENCE or batch.may_be_written:
        return
    if advance_sequence(batch.base_sequence, record_count) == queue.next_sequence:
        queue.next_sequence = batch.base_sequence
    else:
        queue.needs_new_epoch = True

"""The outcome of a batch: it is acknowledged, sent again, split, or failed.

A batch that was not acknowledged is sent again while its error allows that, within the retries and
the delivery timeout. With idempotence it keeps its sequence (``identity``).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from tidelog_core.model import NO_TIMESTAMP, TopicPartition

from tidelog.cluster import Cluster
from tidelog.errors import DeliveryTimedOut, TidelogError, error_for
from tidelog.options import ProducerOptions
from tidelog.producing.accumulator import Accumulator, PartitionQueue
from tidelog.producing.batch import ProducerBatch
from tidelog.producing.identity import ProducerIdentity, give_up_sequence, is_first_open
from tidelog.producing.transaction_requests import CONCURRENT_RETRY_S
from tidelog.producing.transactions import Transactions
from tidelog.wire.backoff import Backoff

logger = logging.getLogger(__name__)

# Errors with which a leader rejects a batch before it appends it. After any other error the
# batch may be in the log: a leader that loses its leadership, or the partition, while it
# waits for the replicas answers like a node that never led.
_REFUSALS = frozenset(
    {
        ErrorCode.cluster_authorization_failed,
        ErrorCode.concurrent_transactions,
        ErrorCode.corrupt_message,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_record,
        ErrorCode.invalid_request,
        ErrorCode.invalid_required_acks,
        ErrorCode.invalid_timestamp,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_txn_state,
        ErrorCode.message_too_large,
        ErrorCode.not_enough_replicas,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.policy_violation,
        ErrorCode.producer_fenced,
        ErrorCode.record_list_too_large,
        ErrorCode.topic_authorization_failed,
        ErrorCode.transaction_abortable,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.unknown_producer_id,
        ErrorCode.unsupported_compression_type,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.unsupported_version,
    }
)
# Errors that report a sequence gap.
_OUT_OF_SEQUENCE = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_id_mapping,
    }
)
# Those of them that a higher epoch of the same id does not solve.
_STALE_IDENTITY = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_id_mapping,
    }
)
_LEADER_MOVED = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.kafka_storage_error,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        ErrorCode.unknown_topic_id,
        ErrorCode.replica_not_available,
    }
)


class BatchOutcomes:
    """Completes the accumulator's batches or queues them again. For one event loop."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        options: ProducerOptions,
        *,
        identity: ProducerIdentity,
        transactions: Transactions | None,
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._options = options
        self._identity = identity
        self._transactions = transactions
        self._backoffs: dict[TopicPartition, Backoff] = {}

    def succeed(
        self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int, appended_ms: int
    ) -> None:
        """Complete an acknowledged batch."""
        self._backoffs.pop(queue.partition, None)
        queue.retry_at_s = 0.0
        queue.is_known_to_leader = True
        if not batch.is_done:
            batch.succeed(base_offset, appended_ms)
            self._accumulator.release(batch)

    def settle(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        error: TidelogError,
        record_errors: Sequence[Any] = (),
    ) -> None:
        """Retry, split or fail a batch that was not acknowledged."""
        code = error.code
        if code not in _REFUSALS:
            batch.may_be_written = True
        if code in _LEADER_MOVED:
            self._cluster.invalidate()
        if code is ErrorCode.duplicate_sequence_number:
            self.succeed(queue, batch, -1, NO_TIMESTAMP)
            return
        if batch.is_done:  # It expired before.
            give_up_sequence(queue, batch, batch.record_count)
            return
        if code is ErrorCode.message_too_large and len(batch.records) > 1:
            for half in reversed(self._accumulator.split(batch)):
                queue.put_back(half)
            return
        if self._options.is_idempotent and code in _OUT_OF_SEQUENCE:
            if self._transactions is None:
                self._on_out_of_sequence(queue, batch, code)
                return
            may_follow = code not in _STALE_IDENTITY and not is_first_open(queue, batch)
            if may_follow and self._transactions.may_retry:
                queue.put_back(batch)  # It precedes a batch that is sent again.
                return
        may_retry = self._transactions is None or self._transactions.may_retry
        if error.retriable and batch.attempt_count <= self._options.retries and may_retry:
            self._retry(queue, batch, error)
            return
        self.fail(queue, batch, error, record_errors)

    def _on_out_of_sequence(
        self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode
    ) -> None:
        if is_first_open(queue, batch):
            logger.warning(
                "sequence refused, will start over in a new epoch",
                extra={"partition": str(queue.partition), "reason": code.name},
            )
            queue.needs_new_epoch = True
            if code in _STALE_IDENTITY and queue.producer_id == self._identity.producer_id:
                self._identity.discard()
            # A leader that refuses every sequence must not get one after the other.
            queue.retry_at_s = asyncio.get_running_loop().time() + self._backoff(queue).next_s()
        queue.put_back(batch)

    def _retry(self, queue: PartitionQueue, batch: ProducerBatch, error: TidelogError) -> None:
        backoff = self._backoff(queue)
        now_s = asyncio.get_running_loop().time()
        if queue.retry_at_s <= now_s:  # Batches that fail together wait once.
            is_concurrent = error.code is ErrorCode.concurrent_transactions
            wait_s = CONCURRENT_RETRY_S if is_concurrent else backoff.next_s()
            queue.retry_at_s = now_s + wait_s
            logger.info(
                "batch was not acknowledged, will retry",
                extra={"partition": str(queue.partition), "reason": str(error)},
            )
        queue.put_back(batch)

    def _backoff(self, queue: PartitionQueue) -> Backoff:
        backoff = self._backoffs.get(queue.partition)
        if backoff is None:
            backoff = self._backoffs[queue.partition] = self._cluster.backoff()
        return backoff

    def fail(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        error: TidelogError,
        record_errors: Sequence[Any] = (),
    ) -> None:
        """Complete a batch that is not sent again."""
        count = batch.count_records()
        logger.warning(
            "records were not written",
            extra={
                "partition": str(queue.partition),
                "record_count": count,
                "reason": str(error),
            },
        )
        give_up_sequence(queue, batch, count)
        batch.fail(
            error,
            {
                int(r.batch_index): error_for(
                    error.code, r.batch_index_error_message or str(error), about=queue.partition
                )
                for r in record_errors
            },
        )
        self._accumulator.release(batch)
        if self._transactions is not None:
            self._transactions.fail(error)

    def expire(self, queue: PartitionQueue, now_s: float) -> float:
        """Fail the expired batches; return when the next one expires."""
        limit_s = self._options.delivery_timeout_ms / 1000
        if _oldest_s(queue) + limit_s > now_s:
            return _oldest_s(queue) + limit_s
        for batch in queue.in_flight:
            if batch.created_s + limit_s <= now_s and not batch.is_done:
                # Its numbers stay in use until the answer arrives; only the caller's wait ends.
                error = self._timed_out(batch, may_be_written=True)
                batch.fail(error)
                self._accumulator.release(batch)
                if self._transactions is not None:
                    self._transactions.fail(error)
        while queue.batches and queue.batches[0].created_s + limit_s <= now_s:
            batch = queue.batches.popleft()
            self.fail(queue, batch, self._timed_out(batch, may_be_written=batch.may_be_written))
        return _oldest_s(queue) + limit_s

    def _timed_out(self, batch: ProducerBatch, *, may_be_written: bool) -> DeliveryTimedOut:
        return DeliveryTimedOut(
            f"{batch.partition}: not acknowledged within {self._options.delivery_timeout_ms} ms "
            f"(last failure: {self._cluster.last_error or 'none'})",
            may_be_written=may_be_written,
        )


def _oldest_s(queue: PartitionQueue) -> float:
    """Return the creation time of the queue's oldest unfinished batch."""
    ages = [batch.created_s for batch in queue.in_flight if not batch.is_done]
    if queue.batches:
        ages.append(queue.batches[0].created_s)
    return min(ages, default=math.inf)

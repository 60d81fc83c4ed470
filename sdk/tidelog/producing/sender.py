"""The producer's background task: sends ready batches and reads the answers.

A partition's first batch is ready when it is full, has lingered, or a caller waits
(flush, a full buffer, closing). Ready batches for one node share a request, one batch
per partition. With idempotence up to five batches of a partition are in flight, and
their sequences keep them in order through retries; without, one at a time, which keeps
the order too.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.produce.v12.request import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog_core.model import NO_TIMESTAMP
from tidelog_core.records.batch import build_batch
from tidelog_core.wire_messages import build

from tidelog.cluster import Cluster
from tidelog.errors import ClientClosed, TidelogError, error_for
from tidelog.options import ProducerOptions
from tidelog.producing.accumulator import Accumulator, PartitionQueue
from tidelog.producing.batch import ProducerBatch
from tidelog.producing.identity import ProducerIdentity, may_send, number
from tidelog.producing.outcomes import BatchOutcomes
from tidelog.producing.transactions import Transactions
from tidelog.wire.connection import Connection
from tidelog.wire.requests import PRODUCE, PRODUCE_TO_ADDED, Api

logger = logging.getLogger(__name__)

_FOREVER_S = 3600.0


class Sender:
    """Sends the accumulator's batches. ``run`` is its task; call the rest from its loop."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        options: ProducerOptions,
        transactions: Transactions | None = None,
    ) -> None:
        """``transactions`` belong to a producer with a transactional id."""
        self._cluster = cluster
        self._accumulator = accumulator
        self._options = options
        self._transactions = transactions
        self._identity = (
            ProducerIdentity(cluster) if transactions is None else transactions.identity
        )
        self._wake = asyncio.Event()
        self._outcomes = BatchOutcomes(
            cluster, accumulator, options, identity=self._identity, transactions=transactions
        )
        self._in_flight_counts: dict[int, int] = {}  # requests, by node
        self._tasks: set[asyncio.Task[None]] = set()  # connecting, fetching the producer id
        self._connecting: set[int] = set()
        self._is_fetching_identity = False
        self._failure: BaseException | None = None  # of one of the tasks

    def wake(self) -> None:
        """Check again for batches to send."""
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled. Raises what a task of it raises."""
        loop = asyncio.get_running_loop()
        self._spawn(self._wake_on_news())
        try:
            while True:
                if self._failure is not None:
                    raise self._failure
                self._wake.clear()
                wait_s = self._step(loop.time())
                timer = loop.call_later(wait_s, self._wake.set)
                await self._wake.wait()
                timer.cancel()
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- choosing batches to send --

    def _step(self, now_s: float) -> float:
        """Send ready batches; return the seconds until one becomes ready by time."""
        next_s = now_s + _FOREVER_S
        ready: dict[int, list[PartitionQueue]] = {}
        must_not_linger = self._accumulator.flush_count > 0 or self._accumulator.has_waiters
        is_leader_missing = False
        for queue in self._accumulator.queues():
            if queue.batches or queue.in_flight:
                next_s = min(next_s, self._outcomes.expire(queue, now_s))
            if not queue.batches:
                continue
            ready_s = queue.retry_at_s
            first = queue.batches[0]
            if not (first.is_full or len(queue.batches) > 1 or must_not_linger):
                ready_s = max(ready_s, first.created_s + self._options.linger_ms / 1000)
            if ready_s > now_s:
                next_s = min(next_s, ready_s)
                continue
            if not self._may_start(queue, first):
                continue
            leader = self._cluster.leader(queue.partition)
            if leader is None:
                is_leader_missing = True
                continue
            ready.setdefault(leader.leader, []).append(queue)
        if is_leader_missing:
            self._cluster.invalidate()
        for node_id, queues in ready.items():
            self._send_to(node_id, queues, now_s)
        return max(0.0, next_s - now_s)

    def _may_start(self, queue: PartitionQueue, first: ProducerBatch) -> bool:
        if not self._options.is_idempotent:
            return not queue.in_flight
        if self._transactions is not None:
            return self._transactions.may_start(queue) and may_send(queue, first)
        if not self._identity.prepare(queue):
            if not self._identity.is_known and not self._is_fetching_identity:
                self._is_fetching_identity = True
                self._spawn(self._fetch_identity())
            return False
        return may_send(queue, first)

    def _send_to(self, node_id: int, queues: list[PartitionQueue], now_s: float) -> None:
        connection = self._cluster.open_connection_to(node_id)
        if connection is None:
            if node_id not in self._connecting:
                self._connecting.add(node_id)
                self._spawn(self._connect(node_id))
            return
        # Oldest first, so that no partition waits while others fill the requests.
        queues.sort(key=lambda queue: queue.batches[0].created_s)
        while queues and self._in_flight_counts.get(node_id, 0) < self._options.max_in_flight:
            taken: list[tuple[PartitionQueue, ProducerBatch]] = []
            left_out = []
            size_bytes = 0
            for queue in queues:
                size_bytes += queue.batches[0].size_bytes
                if taken and size_bytes > self._options.request_size_bytes_max:
                    left_out.append(queue)
                else:
                    taken.append((queue, queue.batches.popleft()))
            self._send(connection, node_id, taken)
            queues = left_out + [queue for queue, _ in taken if self._has_more(queue, now_s)]

    def _has_more(self, queue: PartitionQueue, now_s: float) -> bool:
        """Whether the partition's next batch may be sent immediately after this one."""
        return (
            len(queue.batches) > 0
            and queue.batches[0].is_full
            and queue.retry_at_s <= now_s
            and self._may_start(queue, queue.batches[0])
        )

    # -- sending --

    def _send(
        self,
        connection: Connection,
        node_id: int,
        taken: Sequence[tuple[PartitionQueue, ProducerBatch]],
    ) -> None:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        sent: list[tuple[PartitionQueue, ProducerBatch]] = []
        for queue, batch in taken:
            try:
                records = self._encode(queue, batch)
            except TidelogError as error:  # A record that does not fit the format.
                self._outcomes.fail(queue, batch, error)
                continue
            by_topic.setdefault(queue.partition.topic, []).append(
                build(PartitionProduceData, index=queue.partition.partition, records=records)
            )
            queue.in_flight.append(batch)
            batch.attempt_count += 1
            sent.append((queue, batch))
        if not sent:
            return
        request = build(
            ProduceRequest,
            transactional_id=self._options.transactional_id,
            acks=self._options.acks,
            timeout=datetime.timedelta(milliseconds=self._options.request_timeout_ms),
            topic_data=tuple(
                build(TopicProduceData, name=topic, partition_data=tuple(partitions))
                for topic, partitions in by_topic.items()
            ),
        )
        self._in_flight_counts[node_id] = self._in_flight_counts.get(node_id, 0) + 1
        if self._options.acks == 0:
            self._spawn(self._send_unanswered(connection, node_id, request, sent))
            return
        # The node waits for replicas as long as this client waits for the node; its answer
        # (timed out) should arrive before the connection is closed.
        timeout_s = self._options.request_timeout_ms / 1000 + 1.0
        try:
            future = connection.send(self._api, request, timeout_s=timeout_s)
        except TidelogError as error:
            self._on_failure(node_id, sent, error)
            return
        future.add_done_callback(lambda done: self._on_done(node_id, sent, done))

    @property
    def _api(self) -> Api:
        if self._transactions is not None and not self._transactions.adds_itself:
            return PRODUCE_TO_ADDED
        return PRODUCE

    def _encode(self, queue: PartitionQueue, batch: ProducerBatch) -> bytes:
        batch.is_full = True
        batch.record_count = batch.count_records()
        if not self._options.is_idempotent:
            if batch.encoded is not None:
                return batch.encoded.batch()
            return build_batch(
                batch.records,
                compression=self._options.compression,
                level=self._options.compression_level,
            )
        number(queue, batch)
        if batch.encoded is not None:
            return batch.encoded.batch(
                producer_id=queue.producer_id,
                producer_epoch=queue.producer_epoch,
                base_sequence=batch.base_sequence,
                is_transactional=self._transactions is not None,
            )
        return build_batch(
            batch.records,
            compression=self._options.compression,
            level=self._options.compression_level,
            producer_id=queue.producer_id,
            producer_epoch=queue.producer_epoch,
            base_sequence=batch.base_sequence,
            is_transactional=self._transactions is not None,
        )

    async def _send_unanswered(
        self,
        connection: Connection,
        node_id: int,
        request: object,
        sent: list[tuple[PartitionQueue, ProducerBatch]],
    ) -> None:
        try:
            await connection.send_unanswered(
                PRODUCE, request, timeout_s=self._options.request_timeout_ms / 1000
            )
        except TidelogError as error:
            self._on_failure(node_id, sent, error)
            return
        except asyncio.CancelledError:
            # The bytes are with the connection: sent again, the records would be written twice.
            self._on_unanswered_sent(node_id, sent)
            raise
        self._on_unanswered_sent(node_id, sent)
        self._accumulator.note_answers()
        self.wake()  # More batches of the partitions may wait, one is in flight at a time.

    def _on_unanswered_sent(
        self, node_id: int, sent: list[tuple[PartitionQueue, ProducerBatch]]
    ) -> None:
        self._release_request(node_id)
        for queue, batch in sent:
            queue.in_flight.remove(batch)
            self._outcomes.succeed(queue, batch, -1, NO_TIMESTAMP)

    # -- answers --

    def _on_done(
        self,
        node_id: int,
        sent: list[tuple[PartitionQueue, ProducerBatch]],
        future: asyncio.Future[Any],
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            assert isinstance(error, TidelogError)
            self._on_failure(node_id, sent, error)
            return
        self._release_request(node_id)
        answers = {
            (topic.name, int(partition.index)): partition
            for topic in future.result().responses
            for partition in topic.partition_responses
        }
        for queue, batch in sent:
            queue.in_flight.remove(batch)
            answer = answers.get(queue.partition)
            if answer is None:
                unanswered = error_for(
                    ErrorCode.unknown_server_error,
                    "the node's answer does not contain it",
                    about=queue.partition,
                )
                self._outcomes.settle(queue, batch, unanswered)
            elif answer.error_code is ErrorCode.none:
                appended = answer.log_append_time
                appended_ms = (
                    NO_TIMESTAMP if appended is None else round(appended.timestamp() * 1000)
                )
                self._outcomes.succeed(queue, batch, int(answer.base_offset), appended_ms)
            else:
                self._outcomes.settle(
                    queue,
                    batch,
                    error_for(answer.error_code, answer.error_message, about=queue.partition),
                    answer.record_errors,
                )
        self._accumulator.note_answers()
        self.wake()

    def _on_failure(
        self, node_id: int, sent: list[tuple[PartitionQueue, ProducerBatch]], error: TidelogError
    ) -> None:
        """Handle a request without an answer."""
        self._release_request(node_id)
        for queue, batch in sent:
            queue.in_flight.remove(batch)
        for queue, batch in sent:
            self._outcomes.settle(queue, batch, error)
        self._accumulator.note_answers()
        self.wake()

    def _release_request(self, node_id: int) -> None:
        self._in_flight_counts[node_id] -= 1

    # -- tasks --

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
            self.wake()

    async def _connect(self, node_id: int) -> None:
        try:
            await self._cluster.connection(node_id)
        except TidelogError as error:
            self._cluster.last_error = error
            logger.info("node not reached", extra={"broker_id": node_id, "reason": str(error)})
        finally:
            self._connecting.discard(node_id)
        self.wake()

    async def _wake_on_news(self) -> None:
        with suppress(ClientClosed):
            while True:
                await self._cluster.wait_for_news()
                self.wake()

    async def _fetch_identity(self) -> None:
        try:
            await self._identity.fetch()
        except TidelogError as error:
            self._accumulator.fail_all(error)
        finally:
            self._is_fetching_identity = False
        self.wake()

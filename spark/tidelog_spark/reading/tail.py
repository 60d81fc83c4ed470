"""Reads a partition's tail from its leader, with the same decoder as segments.

One answer is fetched ahead of the decoder. A transaction's batches are between its first
offset and its producer's next marker, and the answer that contains them lists the aborted
ones: so the marker is searched in the answer, and without one, everything up to the end of
the answer belongs to the transaction.
Source: KIP-98, the consumer's view of transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from uuid import UUID

import numpy as np
import pyarrow as pa
from tidelog.arrow.decoding import CONTROL, AbortedRange, BatchDecoder, RowRange
from tidelog.arrow.native import kernels
from tidelog.arrow.native.kernels import Longs
from tidelog.errors import UnknownTopicId, UnknownTopicOrPartition
from tidelog_core.errors import CorruptObject
from tidelog_core.model import INT64_MAX, TopicPartition

from tidelog_spark.loop_thread import LoopThread
from tidelog_spark.nodes import Fetched, Nodes, RecordsGone
from tidelog_spark.options.read_options import NodeOptions
from tidelog_spark.reading.splits import DataLost, Tail

logger = logging.getLogger(__name__)


def read_tail(
    partition: TopicPartition,
    tail: Tail,
    nodes: NodeOptions,
    *,
    topic_id: UUID,
    include_headers: bool,
    is_read_committed: bool,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the tail's rows in offset order.

    Raises ``DataLost`` for offsets that the leader no longer has, unless data loss is
    tolerated, and the nodes' errors if they do not answer in time.
    """
    reader = _TailReader(
        partition, tail, nodes, topic_id=topic_id, is_read_committed=is_read_committed
    )
    try:
        yield from reader.batches(include_headers=include_headers)
    except (RecordsGone, UnknownTopicId, UnknownTopicOrPartition) as error:
        lost = f"offsets [{reader.next_offset}, {tail.end_offset}) of {partition} are gone: {error}"
        if fail_on_data_loss:
            raise DataLost([lost]) from None
        logger.warning("skipped lost offsets", extra={"reason": lost})
    finally:
        reader.close()


class _TailReader:
    def __init__(
        self,
        partition: TopicPartition,
        tail: Tail,
        nodes: NodeOptions,
        *,
        topic_id: UUID,
        is_read_committed: bool,
    ) -> None:
        self.next_offset = tail.start_offset
        self._partition = partition
        self._tail = tail
        self._topic_id = topic_id
        self._options = nodes
        self._is_read_committed = is_read_committed
        self._nodes: Nodes | None = None
        self._thread = LoopThread("tail")

    def close(self) -> None:
        """Cancel pending requests and disconnect."""
        try:
            if self._nodes is not None:
                self._thread.run(self._nodes.close())
        finally:
            self._thread.settle()
            self._thread.stop()

    def batches(self, *, include_headers: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows; ``next_offset`` is the end of those yielded."""
        self._thread.run(self._connect())
        pending = self._fetch_next()
        while pending is not None:
            fetched = pending.result()
            data, table = _whole_batches(self._partition, fetched.data, self.next_offset)
            start = self.next_offset
            self.next_offset = int(table[-1, kernels.LAST_OFFSET]) + 1
            pending = self._fetch_next()
            rows = RowRange(
                topic=self._partition.topic,
                partition=self._partition.partition,
                start_offset=start,
                end_offset=self._tail.end_offset,
                include_headers=include_headers,
                aborted=_aborted_ranges(fetched, table) if self._is_read_committed else (),
            )
            decoder = BatchDecoder(rows, object_key=_name(self._partition, start))
            yield from decoder.feed(data)

    async def _connect(self) -> None:
        nodes = Nodes(self._options, is_read_committed=self._is_read_committed)
        await nodes.start()
        self._nodes = nodes

    def _fetch_next(self) -> Future[Fetched] | None:
        if self.next_offset >= self._tail.end_offset:
            return None
        assert self._nodes is not None
        call = self._nodes.fetch(self._partition, self._topic_id, self.next_offset)
        return self._thread.start(call)


def _whole_batches(partition: TopicPartition, data: bytes, offset: int) -> tuple[bytes, Longs]:
    """Return the bytes of the whole batches and the table of their headers."""
    array = np.frombuffer(data, dtype=np.uint8)
    row_max = len(array) // kernels.HEADER_SIZE + 1
    table = np.empty((row_max, kernels.COLUMN_COUNT), dtype=np.int64)
    count, consumed, problem = kernels.scan_batches(array, table)
    if problem or not count:
        raise CorruptObject(
            _name(partition, offset), f"byte {consumed} of {len(data)} starts no batch of version 2"
        )
    return data[:consumed], table[:count]


def _aborted_ranges(fetched: Fetched, table: Longs) -> tuple[AbortedRange, ...]:
    markers = table[table[:, kernels.ATTRIBUTES] & CONTROL != 0]
    found = []
    for first_offset, producer_id in fetched.aborted:
        ends = markers[
            (markers[:, kernels.PRODUCER_ID] == producer_id)
            & (markers[:, kernels.BASE_OFFSET] >= first_offset)
        ][:, kernels.BASE_OFFSET]
        end_offset = int(ends[0]) if len(ends) else INT64_MAX
        found.append(AbortedRange(producer_id, first_offset, end_offset))
    return tuple(found)


def _name(partition: TopicPartition, offset: int) -> str:
    return f"the answer of {partition}'s leader from offset {offset}"

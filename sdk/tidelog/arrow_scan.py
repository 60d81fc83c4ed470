"""``scan_arrow`` reads a topic as Arrow, up to its end now: from nodes, or from the bucket alone.

For programs that analyse: a ``pyarrow.RecordBatchReader`` is what pandas, polars and duckdb take.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, Unpack

from tidelog_core.model import TopicPartition

from tidelog.admin import Admin
from tidelog.bucket_reader import BucketOffsets, BucketReader
from tidelog.consumer import Consumer
from tidelog.consuming.reader import RecordReader
from tidelog.consuming.value_decoding import check_decoder
from tidelog.errors import InvalidConfig, InvalidRequest, RequestTimedOut, needing_arrow
from tidelog.options import ClientSettings, IsolationLevel, client_options
from tidelog.sync import LoopThread

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.arrow.values.schema_values import SchemaDecoder

Place: TypeAlias = Literal["earliest", "latest"] | datetime.datetime | int | Mapping[int, int]
"""Where a scan starts or ends: an offset, or one for each partition; the first record at or after
a time (nodes only); or the ends of the log."""

# Several at once: changing threads takes longer than decoding a batch.
Batches: TypeAlias = AsyncGenerator["list[pa.RecordBatch]"]

# One answer of a node; larger ones are read faster and take more memory.
_FETCH_SIZE_BYTES = 8 * 1024 * 1024
_POLL_MS = 1_000.0
_STALLED_POLLS_MAX = 60  # without a record, after which a scan fails


def scan_arrow(
    topic: str,
    start: Place = "earliest",
    end: Place = "latest",
    *,
    bootstrap_servers: str | Sequence[str] | None = None,
    metadata: str | None = None,
    objects: str | None = None,
    isolation_level: IsolationLevel = "read_uncommitted",
    include_headers: bool = False,
    decode: SchemaDecoder | None = None,
    **settings: Unpack[ClientSettings],
) -> pa.RecordBatchReader:
    """Return a reader of the records in ``[start, end)``; its columns are those of ``poll_arrow``.

    ::

        orders = scan_arrow("orders", bootstrap_servers="localhost:9092").read_all()
        orders = scan_arrow("orders", metadata="dynamodb://…", objects="s3://…").to_pandas()

    With ``metadata`` and ``objects``, the urls of the stores, no node has to run: it reads the
    tiered segments, and of diskless topics every acknowledged record. The scan ends where the log
    ends when reading begins. Each batch has records of one partition, in order of offset. Reading
    holds a few batches in memory. ``decode`` makes structs of values. Raises ``InvalidConfig``;
    reading raises the errors of a consumer, of the decoder, or of ``BucketReader.read``, and
    ``RequestTimedOut`` if nothing comes for a minute.
    """
    with needing_arrow():
        import pyarrow as pa

        from tidelog.arrow.columns import arrow_schema

    for place in (start, end):
        _check_place(place)
    if decode is not None:
        check_decoder(decode)
    if bootstrap_servers is not None and metadata is None and objects is None:
        client_options(bootstrap_servers, settings, scan_arrow)
        open_consumer = partial(
            Consumer,
            bootstrap_servers,
            # The log's start may move on during a scan from there.
            auto_offset_reset="earliest" if start == "earliest" else "none",
            isolation_level=isolation_level,
            max_partition_fetch_bytes=_FETCH_SIZE_BYTES,
            **settings,
        )
        open_consumer()  # It checks the options now, not when reading begins.
        open_admin = partial(Admin, bootstrap_servers, **settings)
        batches = _scan_nodes(
            open_admin, open_consumer, topic, start, end, include_headers=include_headers
        )
    elif bootstrap_servers is None and metadata is not None and objects is not None:
        if isinstance(start, datetime.datetime) or isinstance(end, datetime.datetime):
            raise InvalidRequest("a scan of the bucket starts and ends at offsets, not at a time")
        if settings:
            raise InvalidConfig([f"{min(settings)} is for connections to nodes"])
        bucket = BucketReader(metadata=metadata, objects=objects, isolation_level=isolation_level)
        batches = _scan_bucket(bucket, topic, start, end, include_headers=include_headers)
    else:
        raise InvalidConfig(["give bootstrap_servers, or both metadata and objects"])
    schema = arrow_schema(include_headers=include_headers)
    found = _in_thread(batches)
    if decode is not None:
        schema = decode.schema(schema)
        found = itertools.chain.from_iterable(map(decode.parts, found))
    return pa.RecordBatchReader.from_batches(schema, found)


async def _scan_nodes(
    open_admin: Callable[[], Admin],
    open_consumer: Callable[[], Consumer],
    topic: str,
    start: Place,
    end: Place,
    *,
    include_headers: bool,
) -> Batches:
    async with open_admin() as admin:
        count = len((await admin.describe_topics([topic]))[topic].partitions)
    partitions = [TopicPartition(topic, number) for number in range(count)]
    async with open_consumer() as consumer:
        latest = await consumer.end_offsets(partitions)
        starts = await _offsets_of(consumer, latest, start)
        ends = await _offsets_of(consumer, latest, end)
        left = {
            partition: min(ends[partition], log_end)
            for partition, log_end in latest.items()
            if starts[partition] < min(ends[partition], log_end)
        }
        consumer.assign(left)
        for partition in left:
            consumer.seek(partition, starts[partition])
        stalled_count = 0
        while left:
            found = await consumer.poll_arrow(include_headers=include_headers, timeout_ms=_POLL_MS)
            stalled_count = 0 if found else stalled_count + 1
            wanted = [
                _below(batch, left.get(TopicPartition(topic, _partition_of(batch)), 0))
                for batch in found
            ]
            yield [batch for batch in wanted if batch.num_rows]
            # The position also passes what consumers do not see: markers, and removed records.
            for partition, position in consumer.positions().items():
                if partition in left and position.offset >= left[partition]:
                    del left[partition]
                    consumer.pause([partition])
            if stalled_count > _STALLED_POLLS_MAX:
                partition = next(iter(left))
                raise RequestTimedOut(
                    f"nothing came for {_STALLED_POLLS_MAX} s; {partition} is to be read up to"
                    f" offset {left[partition]}"
                )


async def _offsets_of(
    consumer: RecordReader, latest: Mapping[TopicPartition, int], place: Place
) -> Mapping[TopicPartition, int]:
    if place == "earliest":
        return await consumer.beginning_offsets(latest)
    if place == "latest":
        return latest
    if isinstance(place, datetime.datetime):
        time_ms = max(round(place.timestamp() * 1000), 0)  # No record is from before 1970.
        found = await consumer.offsets_for_times(dict.fromkeys(latest, time_ms))
        return {p: latest[p] if at is None else at.offset for p, at in found.items()}
    return _given_offsets(place, list(latest))


async def _scan_bucket(
    bucket: BucketReader, topic: str, start: Place, end: Place, *, include_headers: bool
) -> Batches:
    assert not isinstance(start, datetime.datetime)
    assert not isinstance(end, datetime.datetime)
    async with bucket:
        count = await bucket.partitions_for(topic)
        partitions = [TopicPartition(topic, number) for number in range(count)]
        # All at first: reading a partition may take long, and its records are of one moment.
        known = {partition: await bucket.offsets(partition) for partition in partitions}
        starts, ends = (_bucket_offsets(place, known) for place in (start, end))
        for partition in partitions:
            low, high = starts[partition], min(ends[partition], known[partition].end)
            if low >= high:
                continue
            read = bucket.read_arrow_runs(
                partition, start_offset=low, end_offset=high, include_headers=include_headers
            )
            async with aclosing(read) as runs:
                async for batches in runs:
                    yield batches


def _bucket_offsets(
    place: Literal["earliest", "latest"] | int | Mapping[int, int],
    known: Mapping[TopicPartition, BucketOffsets],
) -> Mapping[TopicPartition, int]:
    if place == "earliest":
        return {partition: offsets.start for partition, offsets in known.items()}
    if place == "latest":
        return {partition: offsets.end for partition, offsets in known.items()}
    return _given_offsets(place, list(known))


def _given_offsets(
    place: int | Mapping[int, int], partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return every partition's offset. Raises ``InvalidRequest`` unless each has one."""
    if isinstance(place, int):
        return dict.fromkeys(partitions, place)
    numbers = {partition.partition for partition in partitions}
    if wrong := numbers ^ place.keys():
        raise InvalidRequest(
            f"give an offset for each of the partitions 0 to {len(partitions) - 1}: partition"
            f" {min(wrong)} {'has none' if min(wrong) in numbers else 'does not exist'}"
        )
    return {partition: place[partition.partition] for partition in partitions}


def _check_place(place: object) -> None:
    offsets = place.values() if isinstance(place, Mapping) else [place]
    if isinstance(place, datetime.datetime) or place in ("earliest", "latest"):
        return
    if not all(type(offset) is int and offset >= 0 for offset in offsets):
        raise InvalidRequest(
            "a scan starts and ends at 'earliest', 'latest', an offset from 0 on, a dict of"
            f" offsets by partition, or a datetime; not at {place!r}"
        )


def _partition_of(batch: pa.RecordBatch) -> int:
    number: int = batch.column("partition")[0].as_py()
    return number


def _below(batch: pa.RecordBatch, end_offset: int) -> pa.RecordBatch:
    """Return the rows with offsets below the end."""
    from tidelog.arrow.kept_memory import part_of

    count = int(batch.column("offset").to_numpy().searchsorted(end_offset))
    return part_of(batch, 0, count)


def _in_thread(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield the batches, read by an event loop in a thread of its own; it ends with the reading."""
    thread = LoopThread("tidelog-scan")
    reading = _Reading(batches)
    try:
        while (found := thread.run(reading.next())) is not None:
            yield from found
    finally:
        try:
            thread.run(reading.close())
        finally:
            thread.close()


class _Reading:
    """A generator that is closed while a call of it is cancelled: by an interrupt, say."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._next: asyncio.Task[list[pa.RecordBatch] | None] | None = None

    async def next(self) -> list[pa.RecordBatch] | None:
        """Return the next batches, ``None`` at the end."""
        self._next = asyncio.create_task(self._advance())
        return await self._next

    async def close(self) -> None:
        """Close the generator, once the call has ended."""
        if self._next is not None:
            # The interrupt may have come before the call was waited for. Cancelled twice, it would
            # not leave in order.
            if not self._next.cancelling():
                self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._batches.aclose()

    async def _advance(self) -> list[pa.RecordBatch] | None:
        return await anext(self._batches, None)

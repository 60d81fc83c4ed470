"""How the producer's buffer takes records: nearly all of them by one short call."""

from __future__ import annotations

import asyncio

import pytest
from tidelog import Producer
from tidelog.errors import BufferExhausted
from tidelog.producing.accumulator import Accumulator
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import Record

PARTITION = TopicPartition("t", 0)
BATCH_BYTES = 100


def record(number: int) -> Record:
    return Record(-1, 1_000 + number, None, b"%d" % number, ())


def an_accumulator(buffer_memory_bytes: int = 1_000) -> Accumulator:
    producer = Producer(
        "127.0.0.1:9092", batch_size_bytes=BATCH_BYTES, buffer_memory_bytes=buffer_memory_bytes
    )
    return producer._accumulator


async def test_records_join_the_open_batch_until_one_would_fill_it() -> None:
    accumulator = an_accumulator()
    queue = accumulator.queue(PARTITION)
    assert accumulator.append_to_open(queue, record(0), 40) is None, "there is no batch"
    _, is_new, has_filled = accumulator.append(queue, record(0), 40, now_s=1.0)
    assert (is_new, has_filled) == (True, False)
    delivery = accumulator.append_to_open(queue, record(1), 40)
    assert delivery is not None
    assert accumulator.append_to_open(queue, record(2), 20) is None, "it would fill the batch"
    assert accumulator.append_to_open(queue, record(2), 30) is None, "it would not fit"
    (batch,) = queue.batches
    assert batch.records == [record(0), record(1)]
    assert (batch.size_bytes, accumulator.used_size_bytes) == (80, 80)
    batch.succeed(7, -1)
    assert delivery.result() == ("t", 0, 8, 1_001)


@pytest.mark.parametrize("size_bytes", [20, 21])
async def test_the_record_that_fills_a_batch_closes_it(size_bytes: int) -> None:
    """It is the last one in it if it fits exactly, else the first of the next one."""
    accumulator = an_accumulator()
    queue = accumulator.queue(PARTITION)
    accumulator.append(queue, record(0), 80, now_s=1.0)
    _, is_new, has_filled = accumulator.append(queue, record(1), size_bytes, now_s=1.0)
    assert (is_new, has_filled) == (size_bytes > 20, True)
    assert queue.batches[0].is_full
    assert [len(batch.records) for batch in queue.batches] == ([1, 1] if is_new else [2])
    is_open = not queue.batches[-1].is_full
    assert (accumulator.append_to_open(queue, record(2), 1) is not None) == is_open


async def test_nothing_joins_a_batch_that_is_being_sent() -> None:
    accumulator = an_accumulator()
    queue = accumulator.queue(PARTITION)
    accumulator.append(queue, record(0), 10, now_s=1.0)
    batch = queue.batches.popleft()
    assert accumulator.append_to_open(queue, record(1), 10) is None
    queue.put_back(batch)  # It is sent again as it was.
    assert accumulator.append_to_open(queue, record(1), 10) is None
    assert batch.records == [record(0)]


async def test_records_without_room_or_behind_others_that_wait_join_no_batch() -> None:
    accumulator = an_accumulator(buffer_memory_bytes=50)
    queue = accumulator.queue(PARTITION)
    accumulator.append(queue, record(0), 30, now_s=1.0)
    assert accumulator.append_to_open(queue, record(1), 21) is None
    waiting = asyncio.create_task(accumulator.wait_for_room(21, timeout_s=0.05))
    await asyncio.sleep(0)
    assert accumulator.append_to_open(queue, record(1), 1) is None, "it would overtake"
    with pytest.raises(BufferExhausted):
        await waiting
    assert accumulator.append_to_open(queue, record(1), 20) is not None
    assert accumulator.used_size_bytes == 50

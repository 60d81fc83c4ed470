"""The consumer against a real node: reading, positions, commits."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest
from tidelog import Admin, Consumer, OffsetAndMetadata, OffsetAndTimestamp, Producer
from tidelog.errors import (
    ClientClosed,
    InvalidRequest,
    NoOffsetForPartition,
    NotAssigned,
    OffsetOutOfRange,
)

from tests.sdk.conftest import make_topic
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually_async


async def fill(address: str, topic: str, count: int, *, partition: int = 0, start: int = 0) -> None:
    """Write records of values ``start`` on, at times 1000 ms apart."""
    async with Producer(address, batch_size_bytes=1000) as producer:
        for n in range(start, start + count):
            await producer.send(topic, b"%d" % n, partition=partition, timestamp_ms=1000 * n)
        await producer.flush()


async def values(consumer: Consumer, count: int) -> list[int]:
    """Return the next values, and no more than these."""
    got: list[int] = []
    while len(got) < count:
        records = await consumer.poll(max_records=count - len(got), timeout_ms=10_000)
        assert records, f"only {len(got)} of {count} came"
        got += [int(record.value or b"") for record in records]
    return got


async def test_positions_are_sought_and_told(node: NodeProcess, topic: str) -> None:
    await fill(node.address, topic, 100)
    tp = (topic, 0)
    async with Consumer(node.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        assert await consumer.position(tp) == 0
        assert await values(consumer, 10) == list(range(10))
        assert await consumer.position(tp) == 10
        consumer.seek(tp, 95)
        assert await values(consumer, 5) == list(range(95, 100))
        assert consumer.high_watermark(tp) == 100
        consumer.seek_to_beginning(tp)
        assert await values(consumer, 3) == [0, 1, 2]
        consumer.seek_to_end()
        assert await consumer.position(tp) == 100
        assert await consumer.poll(timeout_ms=200) == []
        await fill(node.address, topic, 1, start=100)
        assert await values(consumer, 1) == [100]


async def test_latest_starts_behind_what_is_there(node: NodeProcess, topic: str) -> None:
    await fill(node.address, topic, 5)
    async with Consumer(node.address) as consumer:
        consumer.assign([(topic, 0)])
        assert await consumer.position((topic, 0)) == 5


async def test_offsets_by_time_and_at_the_ends(node: NodeProcess, topic: str) -> None:
    await fill(node.address, topic, 50)
    tp = (topic, 0)
    async with Consumer(node.address) as consumer:
        assert await consumer.beginning_offsets([tp]) == {tp: 0}
        assert await consumer.end_offsets([tp]) == {tp: 50}
        assert await consumer.offsets_for_times({tp: 7_001}) == {tp: OffsetAndTimestamp(8, 8_000)}
        assert await consumer.offsets_for_times({tp: 50_000}) == {tp: None}
        with pytest.raises(InvalidRequest, match="not -5"):
            await consumer.offsets_for_times({tp: -5})


async def test_paused_partitions_wait_without_losing_anything(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    await fill(node.address, topic, 20, partition=0)
    await fill(node.address, topic, 20, partition=1, start=100)
    async with Consumer(node.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        consumer.pause([(topic, 0)])
        assert consumer.paused() == {(topic, 0)}
        assert await values(consumer, 20) == list(range(100, 120))
        assert await consumer.poll(timeout_ms=200) == []
        consumer.resume([(topic, 0)])
        assert await values(consumer, 20) == list(range(20))


async def test_an_idle_partition_does_not_hold_up_a_busy_one(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    """The long poll of the idle one takes longer than reading all of the busy one."""
    topic = new_topic(2)
    async with Producer(node.address) as producer:
        for _ in range(3_000):
            await producer.send(topic, b"x" * 1_000, partition=0)
    async with Consumer(
        node.address,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=120_000,
        max_partition_fetch_bytes=100_000,
    ) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        started = time.monotonic()
        count = 0
        while count < 3_000:
            count += len(await consumer.poll(timeout_ms=10_000))
        assert time.monotonic() - started < 100


async def test_what_is_fetched_ahead_is_bounded(node: NodeProcess, topic: str) -> None:
    async with Producer(node.address) as producer:
        for _ in range(2_000):
            await producer.send(topic, b"x" * 1_000)
    async with Consumer(
        node.address,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=100_000,
        prefetch_bytes_max=150_000,
    ) as consumer:
        consumer.assign([(topic, 0)])
        assert await consumer.poll(max_records=1, timeout_ms=10_000)
        await asyncio.sleep(0.5)
        (state,) = consumer._positions
        assert 0 < state.buffered_size_bytes <= 350_000


async def test_iteration_and_polling_share_one_position(node: NodeProcess, topic: str) -> None:
    await fill(node.address, topic, 30)
    async with Consumer(node.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        seen = []
        async for record in consumer:
            seen.append(record.offset)
            assert await consumer.position((topic, 0)) == record.offset + 1
            if len(seen) == 7:
                break
        seen += await values(consumer, 5)
        async for record in consumer:
            seen.append(record.offset)
            if len(seen) == 30:
                break
        assert seen == list(range(30))


async def test_seeking_within_the_loop_takes_effect_at_the_next_record(
    node: NodeProcess, topic: str
) -> None:
    await fill(node.address, topic, 30)
    async with Consumer(node.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        seen = []
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 3:
                consumer.seek((topic, 0), 20)
            if len(seen) == 6:
                break
        assert seen == [0, 1, 2, 3, 20, 21]


async def test_nothing_to_start_from_is_said_if_no_reset_is_wanted(
    node: NodeProcess, topic: str, name: str
) -> None:
    await fill(node.address, topic, 5)
    async with Consumer(node.address, group_id=name, auto_offset_reset="none") as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(NoOffsetForPartition, match=f"{topic}-0"):
            await consumer.poll(timeout_ms=5_000)
        consumer.seek((topic, 0), 3)
        assert await values(consumer, 2) == [3, 4]
        consumer.seek((topic, 0), 99)
        with pytest.raises(OffsetOutOfRange) as caught:
            await consumer.poll(timeout_ms=5_000)
        assert (caught.value.offset, caught.value.end) == (99, 5)


async def test_deleted_records_are_skipped_by_the_reset_policy(
    node: NodeProcess, topic: str
) -> None:
    await fill(node.address, topic, 20)
    async with Consumer(node.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        async with Admin(node.address) as admin:
            assert await admin.delete_records({(topic, 0): 12}) == {(topic, 0): 12}
        consumer.seek((topic, 0), 2)
        assert await values(consumer, 8) == list(range(12, 20))


async def test_commits_are_where_the_next_consumer_starts(
    node: NodeProcess, topic: str, name: str
) -> None:
    await fill(node.address, topic, 20)
    tp = (topic, 0)
    options = {"group_id": name, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with Consumer(node.address, **options) as consumer:  # type: ignore[arg-type]
        consumer.assign([tp])
        assert await consumer.committed([tp]) == {tp: None}
        await values(consumer, 5)
        await consumer.commit()
        await values(consumer, 5)
    async with Consumer(node.address, **options) as consumer:  # type: ignore[arg-type]
        consumer.assign([tp])
        assert await values(consumer, 2) == [5, 6]
        await consumer.commit({tp: 15})
        await consumer.commit({tp: OffsetAndMetadata(16, 0, "why")})
        assert await consumer.committed([tp]) == {tp: OffsetAndMetadata(16, 0, "why")}
        for wrong in (-1, "3", None):
            with pytest.raises(InvalidRequest, match="offset"):
                await consumer.commit({tp: wrong})  # type: ignore[dict-item]
    async with Consumer(node.address, **options) as consumer:  # type: ignore[arg-type]
        consumer.assign([tp])
        assert await values(consumer, 1) == [16]


@pytest.mark.parametrize("way", ["poll", "iterate"])
async def test_automatic_commits_leave_out_the_record_that_failed(
    node: NodeProcess, topic: str, name: str, way: str
) -> None:
    async def read_until_failure() -> None:
        async with Consumer(
            node.address, topics=[topic], group_id=name, auto_offset_reset="earliest"
        ) as consumer:
            if way == "poll":
                await values(consumer, 4)
                await values(consumer, 3)
                raise RuntimeError
            async for record in consumer:
                if record.offset == 4:
                    raise RuntimeError

    await fill(node.address, topic, 20)
    with pytest.raises(RuntimeError):
        await read_until_failure()
    async with Consumer(node.address, topics=[topic], group_id=name) as consumer:
        assert await values(consumer, 3) == [4, 5, 6]
    # Left in order, everything handed out counts as dealt with.
    async with Consumer(node.address, topics=[topic], group_id=name) as consumer:
        assert await values(consumer, 1) == [7]


async def test_automatic_commits_happen_in_time(node: NodeProcess, topic: str, name: str) -> None:
    await fill(node.address, topic, 20)
    tp = (topic, 0)
    async with Consumer(
        node.address,
        topics=[topic],
        group_id=name,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=100,
    ) as consumer:
        await values(consumer, 5)
        await asyncio.sleep(0.4)
        held = (await consumer.committed([tp]))[tp]
        assert held is None or held.offset == 0  # The records are in the user's hands.
        await values(consumer, 5)

        async def has_committed() -> bool:
            committed = (await consumer.committed([tp]))[tp]
            assert committed is None or committed.offset in (0, 5)
            return committed is not None and committed.offset == 5

        await eventually_async(has_committed, "the first five are committed")


async def test_misuse_is_said_so(node: NodeProcess, topic: str, name: str) -> None:
    async with Consumer(node.address) as consumer:
        with pytest.raises(InvalidRequest, match="subscribe to topics or assign"):
            await consumer.poll()
        with pytest.raises(NotAssigned, match=f"{topic}-0 is not assigned"):
            consumer.seek((topic, 0), 0)
        with pytest.raises(InvalidRequest, match="group_id"):
            consumer.subscribe([topic])
        with pytest.raises(InvalidRequest, match="group_id"):
            await consumer.commit({(topic, 0): 1})
        consumer.assign([(topic, 0)])
        with pytest.raises(InvalidRequest, match="max_records"):
            await consumer.poll(max_records=0)
        with pytest.raises(InvalidRequest, match="offset"):
            consumer.seek((topic, 0), -1)
    with pytest.raises(ClientClosed):
        await consumer.poll()
    async with Consumer(node.address, group_id=name) as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(InvalidRequest, match="assigned by hand"):
            consumer.subscribe([topic])
        await consumer.unsubscribe()
        consumer.subscribe([topic])
        with pytest.raises(InvalidRequest, match="subscribed"):
            consumer.assign([(topic, 0)])
        for wrong in ([], ["", topic]):
            with pytest.raises(InvalidRequest):
                consumer.subscribe(wrong)
        with pytest.raises(InvalidRequest, match="topics or to a pattern"):
            consumer.subscribe([topic], pattern=".*")


async def test_reading_goes_on_after_the_node_was_killed(own_node: NodeProcess) -> None:
    topic = make_topic(own_node, "survivor")
    await fill(own_node.address, topic, 50)
    async with Consumer(
        own_node.address, topics=[topic], group_id="g", auto_offset_reset="earliest"
    ) as consumer:
        assert await values(consumer, 20) == list(range(20))
        await asyncio.to_thread(own_node.kill)
        reading = asyncio.create_task(values(consumer, 60))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(own_node.start)
        await fill(own_node.address, topic, 30, start=50)
        assert await reading == list(range(20, 80))
        await consumer.commit()
        assert (await consumer.committed([(topic, 0)]))[topic, 0] is not None


async def test_waiting_for_records_can_be_cancelled(node: NodeProcess, topic: str) -> None:
    async with Consumer(node.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(aiter(consumer)), 0.1)
        await fill(node.address, topic, 3)
        assert await values(consumer, 3) == [0, 1, 2]


async def test_seeking_to_what_is_committed_never_ends_at_the_start(
    node: NodeProcess, topic: str, name: str
) -> None:
    """At whatever moment a fetch is being planned, sent or answered."""
    draw = random.Random(11)

    await fill(node.address, topic, 20)
    tp = (topic, 0)
    async with Consumer(
        node.address,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=5,
    ) as consumer:
        consumer.assign([tp])
        await consumer.commit({tp: 5})
        for _ in range(300):
            consumer.seek_to_committed()
            for _ in range(draw.randrange(2)):
                await consumer.poll(timeout_ms=draw.choice((0, 1, 2)))
            for _ in range(draw.randrange(12)):
                await asyncio.sleep(0)
            consumer.seek_to_committed()
            assert await values(consumer, 3) == [5, 6, 7]

"""The scrubber finds damaged segments, at the rate that it may."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.model import TopicPartition
from tidelog_node.upkeep.scrubber import SEGMENT_BYTES_MIN, Scrubber

from tests.node.replication.led_node import led_node
from tests.support.batches import batch_of

SEGMENT_COUNT = 4


class Told:
    """Remembers what it is told of."""

    def __init__(self) -> None:
        self.segments: list[tuple[TopicPartition, int]] = []

    def suspect(self, partition: TopicPartition, base_offset: int) -> None:
        self.segments.append((partition, base_offset))


async def scrub(folder: Path, rate: int) -> tuple[float, Told, list[int], int]:
    """Check four segments, the second of them damaged; return how long that took, too."""
    config = NodeConfig(log_scrub_bytes_per_second=rate)
    async with led_node(folder) as node:
        await node.create_topic()
        replica = node.replica()
        for _ in range(SEGMENT_COUNT):
            replica.append(bytearray(batch_of(b"x" * 300_000)))
            replica.log.roll()
        sealed = replica.log.sealed_segments()
        with sealed[1].path.open("r+b") as file:
            file.seek(1_000)
            file.write(b"y")
        told = Told()
        scrubber = Scrubber(replicas=node.replicas, node_config=lambda: config, repair=told)
        with ThreadPoolExecutor(1) as executor:
            started = time.monotonic()
            await scrubber.check_all(executor)
            took_s = time.monotonic() - started
        return took_s, told, [one.base_offset for one in sealed], scrubber.checked_bytes


async def test_damaged_segments_are_found(tmp_path: Path) -> None:
    _, told, bases, checked_bytes = await scrub(tmp_path, 2**40)
    assert [base_offset for _, base_offset in told.segments] == [bases[1]]
    assert checked_bytes > SEGMENT_COUNT * 300_000


async def test_no_more_is_read_than_the_rate_allows(tmp_path: Path) -> None:
    took_s, _, _, checked_bytes = await scrub(tmp_path, 2_000_000)
    assert took_s >= (checked_bytes - 400_000) / 2_000_000


async def test_a_rate_of_nothing_reads_nothing(tmp_path: Path) -> None:
    _, told, _, checked_bytes = await scrub(tmp_path, 0)
    assert (told.segments, checked_bytes) == ([], 0)


async def test_a_segment_that_the_disk_does_not_give_does_not_end_the_scrubbing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        replica, troubles = node.replica(), list[str]()
        node.replicas.disk.trouble.subscribe(troubles.append)
        replica.append(bytearray(batch_of(b"x")))
        replica.log.roll()
        segment = min(replica.log.directory.glob("*.log"))
        segment.unlink()
        segment.symlink_to(segment)  # ``stat`` fails: too many levels of links.
        scrubber = Scrubber(replicas=node.replicas, node_config=NodeConfig, repair=(told := Told()))
        with ThreadPoolExecutor(1) as executor:
            await scrubber.check_all(executor)
        assert (len(troubles), told.segments) == (1, [])
    assert "tidelog_node.upkeep.scrubber" not in {record.name for record in caplog.records}


async def test_small_segments_are_read_slowly_too(tmp_path: Path) -> None:
    """To open a file costs more than to read it."""
    counted_bytes = SEGMENT_COUNT * SEGMENT_BYTES_MIN

    async with led_node(tmp_path) as node:
        replica = await node.create_topic()
        for _ in range(SEGMENT_COUNT):
            replica.append(bytearray(batch_of(b"x")))
            replica.log.roll()
        config = NodeConfig(log_scrub_bytes_per_second=counted_bytes)
        scrubber = Scrubber(replicas=node.replicas, node_config=lambda: config, repair=Told())
        with ThreadPoolExecutor(1) as executor:
            started = time.monotonic()
            await scrubber.check_all(executor)
            assert time.monotonic() - started >= 0.9


async def test_so_many_logs_are_visited_in_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog_node.upkeep.scrubber.LOGS_PER_SECOND_MAX", 2)

    async with led_node(tmp_path) as node:
        await node.create_topic(partition_count=4)
        scrubber = Scrubber(replicas=node.replicas, node_config=NodeConfig, repair=Told())
        with ThreadPoolExecutor(1) as executor:
            started = time.monotonic()
            await scrubber.check_all(executor)
            assert time.monotonic() - started >= 1.9

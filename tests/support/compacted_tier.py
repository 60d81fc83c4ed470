"""Compaction of a tier, and the rows that readers find in it."""

from __future__ import annotations

from hypothesis import strategies as st
from tidelog_core.erasure.tier import delete_replaced
from tidelog_core.records.batch import CompressionType, Record
from tidelog_core.tier_compaction.compact import (
    CompactionOutcome,
    CompactionReport,
    compact_partition,
)

from tests.support.random_logs import RandomLog
from tests.support.tiered_partition import TieredPartition

CUTS = st.lists(st.integers(1, 5), max_size=6)
DELAY_MS = 60_000


def rows_of(records: list[Record]) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Return these records as ``read_rows`` returns them."""
    return [(r.offset, r.timestamp_ms, r.key, r.value) for r in records]


def read_rows(partition: TieredPartition) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Return offset, time, key and value of every record in the bucket, read by the script in docs."""
    return [(r.offset, r.timestamp, r.key, r.value) for r in partition.read_bucket()]


def plain(log: RandomLog, *keys: str, value: bytes | None = b"v") -> bytes:
    """Append one record of each key in a batch, and return the batch."""
    log.append([(key.encode(), value) for key in keys], -1, CompressionType.NONE)
    return log.batches[-1]


async def compacted(partition: TieredPartition, **given: object) -> CompactionReport:
    """Compact the tier even if it is hardly dirty."""
    report = await compact_partition(partition.tier(), is_forced=True, **given)  # type: ignore[arg-type]
    assert report.outcome is not CompactionOutcome.CLAIMED
    return report


async def let_replaced_go(partition: TieredPartition) -> None:
    """Let the delay pass and compact again, which deletes the replaced segments."""
    await compacted(partition)
    partition.clock.now_ms += DELAY_MS
    await compact_partition(partition.tier())
    assert await partition.object_keys() == await partition.named_keys()


async def pass_time(partition: TieredPartition) -> None:
    """Let the delay pass and delete the replaced segments as erasure does."""

    async def sleep(seconds: float) -> None:
        partition.clock.now_ms += int(seconds * 1000)

    await delete_replaced(partition.tier(), sleep=sleep)

"""Compaction of a tier where it is deployed: DynamoDB, with its limit on transactions, and S3."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from tidelog_core.erasure.tier import delete_replaced, erase_from_tier
from tidelog_core.metadata.stores.dynamodb import DynamoDbMetadataStore
from tidelog_core.objects.s3 import S3ObjectStore
from tidelog_core.tier_compaction.compact import CompactionOutcome, compact_partition
from tidelog_core.tier_compaction.swap import OLD_SEGMENTS_MAX

from tests.aws.buckets import make_bucket
from tests.support.compacted_tier import plain
from tests.support.random_logs import RandomLog, committed_records, oracle
from tests.support.tiered_partition import TieredPartition

BUCKET = "tidelog-compaction"


@pytest.mark.slow
async def test_more_segments_than_one_transaction_takes_are_compacted_and_erased_from(
    dynamodb_local_endpoint: str,
    ministack_endpoint: str,
    aws_credentials: None,
    tmp_path: Path,
) -> None:
    make_bucket(ministack_endpoint, BUCKET)

    table = f"tidelog-{uuid.uuid4().hex}"
    store = DynamoDbMetadataStore(table, region="us-east-1", endpoint=dynamodb_local_endpoint)
    objects = S3ObjectStore(BUCKET, prefix=uuid.uuid4().hex, endpoint=ministack_endpoint)
    try:
        await store.create_table()
        partition = TieredPartition(store, objects, tmp_path)
        await partition.create()

        async def sleep(seconds: float) -> None:
            partition.clock.now_ms += int(seconds * 1000)

        log = RandomLog()
        for number in range(OLD_SEGMENTS_MAX + 3):
            await partition.copy([plain(log, f"k{number % 7}")])
        report = await compact_partition(partition.tier())
        assert report.outcome is CompactionOutcome.COMPACTED
        assert (report.segments_before, report.segments_after) == (OLD_SEGMENTS_MAX + 3, 2)
        erasure = await erase_from_tier(partition.tier(), b"k3")
        assert [len(one.removed_offsets) for one in erasure.erased] == [1]
        await delete_replaced(partition.tier(), sleep=sleep)
        assert await partition.object_keys() == await partition.named_keys()
        expected = oracle(committed_records(log.batches), log.end_offset)
        left = [(r.offset, r.key) for r in expected if r.key != b"k3"]
        assert [(r.offset, r.key) for r in await partition.stored_records()] == left
        assert await partition.problems() == []
    finally:
        await objects.close()
        await store.close()

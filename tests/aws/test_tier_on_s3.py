"""The tier with its objects in S3: copied, read back, evicted, expired."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.aws.buckets import make_bucket
from tests.support.tier_node import running_node
from tests.support.waiting import eventually_async

BUCKET = "tidelog-tier"


async def test_a_segments_life_in_s3(
    ministack_endpoint: str,
    aws_credentials: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_bucket(ministack_endpoint, BUCKET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack_endpoint)  # the worker inherits it
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}/nested"

    async with running_node(tmp_path, objects_url=url) as node:
        replica = await node.create_topic(
            configs={
                "local.retention.bytes": "0",
                "retention.ms": "100000",
                "file.delete.delay.ms": "0",
            }
        )
        segments = node.produce_segments(replica, 3, batch_count=20)

        async def is_evicted() -> bool:
            return replica.log.local_log_start_offset == 600

        await eventually_async(is_evicted)
        assert await node.verify(replica) == segments
        assert len(await node.objects()) == 6
        data = await node.read_all(replica, 0, 600, max_bytes=3000)
        assert data == b"".join(segments)
        node.clock.now_ms += 200_000
        await node.tier.apply_retention()
        assert await node.metas(replica) == []
        assert await node.objects() == {}

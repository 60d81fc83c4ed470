"""The rate that segments are uploaded with."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from tidelog_node.tier.bandwidth import Bandwidth

from tests.support.tier_node import CONFIG, running_node


def test_a_segment_waits_until_those_before_it_are_paid_for() -> None:
    bandwidth = Bandwidth(100)
    assert bandwidth.take(1000, now=5.0) == 0
    assert bandwidth.take(50, now=6.0) == 9.0
    assert bandwidth.take(1, now=7.0) == 8.5
    assert bandwidth.take(1, now=60.0) == 0  # What was not used is not saved up.
    assert bandwidth.take(1, now=60.0) == pytest.approx(0.01)


async def test_the_workers_uploads_keep_to_the_rate_of_the_setting(tmp_path: Path) -> None:
    """The first segment goes up at once; the next would have to wait for an hour."""
    config = dataclasses.replace(CONFIG, remote_log_manager_copy_max_bytes_per_second=1)

    async with running_node(tmp_path, config) as node:
        replica = await node.create_topic()
        segments = node.produce_segments(replica, 3, batch_count=10)
        assert len(segments[0]) > 3600
        async with asyncio.timeout(30):
            while len(await node.metas(replica)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert len(await node.finished(replica)) == 1
        assert len(await node.objects()) == 2

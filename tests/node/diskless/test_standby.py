"""A node is ready to take diskless partitions over once the cluster has any."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from tidelog_core.errors import InvalidConfig, StoreUnavailable, TidelogError
from tidelog_node.diskless.chain import standby
from tidelog_node.diskless.chain.standby import stand_by

from tests.node.replication.led_node import led_node
from tests.support.hand_chain import DISKLESS


class Preparing:
    """Fails some times first."""

    def __init__(self, failures: list[TidelogError]) -> None:
        self.failures = failures
        self.count = 0
        self.called = asyncio.Event()

    async def __call__(self) -> None:
        self.count += 1
        self.called.set()
        if self.failures:
            raise self.failures.pop()


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "RETRY_SECONDS", 0.01)


@pytest.mark.parametrize(
    ("failures", "count"),
    [([], 1), ([StoreUnavailable("away")] * 2, 3), ([InvalidConfig(["no"])], 1)],
    ids=["at once", "retried", "in vain"],
)
async def test_it_prepares_with_the_first_diskless_topic(
    tmp_path: Path, failures: list[TidelogError], count: int
) -> None:
    async with led_node(tmp_path) as node:
        prepare = Preparing(failures)
        work = asyncio.create_task(stand_by(node.context, prepare))
        await node.create_topic(replicas=(1,))
        await node.delete_topic()
        await asyncio.sleep(0.02)
        assert prepare.count == 0
        await node.create_topic(replicas=(1,), **DISKLESS)
        async with asyncio.timeout(60):
            while prepare.count < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert prepare.count == count
        assert not work.done()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def test_a_topic_that_is_there_at_the_start_counts(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic(replicas=(1,), **DISKLESS)
        prepare = Preparing([])
        work = asyncio.create_task(stand_by(node.context, prepare))
        async with asyncio.timeout(60):
            await prepare.called.wait()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work

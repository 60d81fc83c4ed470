"""A partition that becomes diskless while the tier gets, or somebody deletes, what it enters with.

All of it is below the high watermark, so nothing else keeps its segments.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.log.local_log import LocalLog
from tidelog_node.diskless.takeover.conversions import Conversions
from tidelog_node.tier.manifests import BucketManifests

from tests.node.diskless.test_conversions import Converting, replicated
from tests.support.log_building import read_bytes
from tests.support.waiting import eventually_async
from tests.support.wal_scene import WalScene


class EnteringScene:
    """A partition on its way into the chain of a node whose worker is down."""

    def __init__(self, one: Converting, scene: WalScene) -> None:
        self.one, self.scene = one, scene
        scene.worker.wal = None
        node = one.it.node

        async def own_chain() -> object:
            return scene.chain

        one.conversions = Conversions(
            node.replicas,
            own_chain=own_chain,  # type: ignore[arg-type]
            manifests=BucketManifests(node.context, one.it.objects),
            flush=node.flusher.request,
        )

    @property
    def log(self) -> LocalLog:
        return self.one.replica.log

    async def commit(self) -> bytes:
        """Let the worker start; return what the chain then has of the partition."""
        end_offset = self.log.log_end_offset
        self.scene.worker._start()
        await eventually_async(
            lambda: (
                self.scene.chain.is_deposed
                or not self.scene.chain.has_uncommitted(self.one.replica)
            )
        )
        assert not self.scene.chain.is_deposed
        assert self.log.high_watermark == end_offset
        name = PartitionName(self.one.replica.topic_id, 0)
        return (await self.scene.committed_content())[name]


@asynccontextmanager
async def entering(folder: Path) -> AsyncIterator[EnteringScene]:
    async with replicated(folder / "node") as one:
        scene = WalScene(folder / "chain")
        try:
            yield EnteringScene(one, scene)
        finally:
            await scene.close(0.0)


def evict(log: LocalLog) -> None:
    log.set_tiered_up_to(log.log_end_offset)
    assert log.evict_local(log.log_end_offset) == 0


def delete(log: LocalLog) -> None:
    log.advance_log_start_offset(log.high_watermark)


def delete_some(log: LocalLog) -> None:
    log.advance_log_start_offset(1)


@pytest.mark.parametrize("remove", [evict, delete, delete_some])
async def test_what_is_removed_before_it_is_put_does_not_end_the_chain(
    tmp_path: Path, remove: Callable[[LocalLog], None]
) -> None:
    async with entering(tmp_path) as it:
        await it.one.send(b"one")
        await it.one.send(b"two")
        whole = read_bytes(it.log, 0)
        await it.one.ask("true")
        assert it.scene.chain.has_uncommitted(it.one.replica)
        it.log.roll()
        remove(it.log)
        assert await it.commit() == whole
        assert not it.log.is_held
        await it.one.write()
        assert it.one.replica.is_diskless


async def test_what_a_chain_that_ends_has_not_put_is_let_go_of(tmp_path: Path) -> None:
    async with entering(tmp_path) as it:
        await it.one.send(b"one")
        await it.one.ask("true")
        it.log.roll()
        delete(it.log)
        assert it.log.is_held
        it.scene.chain.abandon("the test says so")
        assert not it.log.is_held
        assert it.log.file_ranges(1, 1) == []


async def test_a_log_whose_first_records_were_deleted_enters_with_its_segment(
    tmp_path: Path,
) -> None:
    """The log start is within the active segment; the chain begins where the tier ends."""
    async with entering(tmp_path) as it:
        await it.one.send(b"one")
        await it.one.send(b"two")
        whole = read_bytes(it.log, 0)
        it.log.advance_log_start_offset(1)
        await it.one.ask("true")
        assert await it.commit() == whole
        await it.one.write()
        assert it.one.it.stored().wal[0].first_offset == 0
        sent = it.one.send(b"three")
        await eventually_async(sent.done)
        assert (await sent).base_offset == 2  # type: ignore[attr-defined]

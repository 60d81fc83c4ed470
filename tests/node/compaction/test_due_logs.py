"""Which logs compaction looks at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.errors import CorruptRecordBatch, StoreUnavailable
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import Record, build_batch
from tidelog_node.compaction.log_cleaner import LogCleaner
from tidelog_node.replicas.replica import Replica
from tidelog_node.upkeep.log_changes import LogChanges

from tests.node.replication.led_node import LedNode, led_node
from tests.node.upkeep.repair_world import CopylessTier

HOUR_MS = 3_600_000
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}
START_MS = 1_000_000_000


class StuckTier(CopylessTier):
    """Answers when a test lets it, and then not well."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.problem: Exception | None = None

    async def compacted_up_to(self, _: object) -> int | None:
        if self.problem is None:
            return None
        self.is_asked.set()
        await self.may_answer.wait()
        raise self.problem


class Cleaning:
    """A node whose cleaner is told by hand, at a time that a test sets."""

    def __init__(self, node: LedNode) -> None:
        self.node, self.now_ms = node, START_MS
        self.tier = StuckTier()
        self.cleaner = LogCleaner(
            replace(node.context, config=NodeConfig, clock_ms=lambda: self.now_ms),
            replicas=node.replicas,
            tier=self.tier,
            holds_files=node.directories.holds,
            suspect=lambda _, __: None,
            busy=set(),
        )
        self.changes = LogChanges(node.replicas, unchanged_count=0)
        self.changes.subscribe(self.cleaner.on_changed)

    async def create(self, **configs: str) -> Replica:
        replica = await self.node.create_topic(replicas=(1,), **configs)
        self.fill(replica)
        return replica

    def fill(self, replica: Replica) -> None:
        for _ in range(2):
            record = Record(0, self.now_ms, b"key", b"value")
            replica.append(bytearray(build_batch([record])))
            replica.log.roll()
        replica.log.flush()
        self.changes.publish()

    def is_due(self) -> bool:
        return self.cleaner._dirtiest() is not None

    def is_checked(self, replica: Replica) -> bool:
        return replica in self.cleaner._changed


@asynccontextmanager
async def cleaning(folder: Path) -> AsyncIterator[Cleaning]:
    async with led_node(folder) as node:
        yield Cleaning(node)


async def test_a_log_that_is_not_due_is_looked_at_again_when_it_has_changed(tmp_path: Path) -> None:
    async with cleaning(tmp_path) as one:
        replica = await one.create(**COMPACTED)
        assert one.is_checked(replica)
        assert not one.is_due()
        assert not one.is_checked(replica)
        one.fill(replica)
        assert one.is_checked(replica)


async def test_a_log_is_due_once_a_record_has_waited_for_the_greatest_lag(tmp_path: Path) -> None:
    async with cleaning(tmp_path) as one:
        await one.create(**COMPACTED, **{"max.compaction.lag.ms": str(HOUR_MS)})
        assert not one.is_due()
        one.now_ms += HOUR_MS
        assert not one.is_due()
        one.now_ms += 1
        assert one.is_due()
        assert one.is_due()  # Until it is compacted.


async def test_a_log_is_due_by_new_settings(tmp_path: Path) -> None:
    async with cleaning(tmp_path) as one:
        replica = await one.create(**{"cleanup.policy": "delete"})
        assert not one.is_due()
        assert not one.is_checked(replica)
        await one.node.configure(**COMPACTED, **{"min.compaction.lag.ms": str(HOUR_MS)})
        one.changes.publish()
        assert not one.is_due()
        await one.node.configure(**{**COMPACTED, "min.cleanable.dirty.ratio": "0.5"})
        one.changes.publish()
        assert one.is_due()


async def test_a_log_that_is_offline_is_looked_at_once_it_is_open_again(tmp_path: Path) -> None:
    async with cleaning(tmp_path) as one:
        replica = await one.create(**{**COMPACTED, "min.cleanable.dirty.ratio": "0.5"})
        before = replica.log
        before._segments.go_offline()
        assert not one.is_due()
        before.close()
        replica.take(replica.reopen(None))
        one.changes.publish()
        assert one.is_due()


async def test_an_error_of_the_disk_is_reported_as_one_of_the_log(tmp_path: Path) -> None:
    async with cleaning(tmp_path) as one:
        heard: list[str] = []
        one.node.replicas.disk.trouble.subscribe(heard.append)
        replica = await one.create(**{**COMPACTED, "min.cleanable.dirty.ratio": "0.5"})
        found = one.cleaner._dirtiest()
        assert found is not None
        min(replica.log.directory.glob("*.log")).unlink()
        await one.cleaner._attempt(*found)
        assert len(heard) == 1
        assert one.cleaner._dirtiest() is None  # It is tried again later.


async def test_a_deleted_log_is_forgotten(tmp_path: Path) -> None:
    async with cleaning(tmp_path) as one:
        replica = await one.create(**COMPACTED, **{"max.compaction.lag.ms": str(HOUR_MS)})
        assert not one.is_due()
        assert replica in one.cleaner._later
        await one.node.delete_topic()
        one.changes.publish()
        assert replica not in one.cleaner._later
        assert not one.is_checked(replica)


@pytest.mark.parametrize(
    "problem", [ValueError("a bug"), CorruptRecordBatch("damaged"), StoreUnavailable("gone")]
)
async def test_a_log_that_is_deleted_while_its_compaction_fails_is_forgotten(
    tmp_path: Path, problem: Exception
) -> None:
    async with cleaning(tmp_path) as one:
        one.tier.problem = problem
        await one.create(**{**COMPACTED, "min.cleanable.dirty.ratio": "0.5"})
        found = one.cleaner._dirtiest()
        assert found is not None
        attempt = asyncio.create_task(one.cleaner._attempt(*found))
        await one.tier.is_asked.wait()
        await one.node.delete_topic()
        one.changes.publish()
        one.tier.may_answer.set()
        await attempt
        assert not one.cleaner._not_before_ms


async def test_a_log_that_breaks_the_look_at_it_keeps_no_other_from_compaction(
    tmp_path: Path,
) -> None:
    async with cleaning(tmp_path) as one:
        replica = await one.node.create_topic(replicas=(1,), partition_count=2, **COMPACTED)
        broken = one.node.replicas.get(TopicPartition(replica.partition.topic, 1))
        one.cleaner._holds_files = no_answer
        await one.node.configure(**{**COMPACTED, "min.cleanable.dirty.ratio": "0.5"})
        one.fill(replica)
        assert broken is not None
        assert one.is_checked(broken)
        assert one.is_due()
        assert broken in one.cleaner._not_before_ms


def no_answer(_: Replica) -> bool:
    raise ValueError("a bug")

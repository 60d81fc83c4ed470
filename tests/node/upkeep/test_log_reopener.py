"""Which logs in trouble come back, and what has to be there for it."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tidelog_core.errors import StorageError
from tidelog_core.log.values import CorruptLog
from tidelog_node.replicas.replica import Replica
from tidelog_node.upkeep import log_reopener
from tidelog_node.upkeep.log_reopener import LogReopener

from tests.node.replication.led_node import LedNode, led_node
from tests.support.batches import batch_of

BROKEN = StorageError("broken", errno=errno.EIO)


class Reopening:
    """A node with a log of six records, of which three are committed. Made by ``reopening``."""

    def __init__(self, node: LedNode, replica: Replica) -> None:
        self.node, self.replica = node, replica
        self.trouble: Exception | None = None  # what registering again raises
        self.reopener = LogReopener(
            node.context,
            replicas=node.replicas,
            disk=node.replicas.disk,
            directories=node.directories,
            start_next_epoch=lambda _, __: None,
            register=self._register,
        )

    async def _register(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    async def follow(self, *, isr: tuple[int, ...]) -> None:
        epoch = self.replica.leader_epoch + 1
        await self.node.change_partition(leader=2, leader_epoch=epoch, isr=isr)

    async def lead_alone(self) -> None:
        epoch = self.replica.leader_epoch + 1
        await self.node.change_partition(leader=1, leader_epoch=epoch, isr=(1,))

    def fail(self) -> None:
        """Have the disk fail, and lose the last two records."""
        log = self.replica.log
        log._segments.go_offline()
        (path,) = log.directory.glob("*.log")
        os.truncate(path, path.stat().st_size // 6 * 4)
        self.replica.note_failure(BROKEN)


@asynccontextmanager
async def reopening(folder: Path) -> AsyncIterator[Reopening]:
    async with led_node(folder) as node:
        replica = await node.create_topic()
        for _ in range(6):
            replica.append(bytearray(batch_of(b"x")))
        replica.log.advance_high_watermark(3)
        yield Reopening(node, replica)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reopener, "WAIT_SECONDS_MAX", 0.0)


async def test_a_damaged_log_is_fetched_again_once_another_replica_leads_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with reopening(tmp_path) as one:
        await one.lead_alone()
        one.replica.log.close()
        one.replica.give_up(CorruptLog("damaged"))
        for _ in range(3):
            await one.reopener.attempt_due()
        assert one.replica.damage is not None
        await one.follow(isr=(2,))  # A person has allowed an unclean election.
        await one.reopener.attempt_due()
        assert one.replica.damage is None
        assert one.replica.log.log_end_offset == 0
    asked = [record for record in caplog.records if "tidelog repair" in record.message]
    assert len(asked) == 1


async def test_the_last_in_sync_needs_all_that_the_leader_may_have_counted_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A follower learns only later what is committed: its high watermark is no bound."""
    async with reopening(tmp_path) as one:
        await one.follow(isr=(1, 2))
        one.fail()
        assert one.replica.log.high_watermark == 3
        await one.follow(isr=(1,))
        await one.reopener.attempt_due()
        assert one.replica.log.is_offline
    lost = [record for record in caplog.records if "records that are lost" in record.message]
    assert [getattr(record, "reason", "") for record in lost] == [
        "the disk has lost the acknowledged records from 4 to 5"
    ]


async def test_a_log_that_has_lost_records_follows_once_another_replica_leads_without_it(
    tmp_path: Path,
) -> None:
    async with reopening(tmp_path) as one:
        await one.follow(isr=(1, 2))
        one.fail()
        await one.lead_alone()
        for _ in range(3):
            await one.reopener.attempt_due()
        assert one.replica.log.is_offline
        await one.follow(isr=(2,))
        await one.reopener.attempt_due()
        assert not one.replica.log.is_offline
        assert one.replica.log.log_end_offset == 4


async def test_a_diskless_log_comes_back_although_the_replica_is_in_sync(tmp_path: Path) -> None:
    """Its chains have what it has lost."""
    async with reopening(tmp_path) as one:
        await one.follow(isr=(1, 2))
        one.replica.is_diskless = True
        one.fail()
        await one.reopener.attempt_due()
        assert not one.replica.log.is_offline
        assert one.replica.log.log_end_offset == 4


async def test_what_nobody_has_thought_of_does_not_keep_logs_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with reopening(tmp_path) as one:
        await one.follow(isr=(2, 3))
        one.fail()
        one.trouble = ValueError("nobody knows")
        await one.reopener.attempt_due()
        assert one.replica.log.is_offline
        one.trouble = None
        await one.reopener.attempt_due()
        assert not one.replica.log.is_offline
    broke = [record for record in caplog.records if "broke" in record.message]
    assert [record.levelno for record in broke] == [logging.ERROR]

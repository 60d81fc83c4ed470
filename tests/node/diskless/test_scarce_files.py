"""A node that lacks file descriptors for a moment keeps the partitions that it is to lead."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from tidelog_node.diskless.takeover import pending_takeovers
from tidelog_node.diskless.takeover.damaged_partitions import SCARCE_TRIES_MIN, TRIES_MIN
from tidelog_node.diskless.takeover.takeovers import OUT_OF_RESOURCES_FAULT

from tests.node.diskless.takeover_node import TakeoverNode, create, takeover_node


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_takeovers, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(pending_takeovers, "DAMAGED_SECONDS_MAX", 0.2)


class ScarceFiles:
    """The system calls that open files of one folder fail as long as a test says."""

    def __init__(self, folder: Path, number: int) -> None:
        self.is_scarce = False
        self.refused_count = 0
        self._folder, self._number = str(folder), number
        self._open = os.open

    def open(self, path: Any, *args: Any, **named: Any) -> int:
        if self.is_scarce and str(path).startswith(self._folder):
            self.refused_count += 1
            raise OSError(self._number, os.strerror(self._number), str(path))
        return self._open(path, *args, **named)


async def leave_record(folder: Path) -> TakeoverNode:
    """Have a node lead a partition of one committed record, and end."""
    async with takeover_node(folder) as it:
        await create(it)
        await it.until_led()
        await it.send(b"kept")
    return it


def faults_of(it: TakeoverNode) -> list[str]:
    return [reason.name for reason in it.node.context.health.reasons]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_a_lack_that_passes_gives_no_lead_away(
    tmp_path: Path,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = await leave_record(tmp_path)
    files = ScarceFiles(before.node.folder / "data" / "t-0", number)
    monkeypatch.setattr(os, "open", files.open)
    async with takeover_node(tmp_path, before.objects) as it:
        files.is_scarce = True
        await it.node.change_partition(replicas=(1, 2))
        await it.until(lambda: tries_of(it) >= TRIES_MIN)
        assert faults_of(it) == [OUT_OF_RESOURCES_FAULT]
        files.is_scarce = False
        replica = await it.until_led()
        assert it.stored().leader == 1
        assert replica.log.log_end_offset == 1
        await it.until(lambda: faults_of(it) == [])
    assert files.refused_count > 0
    said = [one for one in caplog.records if one.levelno == logging.ERROR]
    hints = {getattr(one, "hint", "") for one in said if "cannot be recovered" in one.message}
    assert len(hints) == 1
    assert "open files" in hints.pop()


async def test_a_lack_that_stays_gives_the_lead_to_another_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = await leave_record(tmp_path)
    files = ScarceFiles(before.node.folder / "data" / "t-0", errno.EMFILE)
    monkeypatch.setattr(os, "open", files.open)
    async with takeover_node(tmp_path, before.objects) as it:
        files.is_scarce = True
        await it.node.change_partition(replicas=(1, 2))
        async with asyncio.timeout(60):
            while it.stored().leader == 1:
                await asyncio.sleep(0.01)
                await it.node.view.refresh()
        assert it.stored().leader == 2
        tries = [one for one in caplog.records if "cannot be recovered" in one.message]
        assert len(tries) >= SCARCE_TRIES_MIN
        files.is_scarce = False


async def test_the_fault_ends_with_a_partition_that_another_broker_was_elected_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await leave_record(tmp_path)
    files = ScarceFiles(before.node.folder / "data" / "t-0", errno.EMFILE)
    monkeypatch.setattr(os, "open", files.open)
    async with takeover_node(tmp_path, before.objects) as it:
        files.is_scarce = True
        await it.node.change_partition(replicas=(1, 2))
        await it.until(lambda: faults_of(it) == [OUT_OF_RESOURCES_FAULT])
        await it.node.change_partition(leader=2, leader_epoch=it.stored().leader_epoch + 1)
        await it.until(lambda: faults_of(it) == [])
        files.is_scarce = False


def tries_of(it: TakeoverNode) -> int:
    return it.takeovers._pending.damaged.tries(it.replica().name)

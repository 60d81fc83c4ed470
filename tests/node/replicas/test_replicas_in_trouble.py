"""Which replicas are in trouble, told without a look at those that are not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from tidelog_core.errors import StorageError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import CorruptLog
from tidelog_node.replicas.replica import Replica

from tests.node.replication.led_node import led_node
from tests.support.batches import batch_of


def fail_append(replica: Replica) -> None:
    """Append while the disk refuses the write, and the taking back of it."""
    (path,) = replica.log.directory.glob("*.log")
    replica.log.flush()
    replica.log._segments.active.release()
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError):
        replica.append(bytearray(batch_of(b"y")))


def fail_flush(replica: Replica) -> None:
    pending = replica.log.begin_flush()
    assert pending is not None
    replica.log.fail_flush(pending)


TROUBLES: dict[str, Callable[[Replica], object]] = {
    "an append fails": fail_append,
    "a flush fails": fail_flush,
    "the tier knows more": lambda replica: replica.log.take_offline(),
    "it is damaged": lambda replica: replica.give_up(CorruptLog("damaged")),
    "it is refused": lambda replica: replica.refuse(StorageError("no", errno=errno.EIO)),
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_log_is_in_trouble_whatever_took_it_offline(tmp_path: Path, trouble: str) -> None:
    """Nobody needs to report it."""
    async with led_node(tmp_path) as node:
        replica = await node.create_topic(replicas=(1,))
        replica.append(bytearray(batch_of(b"x")))
        assert node.replicas.in_trouble() == []
        if trouble == "it is refused":
            replica.allow_reopening()  # Only what is not open can be.
        TROUBLES[trouble](replica)
        assert replica.is_in_trouble
        assert node.replicas.in_trouble() == node.replicas.in_trouble() == [replica]
        replica.allow_reopening()
        assert node.replicas.in_trouble() == []


async def test_a_log_that_was_opened_again_is_in_trouble_again_when_it_fails(
    tmp_path: Path,
) -> None:
    async with led_node(tmp_path) as node:
        replica = await node.create_topic(replicas=(1,))
        replica.append(bytearray(batch_of(b"x")))
        fail_flush(replica)
        replica.log.close()
        log = replica.reopen(None)
        replica.take(log)
        assert node.replicas.in_trouble() == []
        log._segments.go_offline()
        assert node.replicas.in_trouble() == [replica]


async def test_a_deleted_partition_is_not_in_trouble(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        replica = await node.create_topic(replicas=(1,))
        replica.append(bytearray(batch_of(b"x")))
        await node.delete_topic()
        assert replica.is_in_trouble
        assert node.replicas.in_trouble() == []


async def test_a_log_that_opens_offline_is_in_trouble(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        replica = await node.create_topic(replicas=(1,))
        log: LocalLog = replica.log
        log.take_offline()
        assert node.replicas.in_trouble() == [replica]
        replica.allow_reopening()
        assert node.replicas.in_trouble() == []
        replica.take(log)
        assert node.replicas.in_trouble() == [replica]

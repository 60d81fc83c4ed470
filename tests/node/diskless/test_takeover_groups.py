"""Partitions with short tails are led while those with long ones are still refilled."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.wal.header import HEADER_SIZE
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectMeta
from tidelog_core.records.header import iter_headers
from tidelog_node.diskless.recovery import object_reads
from tidelog_node.diskless.takeover import leader_takeover, pending_takeovers

from tests.node.diskless.takeover_node import TakeoverNode, create, takeover_node
from tests.support.batches import batch_of
from tests.support.log_building import content_of

LONG, SHORT, EMPTY = 0, 1, 2
LONG_OBJECTS = 4


class HeldStore(MemoryObjectStore):
    """A store that answers no read of records while it is held, but for some of the first ones."""

    def __init__(self) -> None:
        super().__init__()
        self.answered_max: int | None = None  # of the objects with the long tail
        self.read_keys: list[str] = []
        self.released = asyncio.Event()
        self.footers_read = Counter[str]()
        self.may_list = asyncio.Event()
        self.may_list.set()
        self.waits_to_list = asyncio.Event()

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        self.waits_to_list.set()
        await self.may_list.wait()
        async for meta in super().list(prefix, start_after=start_after):
            yield meta

    def hold(self, answered_max: int | None) -> None:
        self.answered_max = answered_max
        self.read_keys.clear()

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        data = await super().get_range(key, start, end)
        self.footers_read[key] += start == 0 and len(data) > HEADER_SIZE
        if start and len(data) > 1_000:  # Footers are read from the start on: objects are small.
            self.read_keys.append(key)
            if self.answered_max is not None and len(self.read_keys) > self.answered_max:
                await self.released.wait()
        return data


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_takeovers, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(leader_takeover, "UNKNOWN_SECONDS", 0.02)
    monkeypatch.setattr(object_reads, "WAVE_BYTES_MIN", 1_000)


async def fill(it: TakeoverNode) -> None:
    await create(it, partitions=3)
    for number in range(3):
        await it.until_led(number)
    for turn in range(LONG_OBJECTS):
        it.replica(LONG).append(bytearray(batch_of(b"%d" % turn * 2_000, producer=(7, 0, turn))))
        assert await it.chain.commit(it.replica(LONG)) is PutOutcome.STORED
    it.replica(SHORT).append(bytearray(batch_of(b"first")))
    assert await it.chain.commit(it.replica(SHORT)) is PutOutcome.STORED


async def test_an_heir_leads_short_tails_at_once_and_may_be_killed_before_the_others(
    tmp_path: Path,
) -> None:
    objects = HeldStore()
    async with takeover_node(tmp_path, objects) as it:
        await fill(it)
        first = it.chain.name
        long_content = content_of(it.replica(LONG).log)
    shutil.rmtree(tmp_path / "data")
    heirs = []
    for turn in range(2):  # The second heir has what the first has left, and is killed, too.
        objects.hold(turn + 1)
        async with takeover_node(tmp_path, objects) as it:
            for number in (EMPTY, SHORT):
                await it.until_led(number)
            assert not it.replica(LONG).is_leader
            it.replica(SHORT).append(bytearray(batch_of(b"heir %d" % turn)))
            assert await it.chain.commit(it.replica(SHORT)) is PutOutcome.STORED
            await it.until(lambda turn=turn: len(objects.read_keys) > turn + 1)  # type: ignore[misc]
            assert not it.replica(LONG).is_leader
            heirs.append(it.chain.name)
    objects.hold(None)
    async with takeover_node(tmp_path, objects) as it:
        for number in range(3):
            await it.until_led(number)
        assert content_of(it.replica(LONG).log) == long_content
        short = content_of(it.replica(SHORT).log)
        assert [header.base_offset for _, header in iter_headers(short)] == [0, 1, 2]
        # Only who has led has an epoch, each in one chain and from its first offset on.
        last = it.chain.name
        long, wal = it.stored(LONG).wal, it.stored(SHORT).wal
        assert [(one.chain, one.first_offset) for one in long] == [(first, 0), (last, LONG_OBJECTS)]
        assert [(one.chain, one.first_offset) for one in wal] == [
            (first, 0),
            (heirs[0], 1),
            (heirs[1], 2),
            (last, 3),
        ]
        epochs = [one.leader_epoch for one in wal]
        assert epochs == sorted(set(epochs))
        # The producer of the long tail goes on.
        again = bytearray(batch_of(b"%d" % 3 * 2_000, producer=(7, 0, LONG_OBJECTS - 1)))
        assert it.replica(LONG).append(again).is_duplicate


async def test_a_group_that_cannot_be_written_leaves_the_one_before_led(tmp_path: Path) -> None:
    """The own chain is sealed between two groups: what is left enters the next one."""
    objects = HeldStore()
    async with takeover_node(tmp_path, objects) as it:
        await fill(it)
    shutil.rmtree(tmp_path / "data")
    objects.hold(0)
    async with takeover_node(tmp_path, objects) as it:
        short = await it.until_led(SHORT)
        sealed = it.chain
        sealed.is_deposed = True
        objects.released.set()
        long = await it.until_led(LONG)
        assert short.is_leader
        assert it.chain is not sealed
        assert it.stored(LONG).wal[-1].chain == it.chain.name
        assert sealed.name not in {one.chain for one in it.stored(LONG).wal}
        assert long.log.log_end_offset == LONG_OBJECTS


async def test_partitions_elected_meanwhile_join_the_group_that_seals_their_chain(
    tmp_path: Path,
) -> None:
    """Elections come in several writes; the footers of the chain are read once for all."""
    objects = HeldStore()
    async with takeover_node(tmp_path, objects) as it:
        await fill(it)
        first = it.chain.name
        await it.node.change_partition(SHORT, leader=2)
    objects.may_list.clear()
    objects.waits_to_list.clear()
    objects.footers_read.clear()
    async with takeover_node(tmp_path, objects) as it:
        await objects.waits_to_list.wait()
        await it.node.change_partition(SHORT, leader=1)
        assert it.takeovers.has_unentered
        objects.may_list.set()
        for number in range(3):
            await it.until_led(number)
        keys = [wal_key(it.cluster_id, first, n) for n in range(LONG_OBJECTS + 1)]
        assert [objects.footers_read[key] for key in keys] == [1] * len(keys)
        assert it.chain_calls == 1

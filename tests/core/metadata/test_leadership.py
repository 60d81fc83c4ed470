"""What is decided in a leader epoch holds in that epoch, whatever else changes in the item."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import pytest
from tidelog_core.errors import NotLeaderOrFollower, OutcomeUnknown, UnknownTopicOrPartition
from tidelog_core.metadata import records
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, EpochChains
from tidelog_core.metadata.leadership import advance_log_start, leadership_of, require_leadership
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import Check, Write

from tests.support.memory_store import MemoryMetadataStore
from tests.support.segment_items import partition_item

LEADERSHIP = leadership_of(partition_item())


class Interrupted(MemoryMetadataStore):
    """Does something else before the next commit."""

    def __init__(self) -> None:
        super().__init__(latency=0)
        self.before: Callable[[], Awaitable[None]] | None = None

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        before, self.before = self.before, None
        if before is not None:
            await before()
        await super().commit(writes, checks=checks)

    async def change(self, **fields: object) -> None:
        item = await self.get(LEADERSHIP_KEY)
        assert item is not None
        changed = dataclasses.replace(Partition.from_item(item), **fields)  # type: ignore[arg-type]
        await self.commit([records.put(changed)])

    async def log_start(self) -> int:
        item = await self.get(LEADERSHIP_KEY)
        assert item is not None
        return Partition.from_item(item).log_start_offset


LEADERSHIP_KEY = partition_item().item_id


@pytest.fixture
async def store() -> Interrupted:
    store = Interrupted()
    await store.commit([records.put(partition_item())])
    return store


async def test_the_log_start_moves_forward_only(store: Interrupted) -> None:
    assert await advance_log_start(store, LEADERSHIP, 20) == 20
    assert await advance_log_start(store, LEADERSHIP, 15) == 20
    assert await store.log_start() == 20


async def test_chains_of_which_the_tier_has_had_everything_go_with_a_log_start(
    store: Interrupted,
) -> None:
    """Of records that are purged as they are read the tier has nothing when others look."""
    wal = tuple(EpochChain(n, ChainName(n, UUID(int=n)), 10 * n) for n in range(4))
    await store.change(wal=wal)

    async def kept() -> EpochChains:
        item = await store.get(LEADERSHIP_KEY)
        assert item is not None
        return Partition.from_item(item).wal

    await advance_log_start(store, LEADERSHIP, 21)
    assert await kept() == wal
    await advance_log_start(store, LEADERSHIP, 22, copied_end=19)
    assert await kept() == wal[1:]
    await advance_log_start(store, LEADERSHIP, 23, copied_end=100)
    assert await kept() == wal[3:], "the last one is the leader's"


async def test_an_isr_that_changes_meanwhile_keeps_no_log_start_back(store: Interrupted) -> None:
    store.before = lambda: store.change(isr=(1,))
    assert await advance_log_start(store, LEADERSHIP, 20) == 20
    assert await store.log_start() == 20


async def test_a_log_start_that_others_have_moved_further_meanwhile_is_the_one_returned(
    store: Interrupted,
) -> None:
    store.before = lambda: store.change(log_start_offset=25)
    assert await advance_log_start(store, LEADERSHIP, 20) == 25
    assert await store.log_start() == 25


async def test_a_leader_elected_meanwhile_has_its_log_start_to_itself(store: Interrupted) -> None:
    """Also where the same broker leads: its log may be another one."""
    store.before = lambda: store.change(leader_epoch=6)
    with pytest.raises(NotLeaderOrFollower):
        await advance_log_start(store, LEADERSHIP, 20)
    assert await store.log_start() == 10


async def test_a_log_start_whose_outcome_is_not_known_is_found_out(store: Interrupted) -> None:
    answers: list[Exception] = [OutcomeUnknown("lost")]
    store.on_commit = lambda _: answers.pop() if answers else None
    assert await advance_log_start(store, LEADERSHIP, 20) == 20
    assert await store.log_start() == 20


async def test_nobody_leads_what_was_deleted(store: Interrupted) -> None:
    item = await store.get(LEADERSHIP_KEY)
    assert item is not None
    await store.commit([Write(item.id, None, item.version)])
    with pytest.raises(UnknownTopicOrPartition):
        await require_leadership(store, LEADERSHIP)
    with pytest.raises(UnknownTopicOrPartition):
        await advance_log_start(store, LEADERSHIP, 20)

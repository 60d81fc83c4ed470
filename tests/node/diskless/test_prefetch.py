"""An heir reads ahead while a leader is doubted, and hardly anything between seal and lead."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.walk import SEAL_SIZE_BYTES
from tidelog_core.diskless.wal.header import HEADER_SIZE
from tidelog_core.diskless.wal.keys import chain_prefix, wal_key
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.metadata.records import BrokerLease, put
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectMeta
from tidelog_node.diskless.recovery import prefetch
from tidelog_node.diskless.recovery.prefetch import Prefetch
from tidelog_node.diskless.recovery.range_cache import KEPT_BYTES_MAX, RangeCache
from tidelog_node.diskless.takeover import leader_takeover, pending_takeovers
from tidelog_node.membership.membership import Membership, new_membership

from tests.node.diskless.takeover_node import TakeoverNode, create, takeover_node
from tests.support.batches import batch_of
from tests.support.log_building import content_of

PARTITIONS, OBJECTS = 2, 6
LEADER, HEIR, OTHER = 2, 1, 3


class CountedStore(MemoryObjectStore):
    """A store that counts the reads of objects, headers and seals apart, and may hold them up."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = Counter[str]()
        self.list_count = 0
        self.listed = Counter[str]()  # by key
        self.hidden: set[str] = set()  # keys that came after their page was listed
        self.read_bytes = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        data = await super().get_range(key, start, end)
        if (start, end) not in ((0, HEADER_SIZE), (0, SEAL_SIZE_BYTES)):
            self.reads[key] += 1
            self.read_bytes += len(data)
            await self.may_answer.wait()
        return data

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        self.list_count += 1
        async for meta in super().list(prefix, start_after=start_after):
            if meta.key not in self.hidden:
                self.listed[meta.key] += 1
                yield meta

    def forget(self) -> None:
        self.reads.clear()
        self.listed.clear()
        self.read_bytes = self.list_count = 0


class Watching:
    """The membership of the heir, by which it doubts the leader."""

    def __init__(self) -> None:
        self.now_ms = 1_000.0
        self.membership: Membership = new_membership(HEIR, NodeConfig(), clock=lambda: self.now_ms)
        self.membership.leads_by_chain = lambda: True  # So it counts as one of the live brokers.
        self._counters = {LEADER: 1, OTHER: 1}
        self.look()

    def look(self, *renewed: int) -> None:
        for broker_id in renewed:
            self._counters[broker_id] += 1
        leases = [
            BrokerLease(
                broker_id=broker_id,
                incarnation=UUID(int=broker_id),
                counter=counter,
                version=counter,
            )
            for broker_id, counter in self._counters.items()
        ]
        self.membership.observe(leases, started_ms=self.now_ms)

    @property
    def is_attended(self) -> bool:
        """Whether anybody reads for a broker, or keeps what was read."""
        return len(self.membership.doubts) > 1

    def refuse(self) -> None:
        self.membership.note_refused(LEADER)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_takeovers, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(leader_takeover, "UNKNOWN_SECONDS", 0.02)


async def fill(
    folder: Path,
    objects: MemoryObjectStore,
    *,
    object_count: int = OBJECTS,
    more_count: int = 0,
) -> list[bytes]:
    """Have another broker lead partitions with objects in its chain; return their records.

    ``more_count`` objects more have records of the last partition alone.
    """
    async with takeover_node(folder, objects) as it:
        await create(it, partitions=PARTITIONS)
        replicas = [await it.until_led(number) for number in range(PARTITIONS)]
        for turn in range(object_count):
            for replica in replicas:
                value = b"%d" % turn * 900
                replica.append(bytearray(batch_of(value, producer=(7, 0, turn))))
            assert await it.chain.commit(*replicas) is PutOutcome.STORED
        for turn in range(object_count, object_count + more_count):
            replicas[-1].append(bytearray(batch_of(b"more" * 200, producer=(7, 0, turn))))
            assert await it.chain.commit(replicas[-1]) is PutOutcome.STORED
        contents = [content_of(replica.log) for replica in replicas]
        for number in range(PARTITIONS):
            # The heir has a replica, so no hash of a random topic id decides who it is.
            both = (LEADER, HEIR)
            await it.node.change_partition(number, leader=LEADER, isr=both, replicas=both)
    shutil.rmtree(folder / "data")
    return contents


@asynccontextmanager
async def reading(
    folder: Path,
    objects: CountedStore,
    kept_bytes_max: int = KEPT_BYTES_MAX,
    read_successors: Callable[[ChainName], Awaitable[None]] | None = None,
) -> AsyncIterator[tuple[TakeoverNode, Watching]]:
    async with takeover_node(folder, objects, kept_bytes_max=kept_bytes_max) as it:
        watching = Watching()
        ahead = Prefetch(
            it.node.context,
            membership=watching.membership,
            replica_of=it.node.replicas.get,
            objects=objects,
            ranges=it.ranges,
            history=it.history,
            read_successors=read_successors,
            listings=it.recovery.listings,
        )
        # The chain that ``fill`` leaves has the id of the heir's broker.
        it.recovery.begun.subscribe(lambda _: ahead.end_for([LEADER]))
        work = asyncio.create_task(ahead.run())
        await asyncio.sleep(0)  # It subscribes.
        objects.forget()
        try:
            yield it, watching
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            assert it.ranges.size_bytes == 0


async def take_over(it: TakeoverNode) -> list[bytes]:
    """Elect this node, wait until it leads, and return the records of its logs."""
    elected = [
        dataclasses.replace(
            it.stored(number),
            leader=HEIR,
            leader_epoch=it.stored(number).leader_epoch + 1,
            replicas=(HEIR,),
            isr=(HEIR,),
        )
        for number in range(PARTITIONS)
    ]
    # At once: elections that come one by one may be taken over in several groups.
    await it.node.store.commit(list(map(put, elected)))
    await it.node.view.refresh()
    replicas = [await it.until_led(number) for number in range(PARTITIONS)]
    return [content_of(replica.log) for replica in replicas]


def wal_reads(it: TakeoverNode, objects: CountedStore) -> int:
    chains = {entry.chain for number in range(PARTITIONS) for entry in it.stored(number).wal}
    prefixes = tuple(chain_prefix(it.cluster_id, chain) for chain in chains)
    return sum(count for key, count in objects.reads.items() if key.startswith(prefixes))


async def until_read(it: TakeoverNode, objects: CountedStore, kept: RangeCache) -> None:
    """Wait until all objects of the chain were read ahead, and the reading has come to rest."""
    await it.until(lambda: wal_reads(it, objects) >= OBJECTS)
    before = -1
    while before != kept.size_bytes:
        before = kept.size_bytes
        for _ in range(50):
            await asyncio.sleep(0)


async def test_without_it_every_object_is_read_between_seal_and_lead(tmp_path: Path) -> None:
    objects = CountedStore()
    contents = await fill(tmp_path, objects)
    async with reading(tmp_path, objects) as (it, _):
        assert await take_over(it) == contents
        assert wal_reads(it, objects) >= 2 * OBJECTS  # Each footer, each object's slices.


async def test_what_was_read_ahead_is_not_read_between_seal_and_lead(tmp_path: Path) -> None:
    objects = CountedStore()
    contents = await fill(tmp_path, objects)
    async with reading(tmp_path, objects) as (it, watching):
        watching.refuse()
        await until_read(it, objects, it.ranges)
        # Small objects are read once: what the footers' reads have brought is not read again.
        assert wal_reads(it, objects) == OBJECTS
        objects.forget()
        assert await take_over(it) == contents
        assert wal_reads(it, objects) == 0
        assert objects.list_count > 0  # It decides by listings of its own.


async def test_the_chains_that_had_partitions_since_are_looked_at_too(tmp_path: Path) -> None:
    objects, looked_at = CountedStore(), list[ChainName]()
    contents = await fill(tmp_path, objects)

    async def look(chain: ChainName) -> None:
        looked_at.append(chain)
        raise StoreUnavailable("away")  # It is an aid.

    async with reading(tmp_path, objects, read_successors=look) as (it, watching):
        watching.refuse()
        await until_read(it, objects, it.ranges)
        assert looked_at == [it.stored().wal[-1].chain]
        assert await take_over(it) == contents


async def test_what_is_known_to_have_existed_is_not_listed_again(tmp_path: Path) -> None:
    """Neither to seal the chain nor to find its slices."""
    objects = CountedStore()
    contents = await fill(tmp_path, objects)
    async with reading(tmp_path, objects) as (it, watching):
        chain = it.stored().wal[-1].chain
        watching.refuse()
        await until_read(it, objects, it.ranges)
        # The last object's header knows those before it.
        assert it.recovery.listings.known_end(chain) == OBJECTS - 1
        objects.forget()
        assert await take_over(it) == contents
        keys = [wal_key(it.cluster_id, chain, number) for number in range(OBJECTS)]
        assert [objects.listed[key] for key in keys[:-1]] == [0] * (OBJECTS - 1)
        assert objects.listed[keys[-1]] > 0
    assert it.recovery.listings.known_end(chain) == 0


async def test_an_object_that_was_collected_since_the_listing_is_not_missed(
    tmp_path: Path,
) -> None:
    objects = CountedStore()
    await fill(tmp_path, objects)
    async with reading(tmp_path, objects) as (it, watching):
        chain = it.stored().wal[-1].chain
        watching.refuse()
        await until_read(it, objects, it.ranges)
        for number in range(PARTITIONS):
            await it.node.change_partition(number, log_start_offset=2)
            it.replica(number).log_start_offset = 2
        await objects.delete([wal_key(it.cluster_id, chain, number) for number in range(2)])
        await take_over(it)
        for number in range(PARTITIONS):
            log = it.replica(number).log
            assert (log.log_start_offset, log.log_end_offset) == (2, OBJECTS)


@pytest.mark.parametrize("number", [0, 3, OBJECTS - 1])
async def test_an_object_that_came_after_its_page_was_listed_is_not_taken_for_collected(
    tmp_path: Path, number: int
) -> None:
    """A later page had an object that knows it. The last one of a partition would leave no gap."""
    objects = CountedStore()
    contents = await fill(tmp_path, objects, more_count=2)
    async with reading(tmp_path, objects) as (it, watching):
        chain = it.stored().wal[-1].chain
        objects.hidden.add(wal_key(it.cluster_id, chain, number))
        watching.refuse()
        await until_read(it, objects, it.ranges)
        assert it.recovery.listings.known_end(chain) == OBJECTS + 1
        objects.hidden.clear()
        assert await take_over(it) == contents


async def test_what_came_after_the_listing_is_read_after_the_seal(tmp_path: Path) -> None:
    """A PUT of the leader comes late, after the heir has read ahead."""
    objects = CountedStore()
    contents = await fill(tmp_path, objects, object_count=OBJECTS + 1)
    async with reading(tmp_path, objects) as (it, watching):
        late = wal_key(it.cluster_id, it.stored().wal[-1].chain, OBJECTS)
        data = await objects.get(late)
        await objects.delete([late])
        watching.refuse()
        await until_read(it, objects, it.ranges)
        objects.forget()
        await objects.put(late, data)
        assert await take_over(it) == contents
        assert objects.reads == {late: 2}  # Its footer, and its slices.


async def test_it_is_dropped_when_the_broker_is_reached_again(tmp_path: Path) -> None:
    objects = CountedStore()
    await fill(tmp_path, objects)
    async with reading(tmp_path, objects) as (it, watching):
        watching.refuse()
        await until_read(it, objects, it.ranges)
        assert it.ranges.size_bytes > 0
        watching.membership.note_reached(LEADER)
        await it.until(lambda: it.ranges.size_bytes == 0)
        before = wal_reads(it, objects)
        watching.refuse()  # Again at once: that costs nothing for a while.
        for _ in range(50):
            await asyncio.sleep(0)
        assert wal_reads(it, objects) == before


async def test_after_a_while_it_is_dropped_whatever_becomes_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "KEPT_SECONDS", 0.0)
    objects = CountedStore()
    contents = await fill(tmp_path, objects)
    async with reading(tmp_path, objects) as (it, watching):
        watching.refuse()
        await it.until(lambda: not watching.is_attended)
        assert LEADER in watching.membership.doubted
        assert it.ranges.size_bytes == 0
        assert await take_over(it) == contents


async def test_no_more_is_kept_than_may_be_and_the_rest_is_read_later(tmp_path: Path) -> None:
    objects = CountedStore()
    contents = await fill(tmp_path, objects)
    async with reading(tmp_path, objects, kept_bytes_max=5_000) as (it, watching):
        watching.refuse()
        await it.until(lambda: it.ranges.size_bytes > 0)
        for _ in range(200):
            await asyncio.sleep(0)
            assert it.ranges.size_bytes <= 5_000
        objects.forget()
        assert await take_over(it) == contents
        assert 0 < wal_reads(it, objects) < 2 * OBJECTS


async def test_once_the_partitions_have_another_leader_nothing_more_is_read_ahead(
    tmp_path: Path,
) -> None:
    objects = CountedStore()
    await fill(tmp_path, objects)
    async with reading(tmp_path, objects) as (it, watching):
        objects.may_answer.clear()
        watching.refuse()
        await it.until(lambda: wal_reads(it, objects) > 0)
        started = wal_reads(it, objects)
        await it.node.change_partition(0, leader=OTHER, leader_epoch=9)
        for _ in range(20):
            await asyncio.sleep(0)
        objects.may_answer.set()
        for _ in range(50):
            await asyncio.sleep(0)
        assert wal_reads(it, objects) == started
        assert it.ranges.size_bytes == 0  # What was under way is not kept.


async def test_reading_ahead_goes_on_until_the_recovery_of_this_node_reads(tmp_path: Path) -> None:
    objects = CountedStore()
    contents = await fill(tmp_path, objects)
    async with reading(tmp_path, objects) as (it, watching):
        under_way: list[int] = []
        it.recovery.begun.subscribe(lambda _: under_way.append(it.ranges.size_bytes))
        objects.may_answer.clear()
        watching.refuse()
        await it.until(lambda: wal_reads(it, objects) > 0)
        taking = asyncio.create_task(take_over(it))
        await it.until(lambda: len(under_way) > 0)
        assert under_way[0] > 0
        await it.until(lambda: it.ranges.size_bytes == 0)  # What was under way is not kept.
        objects.may_answer.set()
        assert await taking == contents


async def test_a_silent_broker_is_read_ahead_for_before_it_is_suspected(tmp_path: Path) -> None:
    """A host that is down refuses nothing."""
    objects = CountedStore()
    contents = await fill(tmp_path, objects)
    async with reading(tmp_path, objects) as (it, watching):
        times = watching.membership.times
        watching.now_ms += times.suspicion_ms - times.refusal_ms - 1
        watching.look(OTHER)
        assert LEADER not in watching.membership.doubted
        watching.now_ms += 1
        watching.look(OTHER)
        assert watching.membership.doubted == {LEADER}
        assert not watching.membership.suspected
        await until_read(it, objects, it.ranges)
        objects.forget()
        assert await take_over(it) == contents
        assert wal_reads(it, objects) == 0


async def test_what_another_broker_would_inherit_is_not_read(tmp_path: Path) -> None:
    objects = CountedStore()
    await fill(tmp_path, objects)
    async with reading(tmp_path, objects) as (it, watching):
        for number in range(PARTITIONS):
            await it.node.change_partition(number, isr=(LEADER, OTHER), replicas=(LEADER, OTHER))
        watching.refuse()
        for _ in range(50):
            await asyncio.sleep(0)
        assert not objects.reads

"""A replica of a diskless partition follows the leader's chain in the bucket."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core import turns
from tidelog_core.diskless.wal.build import ObjectName, WalSlice
from tidelog_core.diskless.wal.footer import SUFFIX_SIZE_BYTES
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import ObjectNotFound, StoreUnavailable
from tidelog_core.log.local_log import LocalLog
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, Partition, put
from tidelog_core.model import TopicPartition
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectMeta
from tidelog_core.replication.follower_state import Append
from tidelog_core.replication.leader.rules import ReplicationRules
from tidelog_core.tier.tiered_segments import TieredSegments
from tidelog_node.diskless.feed import chain_feed, chain_joins, followed_objects
from tidelog_node.diskless.feed.chain_feeds import ChainFeeds
from tidelog_node.diskless.recovery.log_refill import LogRefill
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.history import TierHistory
from tidelog_node.tier.lent_memory import PAGE_BYTES, LentMemory

from tests.node.diskless.chained_log import (
    CLUSTER,
    NAME,
    TOPIC_ID,
    ChainedLog,
    filled,
    new_chain,
    replica_over,
)
from tests.support.batches import batch
from tests.support.data_objects import build_data_object
from tests.support.log_building import content_of, open_log, start_unfilled
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context
from tests.support.store_lender import StoreLender
from tests.support.waiting import eventually_async

HERE, LEADER = 1, 2


class WatchedStore(MemoryObjectStore):
    """A store that counts requests for objects, and fails some."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: Counter[str] = Counter()
        self.read_bytes = 0
        self.lists = 0
        self.failures = 0
        self.gone: set[tuple[str, int]] = set()  # keys, and which of their requests find nothing
        self.unlisted: Counter[str] = Counter()  # how many further listings lack a key

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.gets[key] += 1
        if (key, self.gets[key]) in self.gone:
            raise ObjectNotFound(key)
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("slow down")
        data = await super().get_range(key, start, end)
        self.read_bytes += len(data)
        return data

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        self.lists += 1
        async for found in super().list(prefix, start_after=start_after):
            if self.unlisted[found.key]:
                self.unlisted[found.key] -= 1
            else:
                yield found


class NoTier:
    """No segment was tiered."""

    async def get(self, *_: object) -> object:
        raise AssertionError("there is no segment to read the index of")


class Zone:
    """A replica that follows a leader whose log is in chains."""

    def __init__(self, chained: ChainedLog, store: WatchedStore, replica: Replica) -> None:
        self.chained, self.store, self.replica = chained, store, replica
        self.report_count = 0
        self.reported = -1  # the high watermark that the leader was told last
        self.feeds: ChainFeeds

    @property
    def log(self) -> LocalLog:
        return self.replica.log

    def follow(self, leader_epoch: int, *, log_start_offset: int = 0) -> None:
        """Follow the leader of this epoch, as the partition's item says."""
        role = self.replica.role
        assert role is not None
        known = role.partition
        partition = Partition(
            topic_id=TOPIC_ID,
            partition=NAME.partition,
            replicas=(LEADER, HERE),
            leader=LEADER,
            leader_epoch=leader_epoch,
            isr=(LEADER,),
            log_start_offset=log_start_offset,
            wal=self.chained.chains,
            version=1 if known is None else known.version + 1,
        )
        role.on_partition(partition, self.log, leads=False, rules=ReplicationRules())

    def tell(self, high_watermark: int | None = None) -> None:
        """Take an answer of the leader with this high watermark, by default its log's end."""
        role = self.replica.role
        assert role is not None
        assert role.follower is not None
        if high_watermark is None:
            high_watermark = self.chained.log.high_watermark
        log_start_offset = role.follower.partition.log_start_offset
        self.feeds.note(self.replica, role.follower, Append(high_watermark, log_start_offset))

    async def until(self, end_offset: int | None = None) -> None:
        wanted = self.chained.log.log_end_offset if end_offset is None else end_offset
        await eventually_async(lambda: self.log.high_watermark == wanted)
        assert self.log.log_end_offset == wanted

    def assert_same(self) -> None:
        assert content_of(self.log) == content_of(self.chained.log)
        assert self.log.last_stable_offset == self.chained.log.last_stable_offset
        assert self.log.leader_epochs == self.chained.log.leader_epochs


def _note(zone: Zone, _: Replica) -> None:
    zone.report_count += 1
    zone.reported = zone.log.high_watermark


@contextlib.asynccontextmanager
async def zone_of(
    chained: ChainedLog, store: WatchedStore, folder: Path, memory: LentMemory | None = None
) -> AsyncIterator[Zone]:
    metadata = MemoryMetadataStore()
    await metadata.commit([put(Cluster(cluster_id=CLUSTER))])
    view = ClusterView(metadata)
    await view.refresh()
    node = node_context(metadata, view, broker_id=HERE)
    replica = replica_over(folder)
    replica.is_diskless = True
    zone = Zone(chained, store, replica)
    history = TierHistory(store=metadata, indexes=NoTier(), view=view)  # type: ignore[arg-type]
    zone.feeds = ChainFeeds(
        store=store,
        lender=StoreLender(store, memory),
        read=store.get_range,
        cluster_id=CLUSTER,
        refill=LogRefill(node, store.get_range),
        catch_up=CatchUp(node, history=history, timeout_s=1.0),
        on_moved=lambda replica: _note(zone, replica),
    )
    try:
        yield zone
    finally:
        await zone.feeds.close()
        if zone.replica.opened_log is not None:
            zone.log.close()


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_feed, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(chain_joins, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(chain_joins, "BROKEN_SECONDS", 0.02)


@pytest.fixture
async def zone(tmp_path: Path) -> AsyncIterator[Zone]:
    """A replica that has nothing yet, of a log with three epochs in three chains."""
    store = WatchedStore()
    chained = await filled(store, tmp_path / "leader")
    async with zone_of(chained, store, tmp_path / "here") as zone:
        zone.follow(5)
        yield zone
    chained.log.close()


async def test_a_new_replica_gets_all_chains_and_then_each_object_by_one_request(
    zone: Zone,
) -> None:
    zone.tell()
    await zone.until()
    zone.assert_same()
    joined_with, zone.store.gets = zone.store.lists, Counter()
    for count in range(1, 20):
        sequence = await zone.chained.append(batch(3), batch(1))
        zone.tell()
        await zone.until()
        key = wal_key(CLUSTER, zone.chained.chains[-1].chain, sequence)
        assert zone.store.gets[key] == 1
        assert zone.store.gets.total() == count
    zone.assert_same()
    assert zone.store.lists == joined_with
    assert zone.report_count >= 20


async def test_large_objects_are_read_by_one_request_after_the_first(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next object is about as large as the last one."""
    monkeypatch.setattr(followed_objects, "FIRST_READ_BYTES", 1_000)
    zone.tell()
    await zone.until()
    gets = []
    for value_size_bytes in (1_500, 1_500, 1_500, 10, 10, 1_500, 1_500):
        zone.store.gets.clear()
        await zone.chained.append(batch(1, value_size_bytes=value_size_bytes))
        zone.tell()
        await zone.until()
        gets.append(zone.store.gets.total())
    assert gets == [3, 1, 1, 1, 1, 3, 1]  # the first bytes, the footer and the whole
    zone.assert_same()


async def test_a_feed_that_is_far_behind_needs_no_more_memory_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_objects, "FIRST_READ_BYTES", PAGE_BYTES)
    store, memory = WatchedStore(), LentMemory(2 * PAGE_BYTES, is_shared=False)
    chained = await filled(store, tmp_path / "leader")
    async with zone_of(chained, store, tmp_path / "here", memory) as zone:
        zone.follow(5)
        zone.tell()
        await zone.until()
        for _ in range(30):
            await zone.chained.append(batch(2))
        zone.tell()
        await zone.until()
        zone.assert_same()
        # What was read ahead is given back a little later.
        whole = await memory.lend_in_turn(memory.size_bytes)
        whole.give_back()


async def test_others_have_their_turn_between_the_slices_of_an_object(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    zone.tell()
    await zone.until()
    chained, entry = zone.chained, zone.chained.chains[-1]
    first = chained.log.log_end_offset
    slices = []
    for start in range(first, first + 4):
        chained.log.append_as_leader(batch(1), leader_epoch=entry.leader_epoch)
        chained.log.advance_high_watermark(start + 1)
        slices.append(WalSlice(*NAME, entry.leader_epoch, bytes(chained.bytes_from(start))))
    at = chained.ends[entry.chain]
    name = ObjectName(CLUSTER, entry.chain, at, at, 0, 0)
    await zone.store.put(wal_key(CLUSTER, entry.chain, at), build_data_object(name, slices).data)
    chained.ends[entry.chain] = at + 1
    seen = set()
    zone.tell()
    async with asyncio.timeout(10):
        while zone.log.high_watermark < first + 4:
            seen.add(zone.log.log_end_offset)
            await asyncio.sleep(0)
    assert seen >= set(range(first, first + 4))
    zone.assert_same()


async def test_of_objects_that_are_mostly_for_others_only_the_own_part_is_read(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_objects, "FIRST_READ_BYTES", 2_000)
    zone.tell()
    await zone.until()
    chained = zone.chained
    entry = chained.chains[-1]
    for _ in range(3):
        zone.store.read_bytes = 0
        start = chained.log.log_end_offset
        chained.log.append_as_leader(batch(1), leader_epoch=entry.leader_epoch)
        chained.log.advance_high_watermark(start + 1)
        own = WalSlice(*NAME, entry.leader_epoch, bytes(chained.bytes_from(start)))
        other = WalSlice(TOPIC_ID, 99, 1, bytes(batch(1, value_size_bytes=300_000)))
        at = chained.ends[entry.chain]
        name = ObjectName(CLUSTER, entry.chain, at, at, 0, 0)
        await zone.store.put(
            wal_key(CLUSTER, entry.chain, at), build_data_object(name, [other, own]).data
        )
        chained.ends[entry.chain] = at + 1
        zone.tell()
        await zone.until()
        # The first bytes, the footer's request and the own slice.
        assert zone.store.read_bytes < 2_000 + SUFFIX_SIZE_BYTES + 1_000
    zone.assert_same()


async def test_references_are_followed_with_one_request_for_a_gateways_object(zone: Zone) -> None:
    zone.tell()
    await zone.until()
    gateway = new_chain(9)
    for count in range(1, 10):
        zone.store.gets.clear()
        sequence = await zone.chained.append_by_gateway(gateway, *[batch(2) for _ in range(count)])
        zone.tell()
        await zone.until()
        assert zone.store.gets[wal_key(CLUSTER, gateway, sequence)] == 1
        assert zone.store.gets.total() == 2
    await zone.chained.append(batch(1))
    zone.tell()
    await zone.until()
    zone.assert_same()


async def test_references_to_many_bytes_are_not_read_at_once(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One object may refer to more than memory has room for."""
    monkeypatch.setattr(followed_objects, "REFERENCED_BYTES_MAX", 2 * len(batch(2)))
    zone.tell()
    await zone.until()
    zone.store.gets.clear()
    gateway = new_chain(9)
    sequence = await zone.chained.append_by_gateway(gateway, *[batch(2) for _ in range(5)])
    zone.tell()
    await zone.until()
    assert zone.store.gets[wal_key(CLUSTER, gateway, sequence)] == 3
    zone.assert_same()


async def test_a_replica_joins_by_references_whatever_the_gateways_sequences(zone: Zone) -> None:
    """A gateway's chain may be far ahead of its leader's, or far behind."""
    chained = zone.chained
    for gateway, first in ((new_chain(8), 0), (new_chain(9), 1_000)):
        chained.ends[gateway] = first
        await chained.append_by_gateway(gateway, batch(1), batch(2))
        await chained.append(batch(1))
    committed = chained.log.log_end_offset
    await chained.append_by_gateway(gateway, batch(1))
    zone.tell(committed)
    await zone.until(committed)
    zone.tell()
    await zone.until()
    zone.assert_same()


async def test_a_damaged_slice_of_a_gateway_is_not_appended(zone: Zone) -> None:
    zone.tell()
    await zone.until()
    committed = zone.log.log_end_offset
    gateway = new_chain(9)
    sequence = await zone.chained.append_by_gateway(gateway, batch(2))
    key = wal_key(CLUSTER, gateway, sequence)
    data = bytearray(await zone.store.get(key))
    data[150] ^= 1
    await zone.store.replace(key, bytes(data))
    zone.tell()
    await eventually_async(lambda: zone.store.gets[key] >= 2)
    assert zone.log.log_end_offset == committed
    data[150] ^= 1
    await zone.store.replace(key, bytes(data))
    await zone.until()
    zone.assert_same()


async def test_what_the_leader_has_not_committed_is_not_taken(zone: Zone) -> None:
    zone.tell()
    await zone.until()
    committed = zone.chained.log.log_end_offset
    await zone.chained.append(batch(3))
    zone.tell(committed)
    await asyncio.sleep(0.05)
    assert zone.log.log_end_offset == zone.log.high_watermark == committed
    zone.tell()
    await zone.until()


async def test_a_replica_that_lacks_records_before_its_start_begins_where_the_tier_ends(
    zone: Zone,
) -> None:
    """This node led it, and was to fill its log: it ends where the leader's does, and is behind."""
    leader = zone.chained.log
    producers = leader.producers.at(leader.log_end_offset)
    start_unfilled(
        zone.log,
        leader.log_end_offset,
        leader_epochs=leader.leader_epochs,
        producers=producers,
    )
    assert zone.log.high_watermark == leader.high_watermark
    zone.tell()
    await eventually_async(lambda: zone.log.unfilled is None)
    await zone.until()
    zone.assert_same()


async def test_a_new_epoch_goes_on_in_the_chain_of_its_leader(zone: Zone) -> None:
    zone.tell()
    await zone.until()
    zone.chained.begin(6, new_chain(LEADER))
    await zone.chained.append(batch(2))
    zone.tell()  # Still of the epoch before: the bucket has no more of it.
    zone.follow(6)
    zone.tell()
    await zone.until()
    zone.assert_same()


async def test_an_item_older_than_the_answer_is_waited_for(zone: Zone) -> None:
    zone.chained.chains = zone.chained.chains[:-1]
    zone.follow(7)
    zone.tell()
    await asyncio.sleep(0.05)
    assert zone.log.log_end_offset == 0


async def test_a_store_that_fails_delays_and_loses_nothing(zone: Zone) -> None:
    zone.store.failures = 3
    zone.tell()
    await zone.until()
    await zone.chained.append(batch(2))
    zone.store.failures = 2
    zone.tell()
    await zone.until()
    zone.assert_same()


async def test_a_slice_with_other_bytes_is_not_appended(zone: Zone) -> None:
    zone.tell()
    await zone.until()
    end = zone.log.log_end_offset
    sequence = await zone.chained.append(batch(2))
    key = wal_key(CLUSTER, zone.chained.chains[-1].chain, sequence)
    whole = await zone.store.get(key)
    broken = bytearray(whole)
    broken[130] ^= 1
    await zone.store.delete([key])
    await zone.store.put(key, bytes(broken))
    zone.tell()
    await eventually_async(lambda: zone.store.gets[key] > 3)
    assert zone.log.log_end_offset == end
    await zone.store.delete([key])
    await zone.store.put(key, whole)
    await zone.until()
    zone.assert_same()


@pytest.mark.parametrize(("gone", "error_count"), [((2,), 0), ((2, 4), 1), ((2, 4, 6), 2)])
async def test_a_replica_joins_again_if_what_it_reads_is_collected_meanwhile(
    zone: Zone, caplog: pytest.LogCaptureFixture, gone: tuple[int, ...], error_count: int
) -> None:
    """The tier has it by then. If it is missing again nobody has it: that needs a person."""
    key = wal_key(CLUSTER, zone.chained.chains[1].chain, 1)
    zone.store.gone = {(key, number) for number in gone}  # each join reads the footer first
    zone.tell()
    await zone.until()
    zone.assert_same()
    assert zone.store.gets[key] == 2 + 2 * len(gone)
    errors = [one for one in caplog.records if one.levelname == "ERROR"]
    assert len(errors) == error_count


@pytest.mark.parametrize(("listings", "error_count"), [(1, 0), (2, 1), (3, 2)])
async def test_a_replica_joins_again_if_objects_are_collected_before_the_chain_is_listed(
    zone: Zone, caplog: pytest.LogCaptureFixture, listings: int, error_count: int
) -> None:
    """The tier was read before that. Offsets that are missing again need a person."""
    zone.store.unlisted[wal_key(CLUSTER, zone.chained.chains[1].chain, 1)] = listings
    zone.tell()
    await zone.until()
    zone.assert_same()
    errors = [one for one in caplog.records if one.levelname == "ERROR"]
    assert len(errors) == error_count


async def test_nothing_is_said_of_a_replica_whose_topic_is_deleted_while_it_joins(
    zone: Zone, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, segments, dropped = zone.log, TierHistory.segments, asyncio.Event()

    async def drop(history: TierHistory, topic_id: UUID, partition: int) -> TieredSegments:
        zone.replica.drop()
        zone.replica.let_go()
        dropped.set()
        return await segments(history, topic_id, partition)

    monkeypatch.setattr(TierHistory, "segments", drop)
    zone.tell()
    await dropped.wait()
    await asyncio.sleep(0.1)  # longer than a pause after a failure
    assert [one for one in caplog.records if one.levelname in ("WARNING", "ERROR")] == []
    log.close()


async def test_a_damaged_slice_holds_up_its_own_replica_only(zone: Zone, tmp_path: Path) -> None:
    """Another replica that follows by the same chain gets what comes behind."""
    zone.tell()
    await zone.until()
    sequence = await zone.chained.append(batch(2))
    key = wal_key(CLUSTER, zone.chained.chains[-1].chain, sequence)
    whole = await zone.store.get(key)
    await zone.store.delete([key])
    await zone.store.put(key, whole[:130] + bytes([whole[130] ^ 1]) + whole[131:])
    zone.tell()
    await eventually_async(lambda: zone.store.gets[key] > 1)
    number, chain = NAME.partition + 1, zone.chained.chains[-1].chain
    other = replica_over(tmp_path / "other")
    other.partition, other.is_diskless = TopicPartition("topic", number), True
    role = other.role
    assert role is not None
    partition = Partition(
        topic_id=TOPIC_ID,
        partition=number,
        replicas=(LEADER, HERE),
        leader=LEADER,
        leader_epoch=9,
        isr=(LEADER,),
        wal=(EpochChain(9, chain, 0),),
        version=1,
    )
    role.on_partition(partition, other.log, leads=False, rules=ReplicationRules())
    assert role.follower is not None
    source = open_log(tmp_path / "source")
    for end_offset in (1, 2, 3):
        one = batch(1)
        source.append_as_leader(one, leader_epoch=9)
        place = ObjectName(CLUSTER, chain, sequence + end_offset, sequence, 0, 0)
        data = build_data_object(place, [WalSlice(TOPIC_ID, number, 9, bytes(one))]).data
        await zone.store.put(wal_key(CLUSTER, chain, sequence + end_offset), data)
        zone.feeds.note(other, role.follower, Append(end_offset, 0))
        await until_committed(other, end_offset)
    assert zone.log.high_watermark < zone.chained.log.high_watermark
    source.close()
    other.log.close()


async def until_committed(replica: Replica, end_offset: int) -> None:
    await eventually_async(lambda: replica.log.high_watermark == end_offset)


async def test_a_replica_that_begins_to_lead_gets_nothing_more(zone: Zone) -> None:
    zone.tell()
    await zone.until()
    end = zone.log.log_end_offset
    await zone.chained.append(batch(2))
    zone.tell()
    role = zone.replica.role
    assert role is not None
    role.end()  # as before a lead that is to be confirmed
    await asyncio.sleep(0.05)
    assert zone.log.log_end_offset == end


@pytest.mark.parametrize("is_idle", [False, True], ids=["busy", "idle"])
@pytest.mark.parametrize("count", [1, 3, 9])
async def test_what_was_never_committed_while_this_node_led_is_cut(
    zone: Zone, count: int, is_idle: bool
) -> None:
    """Its PUT was lost, and the next leader has put other records in its place."""
    zone.tell()
    await zone.until()
    committed = zone.log.high_watermark
    zone.log.append_as_leader(batch(count), leader_epoch=6)
    zone.chained.begin(7, new_chain(LEADER))
    zone.follow(7)
    if is_idle:
        zone.tell()
        await eventually_async(lambda: zone.log.log_end_offset == committed)
    await zone.chained.append(batch(2), batch(1))
    zone.tell()
    await zone.until()
    zone.assert_same()


async def test_a_replica_that_has_started_again_compares_its_log_with_the_chains(
    tmp_path: Path,
) -> None:
    store = WatchedStore()
    chained = await filled(store, tmp_path / "leader")
    async with zone_of(chained, store, tmp_path / "here") as zone:
        zone.follow(5)
        zone.tell()
        await zone.until()
    store.gets.clear()
    async with zone_of(chained, store, tmp_path / "here") as zone:
        assert zone.log.high_watermark == 0
        zone.follow(5)
        zone.tell()
        await zone.until()
        zone.assert_same()
        assert set(store.gets.values()) == {1}  # footers, and no slice
    chained.log.close()


async def test_a_replica_far_behind_reads_objects_many_at_a_time(tmp_path: Path) -> None:
    store = WatchedStore()
    chained = ChainedLog(open_log(tmp_path / "leader", segment_bytes=50_000), store)
    chained.begin(3, new_chain(LEADER))
    await chained.append(batch(1))
    async with zone_of(chained, store, tmp_path / "here") as zone:
        zone.follow(3)
        zone.tell()
        await zone.until()
        listed, store.gets = store.lists, Counter()
        sequences = [await chained.append(batch(2)) for _ in range(100)]
        zone.tell()
        await zone.until()
        zone.assert_same()
        assert store.lists == listed
        chain = chained.chains[-1].chain
        assert {store.gets[wal_key(CLUSTER, chain, one)] for one in sequences} == {1}
    chained.log.close()


def last_sequences(log: LocalLog) -> dict[int, tuple[int, int]]:
    """Return each producer's last sequence, and where it is."""
    return {
        producer_id: (entry.last_sequence, entry.batches[-1].last_offset)
        for producer_id, entry in log.producers.state.items()
        if entry.batches
    }


def assert_same_end(zone: Zone) -> None:
    """Segments that were deleted are gone."""
    here, there = zone.log, zone.chained.log
    assert content_of(there).endswith(content_of(here))
    assert here.last_stable_offset == max(there.last_stable_offset, here.log_start_offset)
    assert here.leader_epoch == there.leader_epoch


@pytest.mark.parametrize("left", [0, 1, 4], ids=["all deleted", "one left", "within a batch"])
async def test_a_replica_that_joins_after_a_purge_knows_who_has_written(
    zone: Zone, left: int
) -> None:
    """It may lead next, and a producer may send a deleted batch again."""
    start = zone.chained.log.log_end_offset - left
    zone.follow(5, log_start_offset=start)
    zone.tell()
    await zone.until()
    wanted = last_sequences(zone.chained.log)
    assert set(wanted) >= {7, 70}
    # If all was deleted the log ends where the leader's does before it has begun again.
    await eventually_async(lambda: last_sequences(zone.log) == wanted)
    await zone.until()
    assert zone.log.log_start_offset == start
    assert_same_end(zone)
    await zone.chained.append(batch(2))
    zone.tell()
    await zone.until()
    assert_same_end(zone)


async def test_a_replica_that_joins_after_a_purge_knows_who_has_written_by_gateways(
    zone: Zone,
) -> None:
    one = batch(2, producer_id=90, producer_epoch=0, base_sequence=0)
    await zone.chained.append_by_gateway(new_chain(9), one)
    zone.follow(5, log_start_offset=zone.chained.log.log_end_offset)
    zone.tell()
    wanted = (1, zone.chained.log.log_end_offset - 1)
    await eventually_async(lambda: last_sequences(zone.log).get(90) == wanted)
    await zone.until()
    assert_same_end(zone)


async def test_a_replica_reports_each_object_once(zone: Zone) -> None:
    """Each report makes the node look whether to send a fetch beside the one that is held."""
    zone.tell()
    await zone.until()
    before = zone.report_count
    for count in range(1, 6):
        await zone.chained.append(batch(2))
        zone.tell()
        await zone.until()
        for _ in range(5):
            await asyncio.sleep(0)  # The feed looks what else there is to do.
        assert zone.report_count == before + count


@pytest.mark.parametrize("is_store_away", [False, True], ids=["at once", "before the footers"])
async def test_a_replica_restarted_at_its_leaders_end_reports_that(
    zone: Zone, monkeypatch: pytest.MonkeyPatch, is_store_away: bool
) -> None:
    """No slice follows, so nothing else would: it would be out of the ISR until the next record."""
    end_offset = zone.chained.log.log_end_offset
    await zone.store.delete([found.key async for found in zone.store.list("")])
    if is_store_away:
        monkeypatch.setattr(zone.store, "list", _list_nothing)
    zone.follow(5, log_start_offset=end_offset)
    zone.tell()
    await zone.until(end_offset)
    await eventually_async(lambda: zone.reported == end_offset)


async def test_a_replica_reports_what_a_fill_from_before_has_moved(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fill ends while the store keeps the replica from joining: nothing is left to join for."""
    leader = zone.chained.log
    start_unfilled(
        zone.log,
        leader.log_end_offset,
        leader_epochs=leader.leader_epochs,
        producers=leader.producers.at(leader.log_end_offset),
    )
    monkeypatch.setattr(zone.store, "list", _list_nothing)
    zone.tell()
    zone.log.forget_unfilled()
    await eventually_async(lambda: zone.reported == leader.log_end_offset)


def _list_nothing(*_: object, **__: object) -> AsyncIterator[object]:
    raise StoreUnavailable("away")


@pytest.mark.parametrize("position", [150, -1], ids=["slice", "footer"])
async def test_damaged_deleted_records_do_not_keep_a_replica_from_following(
    zone: Zone, position: int
) -> None:
    chain = zone.chained.chains[0].chain
    key = wal_key(CLUSTER, chain, 0)
    data = bytearray(await zone.store.get(key))
    data[position] ^= 1
    await zone.store.replace(key, bytes(data))
    start = zone.chained.log.log_end_offset - 1
    zone.follow(5, log_start_offset=start)
    zone.tell()
    await zone.until()
    assert zone.log.log_start_offset == zone.log.local_log_start_offset == start
    await zone.chained.append(batch(2))
    zone.tell()
    await zone.until()

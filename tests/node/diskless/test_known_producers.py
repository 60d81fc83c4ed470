"""An heir that leads first reads the footers above the offset where an index has producers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from tidelog_core.diskless.chain.index import build_index, rows_of
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import Snapshot
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.keys import checkpoint_key, wal_key
from tidelog_core.log.producers.producer_snapshot import encode_snapshot
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.model import NO_LEADER_EPOCH
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.records.header import iter_headers
from tidelog_node.diskless.recovery import deferred_fills
from tidelog_node.diskless.recovery.chain_slices import (
    ReadChains,
    WantedSlices,
    find_slices,
    list_chains,
    log_of,
)
from tidelog_node.diskless.recovery.deferred_fills import DeferredFills, Fill
from tidelog_node.diskless.recovery.log_refill import LogRefill
from tidelog_node.diskless.recovery.log_tail import LogTail
from tidelog_node.diskless.recovery.tail_fills import TailFills
from tidelog_node.tier.history import TierHistory

from tests.node.diskless.chained_log import CLUSTER, TOPIC_ID, new_chain
from tests.node.diskless.shared_chain import SharedChain
from tests.node.diskless.takeover_node import NoIndexes
from tests.node.diskless.test_log_refill import assert_same
from tests.support.log_building import content_of
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context
from tests.support.waiting import eventually_async

PARTITIONS, OBJECTS = 3, 8
Offsets = Mapping[PartitionName, int]


class IndexedChains:
    """Chains whose objects are in indexes, and an heir's logs."""

    def __init__(self, shared: SharedChain, heir: Path) -> None:
        self.shared = shared
        self.replicas = shared.heir(heir)
        self.executor = ThreadPoolExecutor(2)
        self.footers_read: list[str] = []
        self.found: ReadChains
        self.tails: dict[PartitionName, LogTail]

    async def index(self, producers: Mapping[PartitionName, Snapshot]) -> None:
        """Write an index of each chain with all of its objects; the last one has producers."""
        chains, last = ChainStore(self.shared.store, CLUSTER), self.shared.chains[-1].chain
        for chain in {entry.chain for entry in self.shared.chains}:
            rows = []
            for one in await chains.list(chain):
                key = wal_key(CLUSTER, chain, one.sequence)
                footer = parse_object(await self.shared.store.get(key), key=key)
                rows.append((one.sequence, rows_of(footer)))
            snapshots = list(producers.values()) if chain == last else []
            built = build_index(chain, CLUSTER, rows, created_ms=0, snapshots=snapshots)
            key = checkpoint_key(CLUSTER, chain, built.header.sequence)
            await self.shared.store.put(key, built.data)

    async def begin(self) -> dict[PartitionName, Fill]:
        """Have the heir's logs begin at their ends; note which footers are read for it."""

        async def read(key: str, start: int, end: int) -> bytes:
            self.footers_read.append(key)
            return await self.shared.store.get_range(key, start, end)

        wanted = {name: WantedSlices(self.shared.chains, 0) for name in self.shared.names}
        chains = ChainStore(self.shared.store, CLUSTER, read=read)
        listings = await list_chains(chains, sorted({one.chain for one in self.shared.chains}))
        self.found = await find_slices(chains, wanted, {}, listings)
        self.tails = {
            name: LogTail(replica, *log_of(name, wanted[name], some, cluster_id=CLUSTER))
            for name, replica in self.replicas.items()
            for some in (self.found.slices[name],)
        }
        self.footers_read.clear()
        deferred = DeferredFills(chains, self.executor)
        return await deferred.begin(self.replicas, self.tails, listings, self.found)

    def snapshots(self, offsets: Offsets) -> dict[PartitionName, Snapshot]:
        """Return the producers that the leader's logs had at these offsets."""
        found = {}
        for name, offset in offsets.items():
            state = self.shared.logs[name.partition].producers.at(offset)
            epoch = self.shared.chains[-1].leader_epoch
            found[name] = Snapshot(*name, offset, encode_snapshot(state), epoch)
        return found

    def keys_above(self, offsets: Offsets) -> set[str]:
        """Return the objects with slices above the offsets."""
        return {
            wal_key(CLUSTER, one.chain, one.sequence)
            for name, tail in self.tails.items()
            for one in tail.slices
            if one.end_offset > offsets.get(name, 0)
        }

    def assert_ends_are_the_leaders(self) -> None:
        for name, replica in self.replicas.items():
            log, leader = replica.log, self.shared.logs[name.partition]
            assert log.log_end_offset == log.high_watermark == leader.log_end_offset
            assert log.leader_epochs == leader.leader_epochs
            assert log.last_stable_offset == leader.last_stable_offset
            known, state = log.producers.state, leader.producers.state
            assert encode_snapshot(known) == encode_snapshot(state)


@pytest.fixture
async def it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[IndexedChains]:
    monkeypatch.setattr(deferred_fills, "DEFERRED_BYTES_MIN", 1)
    shared = SharedChain(tmp_path / "leader", MemoryObjectStore(), PARTITIONS)
    await shared.fill(objects=OBJECTS, seed=3)
    it = IndexedChains(shared, tmp_path / "heir")
    yield it
    it.executor.shutdown()
    for replica in it.replicas.values():
        replica.log.close()
    shared.close()


def ends_of_batches(it: IndexedChains, number: int) -> list[int]:
    content = content_of(it.shared.logs[number])
    return [header.next_offset for _, header in iter_headers(content)]


@pytest.mark.parametrize("seed", range(12))
async def test_only_footers_above_the_known_producers_are_read(
    it: IndexedChains, seed: int
) -> None:
    """They may be known within a slice, within a transaction, or at the end."""
    chance = Random(seed)
    offsets = {name: chance.choice(ends_of_batches(it, name.partition)) for name in it.shared.names}
    await it.index(it.snapshots(offsets))
    fills = await it.begin()
    assert fills.keys() == it.replicas.keys()
    assert sorted(it.footers_read) == sorted(it.keys_above(offsets))
    it.assert_ends_are_the_leaders()
    await fill(it, fills)
    for name, replica in it.replicas.items():
        assert_same(replica.log, it.shared.logs[name.partition])


async def test_at_the_end_of_a_tail_no_footer_is_read(it: IndexedChains) -> None:
    ends = {name: it.shared.logs[name.partition].log_end_offset for name in it.shared.names}
    await it.index(it.snapshots(ends))
    assert (await it.begin()).keys() == it.replicas.keys()
    assert it.footers_read == []
    it.assert_ends_are_the_leaders()


async def test_the_footers_that_no_index_has_are_read_once(it: IndexedChains) -> None:
    assert (await it.begin()).keys() == it.replicas.keys()
    assert it.footers_read == []
    assert len(it.found.footers) == it.shared.object_count
    it.assert_ends_are_the_leaders()


@pytest.mark.parametrize(
    "kind", ["damaged", "of another offset", "beyond the end", "of another epoch", "of no epoch"]
)
async def test_producers_that_cannot_be_right_cost_footers(it: IndexedChains, kind: str) -> None:
    name = it.shared.names[1]
    end = it.shared.logs[1].log_end_offset
    good = it.snapshots({name: end})[name]
    bad = {
        "damaged": good._replace(data=good.data[:-1] + b"?"),
        "of another offset": good._replace(end_offset=end - 1),
        "beyond the end": good._replace(end_offset=end + 1),
        "of another epoch": good._replace(leader_epoch=good.leader_epoch - 1),
        "of no epoch": good._replace(leader_epoch=NO_LEADER_EPOCH),  # by an earlier program
    }[kind]
    others = {one: it.shared.logs[one.partition].log_end_offset for one in it.shared.names}
    del others[name]
    await it.index({**it.snapshots(others), name: bad})
    assert (await it.begin()).keys() == it.replicas.keys()
    assert sorted(it.footers_read) == sorted(it.keys_above(others))
    it.assert_ends_are_the_leaders()


async def test_an_object_that_is_gone_leaves_the_log_as_it_is(it: IndexedChains) -> None:
    """Its records would be missing for ever, however much is known of their producers."""
    ends = {name: it.shared.logs[name.partition].log_end_offset for name in it.shared.names}
    await it.index(it.snapshots(ends))
    first = it.shared.chains[0].chain
    await it.shared.store.delete([wal_key(CLUSTER, first, 3)])
    fills = await it.begin()
    lacking = {
        name
        for name, tail in it.tails.items()
        if any((one.chain, one.sequence) == (first, 3) for one in tail.slices)
    }
    assert lacking
    assert fills.keys() == it.replicas.keys() - lacking


async def test_of_several_indexes_the_last_producers_count(it: IndexedChains) -> None:
    name, other = it.shared.names[0], PartitionName(TOPIC_ID, 77)
    ends, chain = ends_of_batches(it, 0), it.shared.chains[-1].chain
    chains = ChainStore(it.shared.store, CLUSTER)
    rows = []
    for one in await chains.list(chain):
        data = await it.shared.store.get(wal_key(CLUSTER, chain, one.sequence))
        rows.append((one.sequence, rows_of(parse_object(data, key=""))))
    for some, offset in ((rows[:3], ends[9]), (rows[3:], ends[4])):
        snapshots = [it.snapshots({name: offset})[name]]
        built = build_index(chain, CLUSTER, some, created_ms=0, snapshots=snapshots)
        key = checkpoint_key(CLUSTER, chain, built.header.sequence)
        await it.shared.store.put(key, built.data)
    await it.begin()
    assert it.found.producers[name].end_offset == ends[9]
    # A chain that its item does not name says nothing of the partition.
    unrelated = it.shared.chains[0]._replace(chain=new_chain())
    wanted = {
        name: WantedSlices((unrelated,), 0),
        other: WantedSlices(it.shared.chains, 0),
    }
    assert not (await find_slices(chains, wanted, {})).producers


async def fill(it: IndexedChains, fills: dict[PartitionName, Fill]) -> None:
    metadata = MemoryMetadataStore()
    await metadata.commit([put(Cluster(cluster_id=CLUSTER))])
    view = ClusterView(metadata)
    await view.refresh()
    context = node_context(metadata, view)
    history = TierHistory(
        store=metadata,
        indexes=NoIndexes(),  # type: ignore[arg-type]
        view=view,
    )
    filling = TailFills(LogRefill(context, it.shared.store.get_range), history)
    filling.add(fills)

    def is_filled() -> bool:
        return all(replica.log.unfilled is None for replica in it.replicas.values())

    await eventually_async(is_filled, seconds=60)
    await filling.close()

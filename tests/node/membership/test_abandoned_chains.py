"""The chain of a gateway whose broker never comes back is sealed by another node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.diskless.bucket.chain_brokers import brokers_with_chains
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.takeover.chain_seal import find_seal
from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.diskless.wal.slice_bytes import foreign_batches
from tidelog_core.errors import TierUnavailable
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.metadata.records import delete
from tidelog_core.metadata.store import Write
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectMeta
from tidelog_node.diskless.chain import abandoned_chains
from tidelog_node.diskless.chain.abandoned_chains import AbandonedChains, abandoned_after_ms
from tidelog_node.diskless.chain.former_chains import seal_former_chains
from tidelog_node.diskless.gateway.spool import remove_spool

from tests.node.membership.virtual_cluster import Member, VirtualCluster, virtual_cluster
from tests.support.batches import batch
from tests.support.chain_owner import ChainOwner
from tests.support.node_context import node_context
from tests.support.virtual_time import run
from tests.support.wal_objects import CLUSTER, TOPIC_ID

AFTER_S = 30.0
CONFIG = NodeConfig(broker_unregister_after_ms=2_000 * int(AFTER_S))


def chain_of(broker_id: int) -> ChainName:
    return ChainName(broker_id, uuid5(NAMESPACE_OID, f"chain {broker_id}"))


class Bucket:
    """A chain of a gateway's slices for each broker, and what seals them."""

    def __init__(self) -> None:
        self.store = MemoryObjectStore()
        self.named: set[ChainName] = set()
        self.is_away = self.is_broken = False
        self.asked: list[tuple[int, int]] = []
        self.found_by: list[int] = []  # the brokers that have looked whose chains there are

    async def fill(self, *broker_ids: int) -> None:
        foreign = WalSlice(TOPIC_ID, 0, -1, bytes(foreign_batches(batch(1))), is_foreign=True)
        for broker_id in broker_ids or (1, 2, 3):
            await ChainOwner(self.store, CLUSTER, chain_of(broker_id)).commit([foreign])

    def watch(self, member: Member) -> AbandonedChains:
        async def seal(broker_id: int) -> bool:
            self.asked.append((member.broker_id, broker_id))
            if self.is_away:
                return False
            if self.is_broken:
                raise ValueError("something that nobody has thought of")
            return await seal_former_chains(
                self.store,
                CLUSTER,
                broker_id,
                chain_of(member.broker_id),
                begun=(chain_of(member.broker_id),),
                named=self.named,
                clock_ms=lambda: 0,
            )

        async def find() -> set[int]:
            self.found_by.append(member.broker_id)
            if self.is_away:
                raise TierUnavailable("the bucket is away")
            return await brokers_with_chains(self.store, CLUSTER)

        node = node_context(member.link, member.view, broker_id=member.broker_id)
        return AbandonedChains(
            node,
            membership=member.membership,
            seal=seal,
            find=find,
            after_ms=abandoned_after_ms(member.config),
        )

    @property
    def asked_for_others(self) -> list[tuple[int, int]]:
        return [(by, broker_id) for by, broker_id in self.asked if by != broker_id]

    async def sealed(self, *broker_ids: int) -> set[int]:
        chains = ChainStore(self.store, CLUSTER)
        return {
            b for b in broker_ids or (1, 2, 3) if await find_seal(chains, chain_of(b)) is not None
        }


def test_the_first_live_node_seals_what_a_broker_has_left_that_is_long_gone(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        bucket = Bucket()
        await bucket.fill()
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            tasks = await begin(cluster, bucket)
            await cluster[3].kill()
            await asyncio.sleep(AFTER_S - 10)
            assert bucket.asked_for_others == []
            bucket.is_away = True
            await asyncio.sleep(AFTER_S)
            assert {seen_by for seen_by, _ in bucket.asked_for_others} == {1}
            bucket.is_away, bucket.is_broken = False, True
            await asyncio.sleep(AFTER_S)
            bucket.is_broken = False
            await asyncio.sleep(AFTER_S)
            assert await bucket.sealed() == {3}
            count = len(bucket.asked)
            await asyncio.sleep(2 * AFTER_S)
            assert len(bucket.asked) == count, "once is enough"
            await end(tasks)

    run(main())


def test_a_broker_that_comes_back_in_time_keeps_its_chain(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = Bucket()
        await bucket.fill()
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            tasks = await begin(cluster, bucket)
            await cluster[3].kill()
            await asyncio.sleep(AFTER_S / 2)
            await cluster[3].start()
            await asyncio.sleep(2 * AFTER_S)
            assert bucket.asked_for_others == []
            await end(tasks)

    run(main())


def test_the_chain_of_a_leader_is_left_to_its_heir(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = Bucket()
        await bucket.fill()
        bucket.named.add(chain_of(3))
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            tasks = await begin(cluster, bucket)
            await cluster[3].kill()
            await asyncio.sleep(2 * AFTER_S)
            assert set(bucket.asked_for_others) == {(1, 3)}
            assert await bucket.sealed() == set()
            bucket.named.clear()  # The topic was deleted before an heir had sealed it.
            await asyncio.sleep(4 * AFTER_S)
            assert await bucket.sealed() == {3}
            await end(tasks)

    run(main())


def test_the_chain_of_a_broker_that_was_unregistered_is_sealed(tmp_path: Path) -> None:
    """An administrator has removed what was killed: nobody would know its id."""

    async def main() -> None:
        bucket = Bucket()
        await bucket.fill()
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            tasks = await begin(cluster, bucket)
            await asyncio.sleep(AFTER_S / 2)
            await cluster[3].kill()
            await cluster.store.commit([delete(cluster[1].view.image.brokers[3])])
            await asyncio.sleep(3 * AFTER_S)
            assert await bucket.sealed() == {3}
            await end(tasks)

    run(main())


def test_the_chain_of_a_broker_that_was_unregistered_while_no_process_ran_is_sealed(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        bucket = Bucket()
        await bucket.fill()
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            for member in cluster:
                await member.kill()
            (gone,) = [b for b in await cluster.store.list("broker") if b.id.key.endswith("3")]
            await cluster.store.commit([Write(gone.id, None, gone.version)])
            await cluster[1].start(was_clean=False)
            await cluster[2].start(was_clean=False)
            tasks = await begin(cluster, bucket)
            await asyncio.sleep(3 * AFTER_S)
            assert 3 not in cluster[1].view.image.brokers
            assert await bucket.sealed(3) == {3}
            await end(tasks)

    run(main())


def test_the_chain_of_a_broker_that_no_process_has_known_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken out of the cluster, and the metadata store was set back to before it came."""
    monkeypatch.setattr(abandoned_chains, "FIND_MS", 20_000)
    monkeypatch.setattr(abandoned_chains, "RETRY_MS_MAX", 10_000)

    async def main() -> None:
        bucket = Bucket()
        await bucket.fill(3, 41, 42)
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            tasks = await begin(cluster, bucket)
            bucket.is_away = True
            await asyncio.sleep(AFTER_S - 1)
            assert bucket.found_by == []
            await asyncio.sleep(AFTER_S / 2)
            assert set(bucket.found_by) == {1}
            bucket.is_away = False
            await asyncio.sleep(2 * AFTER_S)
            # Broker 3 lives, and its chain is its own affair.
            assert await bucket.sealed(3, 41, 42) == {41, 42}
            count, asked = len(bucket.found_by), bucket.asked_for_others
            assert sorted(set(asked)) == [(1, 41), (1, 42)]
            await asyncio.sleep(60)
            assert count + 2 <= len(bucket.found_by) <= count + 3
            assert bucket.asked_for_others == asked, "once is enough"
            await end(tasks)

    run(main())


class CountedListings(MemoryObjectStore):
    listing_count = 0

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        self.listing_count += 1
        async for found in super().list(prefix, start_after=start_after):
            yield found


async def test_brokers_with_chains_are_found_by_a_listing_for_each() -> None:
    store = CountedListings()
    assert await brokers_with_chains(store, CLUSTER) == set()
    foreign = WalSlice(TOPIC_ID, 0, -1, bytes(foreign_batches(batch(1))), is_foreign=True)
    for broker_id in (0, 7, 4_711):
        for number in range(2):
            chain = ChainName(broker_id, uuid5(NAMESPACE_OID, f"chain {broker_id} {number}"))
            owner = ChainOwner(store, CLUSTER, chain)
            for _ in range(3):
                await owner.commit([foreign])
    await store.put(f"{CLUSTER}/wal/notes-of-mine.txt", b"?")
    await store.put(f"{CLUSTER}/wal/0000000007/{uuid5(NAMESPACE_OID, '')}/x", b"?")
    await store.put(f"{CLUSTER}/x", b"?")
    store.listing_count = 0
    assert await brokers_with_chains(store, CLUSTER) == {0, 7, 4_711}
    assert store.listing_count <= 3 + 2 + 1


def test_what_a_brokers_former_processes_have_left_is_sealed_some_time_after_its_start(
    tmp_path: Path,
) -> None:
    """It may never have a chain itself: the last diskless topic was deleted."""

    async def main() -> None:
        bucket = Bucket()
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            tasks = await begin(cluster, bucket)
            bucket.is_away = True
            await asyncio.sleep(AFTER_S - 1)
            assert bucket.asked == []
            await asyncio.sleep(AFTER_S)
            assert set(bucket.asked) == {(1, 1), (2, 2)}
            tries = len(bucket.asked)
            bucket.is_away = False
            await asyncio.sleep(4 * AFTER_S)
            assert set(bucket.asked[tries:]) == {(1, 1), (2, 2)}
            assert len(bucket.asked) == tries + 2, "once is enough"
            await end(tasks)

    run(main())


def test_a_process_that_has_lost_its_lease_seals_nothing(tmp_path: Path) -> None:
    """Another one may have its id: the chain of that would be a former one to it."""

    async def main() -> None:
        bucket = Bucket()
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            tasks = await begin(cluster, bucket)
            await asyncio.sleep(AFTER_S / 2)
            await cluster[2].kill()
            await asyncio.sleep(3 * AFTER_S)
            assert (1, 1) in bucket.asked
            assert (2, 2) not in bucket.asked
            await end(tasks)

    run(main())


def test_tries_in_vain_get_rarer(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = Bucket()
        bucket.is_away = True
        async with virtual_cluster(tmp_path, brokers=1, config=CONFIG) as cluster:
            tasks = [asyncio.create_task(bucket.watch(cluster[1]).run())]
            await asyncio.sleep(100 * AFTER_S)
            assert 5 < len([by for by, _ in bucket.asked if by == 1]) < 20
            await end(tasks)

    run(main())


async def test_a_damaged_chain_keeps_no_other_of_its_broker_from_being_sealed() -> None:
    store = MemoryObjectStore()
    chains = ChainStore(store, CLUSTER)
    first, second = sorted(ChainName(3, uuid5(NAMESPACE_OID, f"chain {n}")) for n in range(2))
    foreign = WalSlice(TOPIC_ID, 0, -1, bytes(foreign_batches(batch(1))), is_foreign=True)
    for chain in (first, second):
        await ChainOwner(store, CLUSTER, chain).commit([foreign])
    key = wal_key(CLUSTER, first, 0)
    whole = await store.get(key)

    async def seal() -> bool:
        return await seal_former_chains(
            store, CLUSTER, 3, chain_of(1), begun=(), named=(), clock_ms=lambda: 0
        )

    await store.replace(key, bytes(len(whole)))
    assert not await seal()
    assert await find_seal(chains, second) == 1
    await store.replace(key, whole)
    assert await seal()
    assert await find_seal(chains, first) == 1


async def begin(cluster: VirtualCluster, bucket: Bucket) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(bucket.watch(cluster[b]).run()) for b in (1, 2)]


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_chains_are_sealed_while_somebody_knows_the_broker() -> None:
    for unregister_ms, after_ms in ((-1, 600_000), (3_600_000, 600_000), (60_000, 30_000), (0, 0)):
        config = NodeConfig(broker_unregister_after_ms=unregister_ms)
        assert abandoned_after_ms(config) == after_ms


def test_the_spool_of_a_node_that_is_no_gateway_any_more_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    remove_spool(folder)
    folder.mkdir()
    (folder / "00000000000000000001.slices").write_bytes(b"of an earlier process")
    remove_spool(folder)
    assert not folder.exists()

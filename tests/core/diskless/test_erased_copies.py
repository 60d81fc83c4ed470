"""A receipt says that chains have no copy of erased records, and is right whenever it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import uuid4

import pytest
from tidelog_core.config import TopicConfig
from tidelog_core.diskless.wal.build import BuiltObject, WalSlice
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.erasure.progress import ErasureProgress, Phase
from tidelog_core.erasure.receipt import ErasureReceipt, PartitionErasure
from tidelog_core.erasure.topic import ErasureRun
from tidelog_core.metadata.records import Topic
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.tier_compaction.partition_tier import PartitionTier

from tests.core.diskless.tail_world import Led, TailWorld
from tests.support.chain_owner import ChainOwner, chain_name
from tests.support.clock import Clock
from tests.support.memory_store import MemoryMetadataStore
from tests.support.wal_objects import CLUSTER, batch


class ErasedWorld(TailWorld):
    """Without gateways: nobody collects their objects yet."""

    async def _write_as_gateway(self) -> None:
        pass

    async def tier_and_collect(self) -> None:
        """Tier what may be tiered, and have every owner and the scrub delete what they may."""
        for led in self.led:
            led.tier_end = self.committed_end(led)
            self._forget_tiered_epochs(led)
        for owner in self.owners.values():
            needed = {
                one.place[1]
                for led in self.led
                for one in led.entries
                if one.place is not None and one.place[0] == owner.chain and one.end > led.tier_end
            }
            end = owner.committed_end
            if owner.chain not in self.sealed and end:
                end = owner.stored[end - 1].header.committed_end
            gone = [n for n in range(end) if n not in needed and n in owner.stored]
            await owner.collect(gone)
            self.collected[owner.chain].update(gone)

    def old_objects(self, led: Led) -> dict[str, bytes]:
        """Return every object that may have erased records, stored, in flight or collected."""
        epoch = led.chains[-1].leader_epoch
        found: dict[str, bytes] = {}
        for owner in self.owners.values():
            for sequence, built in (*owner.stored.items(), *owner.in_flight.items()):
                if _has(built, led, epoch):
                    found[wal_key(CLUSTER, owner.chain, sequence)] = built.data
        return found


def _has(built: BuiltObject, led: Led, epoch: int) -> bool:
    return any(
        row.topic_id == led.name.topic_id.bytes
        and row.partition == led.name.partition
        and (row.leader_epoch < epoch or row.base_offset < led.tier_end)
        for row in parse_object(built.data, key="x").slices
    )


@dataclass
class Erasure:
    """An erasure that has come to its last phase."""

    objects: MemoryObjectStore
    led: Led
    configs: dict[str, str]
    polls_left: int = 60

    def __post_init__(self) -> None:
        self.store, self.clock = MemoryMetadataStore(latency=0), Clock(1_000)

    async def run(self, sleep: Callable[[float], Awaitable[None]]) -> ErasureReceipt:
        name = self.led.name
        topic = Topic(
            name="t",
            topic_id=name.topic_id,
            partition_count=2,
            configs=self.configs,
            created_ms=0,
        )
        tier = PartitionTier(
            store=self.store,
            objects=self.objects,
            cluster_id=CLUSTER,
            topic=topic,
            partition=name.partition,
            config=TopicConfig(),
            key_filter_records_max=0,
            clock_ms=self.clock,
        )
        progress = ErasureProgress(uuid4(), None, 0)
        progress.partitions[name.partition] = PartitionErasure(
            partition=name.partition, up_to=self.led.tier_end, erased=(), replicas=(), problems=()
        )
        progress.enter(Phase.CHAINS)

        async def wait(seconds: float) -> None:
            self.clock.now_ms += round(seconds * 1000)
            self.polls_left -= 1
            if not self.polls_left:
                self.clock.now_ms += 7_200_000
            await sleep(seconds)

        run = ErasureRun([tier], b"key", progress, wait_seconds=60, sleep=wait)
        return await run.run()


DISKLESS = {"diskless.enable": "true"}


async def erase(seed: int) -> bool:
    """Erase while anything happens to chains; return whether the receipt says that it is done."""
    objects = MemoryObjectStore()
    world = ErasedWorld(objects, seed)
    for _ in range(world.random.randint(50, 200)):
        await world.step()
    led = world.led[0]
    led.tier_end = world.committed_end(led)
    world._forget_tiered_epochs(led)
    old = world.old_objects(led)

    async def sleep(_: float) -> None:
        for _ in range(world.random.randint(0, 12)):
            await world.step()
        if world.random.random() < 0.2:
            await world.tier_and_collect()

    receipt = await Erasure(objects, led, DISKLESS).run(sleep)
    (one,) = receipt.partitions
    if one.problems:
        assert (receipt.is_done, one.wal_gone_ms) == (False, None)
        assert "objects of chains may still have copies" in one.problems[0]
        return False
    assert one.wal_gone_ms is not None
    there = {found.key: await objects.get(found.key) async for found in objects.list("")}
    assert [key for key, data in old.items() if there.get(key) == data] == []
    return True


@pytest.mark.parametrize("first_seed", range(0, 20, 5))
def test_no_receipt_says_too_early_that_copies_are_gone(first_seed: int) -> None:
    done = [asyncio.run(erase(seed)) for seed in range(first_seed, first_seed + 5)]
    assert sum(done) >= 4  # Most come to their end.


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(1_000, 2_000, 250))
def test_no_receipt_of_many_says_so_too_early(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 250):
        asyncio.run(erase(seed))


def one_chain(objects: MemoryObjectStore) -> tuple[ChainOwner, Led]:
    led = Led(chains=(), name=TailWorld(objects, 0).led[0].name, tier_end=4)
    return ChainOwner(objects, CLUSTER, chain_name(1)), led


async def never(_: float) -> None:
    raise AssertionError("it waits")


def test_other_topics_and_newer_objects_are_not_waited_for() -> None:
    async def run() -> None:
        objects = MemoryObjectStore()
        owner, led = one_chain(objects)
        other = led.name._replace(partition=1)
        await owner.commit_batches(other, 0, batch(0, 4))
        receipt = await Erasure(objects, led, DISKLESS).run(never)
        assert receipt.partitions[0].wal_gone_ms == 1_000
        document = receipt.document()["partitions"]
        assert document[0]["wal_copies_gone_ms"] == 1_000  # type: ignore[index]
        parsed = ErasureReceipt.parse(receipt.document(), key="x")
        assert parsed == receipt
        await owner.commit_batches(led.name, 0, batch(0, 4))
        receipt = await Erasure(objects, led, {}).run(never)  # The topic never was diskless.
        assert (receipt.is_done, receipt.partitions[0].wal_gone_ms) == (True, None)

    asyncio.run(run())


def test_it_waits_while_an_object_is_there_and_takes_no_later_one_for_it() -> None:
    async def run() -> None:
        objects = MemoryObjectStore()
        owner, led = one_chain(objects)
        await owner.commit_batches(led.name, 0, batch(0, 4))
        await owner.commit([WalSlice(*led.name._replace(partition=1), 0, batch(0, 1))])
        polls = 0

        async def sleep(_: float) -> None:
            nonlocal polls
            polls += 1
            await owner.commit_batches(led.name, 0, batch(polls + 4, 1))
            if polls == 3:
                await owner.collect([0])

        receipt = await Erasure(objects, led, DISKLESS).run(sleep)
        assert (polls, receipt.is_done) == (3, True)
        assert receipt.partitions[0].wal_gone_ms == 31_000

    asyncio.run(run())


def test_a_damaged_object_may_have_anything() -> None:
    async def run() -> None:
        objects = MemoryObjectStore()
        owner, led = one_chain(objects)
        await owner.commit_batches(led.name._replace(partition=1), 0, batch(0, 4))
        key = wal_key(CLUSTER, owner.chain, 0)
        await objects.replace(key, (await objects.get(key))[:-1] + b"x")

        async def sleep(_: float) -> None:
            pass

        receipt = await Erasure(objects, led, DISKLESS).run(sleep)
        assert not receipt.is_done
        assert receipt.partitions[0].problems[0].startswith("1 objects of chains")

    asyncio.run(run())

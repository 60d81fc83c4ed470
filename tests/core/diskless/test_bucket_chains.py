"""Every acknowledged record is found by the bucket alone, whatever has happened before."""

from __future__ import annotations

import asyncio

import pytest
from tidelog_core.diskless.bucket.chains import (
    ChainedPartition,
    ChainSurvey,
    EpochRun,
    chains_of,
    survey_chains,
)
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.chain.walk import SEAL_SIZE_BYTES, ObjectState, WalkedObject, walk_chain
from tidelog_core.diskless.takeover.chain_seal import find_seal, seal_chain
from tidelog_core.diskless.wal.build import WalSlice, build_seal
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.keys import chains_prefix, wal_key
from tidelog_core.diskless.wal.rows import EpochRow, MarkRow
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.metadata.epoch_chains import (
    DELETED_EPOCHS_MAX,
    EpochChain,
    read_epoch_chains,
    write_epoch_chains,
)
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.restoration.chain_seals import seal_chains
from tidelog_core.restoration.chain_tail import join_tail
from tidelog_core.tier.bucket import ClusterObjects

from tests.core.diskless.tail_world import TailWorld
from tests.support.chain_model.heir_replay import ReplayStart, replay_partitions
from tests.support.chain_owner import ChainOwner, chain_name
from tests.support.data_objects import build_data_object
from tests.support.wal_objects import CLUSTER, CREATED_MS, HEIR, TOPIC_ID, batch, name

T0 = PartitionName(TOPIC_ID, 0)
A, B = chain_name(0), chain_name(1)


async def listed(store: MemoryObjectStore) -> ClusterObjects:
    cluster = ClusterObjects(CLUSTER)
    cluster.chain_objects = [one async for one in store.list(chains_prefix(CLUSTER))]
    return cluster


async def surveyed(store: MemoryObjectStore) -> ChainSurvey:
    return await survey_chains(store, CLUSTER, (await listed(store)).chain_objects)


async def walked(store: MemoryObjectStore) -> list[WalkedObject]:
    chains = ChainStore(store, CLUSTER)
    found: list[WalkedObject] = []
    for chain, there in chains_of((await listed(store)).chain_objects).items():
        found += [one async for one in walk_chain(chains, chain, there)]
    return found


async def restore(seed: int) -> None:
    """Stop everything in the middle of a schedule, and find all that was acknowledged."""
    store = MemoryObjectStore()
    world = TailWorld(store, seed)
    for _ in range(world.random.randint(20, 300)):
        await world.step()
    cluster = await listed(store)
    await seal_chains(store, cluster, broker_id=1, clock_ms=lambda: CREATED_MS)
    survey = await survey_chains(store, CLUSTER, cluster.chain_objects)
    assert survey.problems == []
    chains = ChainStore(store, CLUSTER)
    footers: list[WalFooter] = []
    ends = {}
    for chain, there in chains_of(cluster.chain_objects).items():
        seal = await find_seal(chains, chain)
        assert seal is not None
        ends[chain] = seal
        footers += [await chains.footer(chain, one) for one in there]
    for led in world.led:
        committed = world.committed_end(led)
        found = survey.partitions.get(led.name)
        if found is None:
            assert committed == led.tier_end
            continue
        tail = join_tail(
            found, tiered_end=led.tier_end, log_start_offset=0, has_segments=led.tier_end > 0
        )
        assert (tail.problems, tail.starts_at, tail.end_offset) == ((), None, committed)
        state = ProducerState(end_offset=led.tier_end, expiration_ms=10**15)
        replayed = replay_partitions({led.name: ReplayStart(tail.wal, state)}, footers, ends=ends)
        assert replayed[led.name].end_offset == committed


def test_an_epoch_that_two_chains_have_is_a_problem() -> None:
    """The metadata was set back, and others have led in the same epoch since."""
    chains = chain_name(0), chain_name(1), chain_name(2)
    runs = [
        EpochRun(5, chains[0], 0, 10, "first"),
        EpochRun(6, chains[1], 10, 20, "second"),
        EpochRun(6, chains[1], 20, 25, "third"),
        EpochRun(6, chains[2], 10, 40, "fork"),
    ]
    tail = join_tail(
        ChainedPartition(runs=runs), tiered_end=0, log_start_offset=0, has_segments=False
    )
    assert (tail.end_offset, tail.starts_at) == (25, None)
    assert tail.wal == (EpochChain(5, chains[0], 0), EpochChain(6, chains[1], 10))
    (problem,) = tail.problems
    assert problem.object == "fork"
    assert problem.text.startswith("offsets [10, 40) of leader epoch 6 are left out, because ")
    later = runs[3]._replace(leader_epoch=7)
    tail = join_tail(
        ChainedPartition(runs=[*runs[:3], later]),
        tiered_end=0,
        log_start_offset=0,
        has_segments=False,
    )
    assert tail.end_offset == 40
    (problem,) = tail.problems
    assert problem.object == "third"
    assert problem.text.startswith("offsets [20, 25) of leader epoch 6 are left out, because ")


def test_a_later_epoch_that_leaves_nothing_of_an_earlier_one_takes_its_place() -> None:
    """The list of the chains can be stored, and the log ends where its last epoch does."""
    chains = chain_name(0), chain_name(1), chain_name(2)
    runs = [
        EpochRun(4, chains[0], 0, 18, "first"),
        EpochRun(5, chains[1], 18, 25, "forked"),
        EpochRun(6, chains[2], 10, 12, "last"),
    ]
    tail = join_tail(
        ChainedPartition(runs=runs), tiered_end=0, log_start_offset=0, has_segments=False
    )
    assert tail.wal == (EpochChain(4, chains[0], 0), EpochChain(6, chains[2], 10))
    assert read_epoch_chains(write_epoch_chains(tail.wal), {}) == tail.wal
    assert (tail.end_offset, tail.starts_at) == (12, None)
    later = EpochRun(7, chains[1], 20, 30, "behind a gap")
    tail = join_tail(
        ChainedPartition(runs=[*runs, later]), tiered_end=0, log_start_offset=0, has_segments=False
    )
    assert (tail.wal, tail.starts_at) == ((EpochChain(7, chains[1], 20),), 20)


@pytest.mark.parametrize("has_segments", [False, True], ids=["nothing tiered", "tiered before"])
def test_chains_stay_that_alone_know_who_has_written_deleted_records(has_segments: bool) -> None:
    epochs = range(DELETED_EPOCHS_MAX + 4)
    runs = [EpochRun(epoch, chain_name(epoch), 10 * epoch, 10 * epoch + 10, "") for epoch in epochs]
    end = 10 * len(runs)
    tail = join_tail(
        ChainedPartition(runs=runs),
        tiered_end=end - 10 if has_segments else end,
        log_start_offset=end,
        has_segments=has_segments,
    )
    kept = [one.leader_epoch for one in tail.wal]
    assert kept == [*epochs][-1 if has_segments else -DELETED_EPOCHS_MAX - 1 :]
    assert (tail.end_offset, tail.starts_at, tail.problems) == (end, None, ())


def test_records_of_an_earlier_epoch_than_the_tiers_do_not_go_on_there() -> None:
    """The leader of epoch 5 was about to put the partition into its chain; epoch 6 was another's."""
    runs = [
        EpochRun(5, chain_name(0), 50, 120, "unfinished"),
        EpochRun(7, chain_name(1), 100, 110, "k"),
    ]
    tail = join_tail(
        ChainedPartition(runs=runs),
        tiered_end=100,
        log_start_offset=0,
        has_segments=True,
        tiered_epoch=6,
    )
    assert (tail.wal, tail.end_offset) == ((EpochChain(7, chain_name(1), 100),), 110)
    (problem,) = tail.problems
    assert problem.object == "unfinished"
    assert problem.text.startswith("offsets [100, 120) of leader epoch 5 are left out")


# In schedule 2298 garbage above a seal was built before the owner knew what the heir knew.
@pytest.mark.parametrize("seed", [*range(40), 2298])
def test_every_acknowledged_record_is_found_when_all_nodes_and_metadata_are_lost(seed: int) -> None:
    asyncio.run(restore(seed))


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(1_000, 4_000, 500))
def test_the_same_under_thousands_of_schedules(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 500):
        try:
            asyncio.run(restore(seed))
        except BaseException:
            print(f"seed {seed}")
            raise


def test_marks_epochs_and_producers_come_from_the_chain() -> None:
    async def run() -> None:
        store = MemoryObjectStore()
        data = batch(0, 2, producer_id=7, producer_epoch=0, base_sequence=0)
        built = build_data_object(
            name(0, chain=A),
            [WalSlice(TOPIC_ID, 0, 3, data)],
            epochs=[EpochRow(TOPIC_ID.bytes, 1, 9, 0, bytes(16), 0, 0, -1)],
            marks=[MarkRow(TOPIC_ID.bytes, 0, 0, 1, 0)],
        )
        await store.put(wal_key(CLUSTER, A, 0), built.data)
        found = (await surveyed(store)).partitions
        assert (found[T0].log_start_offset, found[T0].producer_id_max) == (1, 7)
        assert (found[T0].leader_epoch_max, len(found[T0].runs)) == (3, 1)
        assert found[PartitionName(TOPIC_ID, 1)].leader_epoch_max == 9

    asyncio.run(run())


def test_a_damaged_object_is_named_and_the_others_count() -> None:
    async def run() -> None:
        store = MemoryObjectStore()
        owner = ChainOwner(store, CLUSTER, A)
        for base in (0, 2, 4):
            await owner.commit_batches(T0, 0, batch(base))
        key = wal_key(CLUSTER, A, 1)
        await store.replace(key, (await store.get(key))[:-1] + b"x")
        found = await surveyed(store)
        assert [problem[0] for problem in found.problems] == [key]
        runs = found.partitions[T0].runs
        assert [(run.base_offset, run.end_offset) for run in runs] == [(0, 2), (4, 6)]
        tail = join_tail(found.partitions[T0], tiered_end=0, log_start_offset=0, has_segments=False)
        assert (tail.starts_at, tail.end_offset) == (4, 6)
        assert tail.problems[0].object == wal_key(CLUSTER, A, 2)
        assert tail.problems[0].text == (
            "offsets [2, 4) are missing before it, and earlier records are left out"
        )
        assert tail.wal[0].first_offset == 4

    asyncio.run(run())


def test_objects_above_a_gap_are_pending_and_those_above_a_seal_are_garbage() -> None:
    async def run() -> None:
        store = MemoryObjectStore()
        owner = ChainOwner(store, CLUSTER, A)
        for base in range(4):
            owner.build([WalSlice(*T0, 0, batch(base, 1))])
        await owner.put(0)
        await owner.put(2)
        assert [one.state for one in await walked(store)] == [
            ObjectState.COMMITTED,
            ObjectState.PENDING,
        ]
        end = await seal_chain(
            owner.chains, A, cluster_id=CLUSTER, heir=B, clock_ms=lambda: CREATED_MS
        )
        assert end == 1
        states = [one.state for one in await walked(store)]
        assert states == [ObjectState.COMMITTED, ObjectState.SEAL, ObjectState.GARBAGE]
        assert len(build_seal(name(1, chain=A), HEIR).data) == SEAL_SIZE_BYTES

    asyncio.run(run())


def test_finding_a_seal_writes_nothing() -> None:
    async def run() -> None:
        store = MemoryObjectStore()
        owner = ChainOwner(store, CLUSTER, A)
        await owner.commit_batches(T0, 0, batch(0))
        assert await find_seal(owner.chains, A) is None
        assert len((await listed(store)).chain_objects) == 1
        await owner.seal(B)
        assert await find_seal(owner.chains, A) == 1

    asyncio.run(run())

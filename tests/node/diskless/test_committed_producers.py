"""Checkpoints have producers at offsets below which everything is committed, and only there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import Snapshot
from tidelog_core.log.producers.producer_snapshot import decode_snapshot, encode_snapshot
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_node.diskless.chain import committed_producers
from tidelog_node.diskless.chain.checkpoints import ChainCheckpoints
from tidelog_node.diskless.chain.committed_producers import CommittedProducers
from tidelog_node.diskless.recovery.chain_slices import WantedSlices, find_slices
from tidelog_node.replicas.replica import Replica

from tests.support.batches import batch
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context
from tests.support.waiting import eventually_async
from tests.support.wal_objects import CLUSTER
from tests.support.wal_scene import LedLog, WalScene

DAY_MS = 86_400_000


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[WalScene]:
    scene = WalScene(tmp_path, chain_id=UUID(int=5))
    yield scene
    await scene.close()


def write(log: LedLog, producer_id: int, sequence: int = 0, leader_epoch: int = 0) -> None:
    """Append a batch of an idempotent producer."""
    data = batch(1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    info = log.log.append_as_leader(data, leader_epoch=leader_epoch)
    log.content += data
    log.chain.on_append(log, info.base_offset, info.last_offset + 1, info.size_bytes)


async def until_committed(scene: WalScene) -> None:
    def is_committed() -> bool:
        return all(one.log.high_watermark == one.log.log_end_offset for one in scene.logs)

    await eventually_async(is_committed, seconds=30)


def ids(snapshot: Snapshot) -> list[int]:
    state = decode_snapshot(snapshot.data, expiration_ms=DAY_MS)
    assert state.end_offset == snapshot.end_offset
    return state.producer_ids()


async def test_what_is_not_committed_is_in_no_snapshot(scene: WalScene) -> None:
    log, other = scene.lead(2)
    partitions, producers = scene.chain.partitions, CommittedProducers()
    write(log, 7)
    write(other, 8)
    await producers.take(partitions)
    assert producers.committed(partitions) == ()
    await until_committed(scene)
    write(log, 9)  # It is not in the snapshot that was taken.
    assert [ids(one) for one in producers.committed(partitions)] == [[7], [8]]
    # One that is taken now has it, and counts once it is committed; until then the one before does.
    await producers.take(partitions)
    assert [ids(one) for one in producers.committed(partitions)] == [[7], [8]]
    await until_committed(scene)
    found = producers.committed(partitions)
    assert [ids(one) for one in found] == [[7, 9], [8]]
    assert [one.data for one in found] == [
        encode_snapshot(each.log.producers.state) for each in scene.logs
    ]
    assert [(one.topic_id, one.partition) for one in found] == [log.name, other.name]


async def test_a_partition_that_has_left_the_chain_is_in_none(scene: WalScene) -> None:
    """The next leader's checkpoints have it."""
    log, other = scene.lead(2)
    partitions, producers = scene.chain.partitions, CommittedProducers()
    for one in (log, other):
        write(one, 7)
    await until_committed(scene)
    await producers.take(partitions)
    scene.chain.leave(log)
    assert [one.partition for one in producers.committed(partitions)] == [1]
    await producers.take(partitions)
    assert [one.partition for one in producers.committed(partitions)] == [1]


async def test_long_tails_come_first_if_there_is_no_room_for_all(scene: WalScene) -> None:
    logs = scene.lead(3)
    for count, log in enumerate(logs, 1):
        for sequence in range(count):
            write(log, 7, sequence)
            await until_committed(scene)
    partitions = scene.chain.partitions
    longest = encode_snapshot(logs[2].log.producers.state)
    producers = CommittedProducers(bytes_max=len(longest))
    await producers.take(partitions)
    assert [one.partition for one in producers.committed(partitions)] == [2]


async def test_snapshots_of_former_long_tails_do_not_add_up(scene: WalScene) -> None:
    logs = scene.lead(3)
    for log in logs:
        write(log, 7)
    await until_committed(scene)
    partitions = scene.chain.partitions
    producers = CommittedProducers(bytes_max=len(encode_snapshot(logs[0].log.producers.state)))
    for one in partitions:
        one.object_count += 1_000 * (one.name.partition + 1)
        await producers.take(partitions)
        assert [found.partition for found in producers.committed(partitions)] == [
            one.name.partition
        ]


async def test_a_partition_with_too_many_producers_is_left_out(
    scene: WalScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_producers, "PRODUCERS_MAX", 2)
    log, other = scene.lead(2)
    for producer_id in range(3):
        write(log, producer_id)
    write(other, 7)
    await until_committed(scene)
    producers = CommittedProducers()
    await producers.take(scene.chain.partitions)
    assert [one.partition for one in producers.committed(scene.chain.partitions)] == [1]


async def test_a_checkpoint_in_the_bucket_has_them(scene: WalScene) -> None:
    (log,) = scene.lead(1)
    store = MemoryMetadataStore()
    checkpoints = ChainCheckpoints(node_context(store, ClusterView(store)), lambda: scene.chain)
    write(log, 7)
    await checkpoints.note_producers()
    await until_committed(scene)
    await checkpoints.write()
    chains = ChainStore(scene.store, CLUSTER)
    (listed,) = (await chains.list_all(scene.name)).checkpoints
    index = await chains.index(scene.name, listed)
    assert index is not None
    (found,) = index.snapshots
    assert found == Snapshot(*log.name, 1, encode_snapshot(log.log.producers.state), 0)


async def test_an_heir_takes_no_producers_of_a_history_that_was_lost(
    scene: WalScene, tmp_path: Path
) -> None:
    """A partition was to become diskless, and an unclean election came first.

    Then this node led again, with less of the log, and in the same chain.
    """
    (lost,) = scene.lead(1)
    store = MemoryMetadataStore()
    checkpoints = ChainCheckpoints(node_context(store, ClusterView(store)), lambda: scene.chain)
    for sequence in range(2):
        write(lost, 7, sequence)
    await checkpoints.note_producers()
    await until_committed(scene)
    await checkpoints.write()
    scene.chain.leave(lost)
    left, entry = LedLog(tmp_path / "left", 0), EpochChain(2, scene.name, 0)
    scene.logs.append(left)
    scene.chain.enter(cast("Replica", left), (entry,), end_offset=0)
    for producer_id in (8, 9, 10):
        write(left, producer_id, leader_epoch=2)
    await until_committed(scene)
    chains, wanted = ChainStore(scene.store, CLUSTER), {left.name: WantedSlices((entry,), 0)}
    assert not (await find_slices(chains, wanted, {})).producers
    await checkpoints.note_producers()
    write(left, 11, leader_epoch=2)
    await until_committed(scene)
    await checkpoints.write()
    found = (await find_slices(chains, wanted, {})).producers[left.name]
    assert decode_snapshot(found.snapshot, expiration_ms=DAY_MS).producer_ids() == [8, 9, 10]

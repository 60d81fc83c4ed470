"""Decided changes are written on what each of them was decided on."""

from __future__ import annotations

import dataclasses

from tidelog_core.metadata.records import Partition, check, put
from tidelog_core.metadata.store import ABSENT
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.partition_writer import write_changes

from tests.support.memory_store import MemoryMetadataStore
from tests.support.replication_cluster import make_lease, make_partition

DEAD, LEASE_VERSIONS = 1, 2


async def make_store(partition_count: int) -> tuple[MemoryMetadataStore, list[Partition]]:
    """Return a store in which the dead broker's lease is at ``LEASE_VERSIONS``."""
    store = MemoryMetadataStore(latency=0)
    for version in range(LEASE_VERSIONS):
        await store.commit([put(make_lease(DEAD, version=version), is_logged=False)])
    partitions = [
        dataclasses.replace(make_partition(version=ABSENT), partition=number)
        for number in range(partition_count)
    ]
    await store.commit([put(partition) for partition in partitions])
    store.commits.clear()
    return store, [dataclasses.replace(partition, version=1) for partition in partitions]


def takeover(partition: Partition, lease_version: int) -> PartitionChange:
    after = dataclasses.replace(partition, leader=2, leader_epoch=partition.leader_epoch + 1)
    lease = make_lease(DEAD, version=lease_version)
    return PartitionChange(after, ChangeReason.TAKEOVER, (check(lease),))


async def test_a_change_decided_on_an_older_lease_is_lost_among_those_decided_on_the_newer() -> (
    None
):
    store, partitions = await make_store(6)
    old = LEASE_VERSIONS - 1
    changes = [
        takeover(partition, old if number % 2 else LEASE_VERSIONS)
        for number, partition in enumerate(partitions)
    ]
    outcome = await write_changes(store, changes)
    assert outcome.written == changes[::2]
    assert outcome.lost == changes[1::2]
    assert outcome.moved == set(changes[1].checks)


async def test_changes_that_agree_go_together() -> None:
    store, partitions = await make_store(6)
    changes = [takeover(partition, LEASE_VERSIONS) for partition in partitions]
    outcome = await write_changes(store, changes)
    assert outcome.written == changes
    assert [len(writes) for writes in store.commits] == [6]

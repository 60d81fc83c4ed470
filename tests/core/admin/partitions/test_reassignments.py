"""An administrator's change of a partition's replicas, written while its leader starts again."""

from __future__ import annotations

import dataclasses
from uuid import UUID

from tidelog_core.admin.partitions.reassignments import reassignment
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Partition, Topic, put
from tidelog_core.replication.partition_writer import write_changes

from tests.support.memory_store import MemoryMetadataStore
from tests.support.replication_cluster import make_brokers

TOPIC_ID = UUID(int=1)


async def test_a_cancelled_move_begins_no_epoch_of_a_leader_that_has_registered_again() -> None:
    """Its next process may have less of the log, and leads in every epoch that begins then."""
    store, brokers = MemoryMetadataStore(), make_brokers(1, 2, 3, version=0)
    partition = Partition(
        topic_id=TOPIC_ID, partition=0, replicas=(3, 2, 1), leader=1, leader_epoch=4,
        isr=(1, 2), adding=(3,), removing=(1,),
    )  # fmt: skip
    topic = Topic(name="t", topic_id=TOPIC_ID, partition_count=1)
    await store.commit([put(topic), put(partition), *map(put, brokers.values())])
    view = ClusterView(store)
    image = await view.refresh()
    [stored] = image.partitions("t")
    change = reassignment(None, view=view, may_resize=True)(stored)
    assert change is not None
    assert change.after.leader_epoch == 5
    again = dataclasses.replace(image.brokers[1], incarnation=UUID(int=9))
    await store.commit([put(again)])
    assert (await write_changes(store, [change])).lost == [change]
    await view.refresh()
    change = reassignment(None, view=view, may_resize=True)(stored)
    assert change is not None
    assert (await write_changes(store, [change])).written == [change]

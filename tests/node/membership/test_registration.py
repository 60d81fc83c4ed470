"""The cluster's item and a broker's are written by whoever comes first, and found out where not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from tidelog_core.errors import OutcomeUnknown, StorageError
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.records import Broker, Cluster, broker_key, cluster_key, put
from tidelog_core.metadata.store import Write
from tidelog_node.membership.registration import ensure_cluster, register_broker

from tests.support.memory_store import MemoryMetadataStore


def unsure_once() -> MemoryMetadataStore:
    """Return a store whose first commit is carried out without an answer."""
    store = MemoryMetadataStore(latency=0)
    errors = [OutcomeUnknown("the answer was lost")]

    def answer(_: Sequence[Write]) -> Exception | None:
        return errors.pop() if errors else None

    store.on_commit = answer
    return store


async def test_a_cluster_that_was_made_without_an_answer_is_found() -> None:
    store = unsure_once()
    made = await ensure_cluster(store)
    item = await store.get(cluster_key())
    assert item is not None
    assert (made, item.version) == (Cluster.from_item(item), 1)


async def test_nodes_that_start_at_once_make_one_cluster() -> None:
    store = MemoryMetadataStore(latency=0)
    made = await asyncio.gather(*(ensure_cluster(store) for _ in range(5)))
    assert len({cluster.cluster_id for cluster in made}) == 1
    assert len(store.commits) == 1


async def test_a_node_that_may_not_make_a_cluster_makes_none() -> None:
    store = MemoryMetadataStore(latency=0)
    with pytest.raises(StorageError):
        await ensure_cluster(store, may_create=False)
    assert store.commits == []
    await store.commit([put(Cluster(cluster_id="one"))])
    assert (await ensure_cluster(store, may_create=False)).cluster_id == "one"


async def test_a_broker_that_was_registered_without_an_answer_is_registered() -> None:
    store = unsure_once()
    await register_broker(
        store,
        broker_id=1,
        incarnation=UUID(int=7),
        endpoints=plaintext_endpoints("here", 9092),
        rack=None,
    )
    item = await store.get(broker_key(1))
    assert item is not None
    assert Broker.from_item(item).incarnation == UUID(int=7)

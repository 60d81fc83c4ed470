"""A metadata store that fails when told so, and a node whose handlers use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import uuid4

from tidelog_core.config import NodeConfig
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata import records
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.records import Broker, Cluster
from tidelog_core.metadata.store import Changes, Check, ClusterVersion, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.node.handlers.control_plane import CLUSTER_ID, Node


class UnsteadyStore(SqliteMetadataStore):
    """A real store whose commits fail, or whose changes cannot be read, when told so."""

    commit_failure: Exception | None = None
    is_unreadable = False
    is_away_after_commit = False

    async def commit(self, writes: Sequence[Write], *, checks: Iterable[Check] = ()) -> None:
        if self.commit_failure is not None:
            raise self.commit_failure
        await super().commit(writes, checks=tuple(checks))
        self.is_unreadable = self.is_away_after_commit

    async def changes_since(self, version: ClusterVersion) -> Changes:
        if self.is_unreadable:
            raise StoreUnavailable("away")
        return await super().changes_since(version)


async def one_node(path: Path, static: NodeConfig | None = None) -> tuple[UnsteadyStore, Node]:
    store = UnsteadyStore(path / "metadata.db")
    broker = Broker(
        broker_id=1, incarnation=uuid4(), endpoints=plaintext_endpoints("h", 1), rack=None
    )
    await store.commit([records.put(Cluster(cluster_id=CLUSTER_ID)), records.put(broker)])
    node = Node(store, 1, static or NodeConfig())
    await node.view.refresh()
    return store, node

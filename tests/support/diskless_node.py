"""A node's chain with a real worker, and nothing else of the node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_node.diskless.chain.node_chain import NodeChain
from tidelog_node.membership.registration import ensure_cluster

from tests.support.node_context import node_context


@asynccontextmanager
async def running_chain(folder: Path, objects_url: str) -> AsyncIterator[NodeChain]:
    store = SqliteMetadataStore(folder / "metadata.db")
    await ensure_cluster(store)
    view = ClusterView(store)
    await view.refresh()
    chain = NodeChain(
        node_context(store, view),
        objects_url=objects_url,
        socket=folder / "wal.sock",
        cache_dir=folder / "wal",
    )
    try:
        yield chain
    finally:
        await chain.close(5.0)
        await store.close()

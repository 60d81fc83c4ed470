"""The stores and nodes that a read is planned from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog_core.metadata.location import opened_metadata_store, require_metadata_store
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.objects.location import opened_object_store, require_object_store
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.options.read_options import ReadOptions
from tidelog_spark.stores.chain_tails import ChainTails
from tidelog_spark.stores.missing_stores import naming_option

if TYPE_CHECKING:
    from tidelog_spark.nodes import Nodes

# Spark starts several Python processes for a query, and few of them ask nodes: only those import
# the client's messages.


@dataclass(frozen=True, slots=True)
class Sources:
    """The stores and nodes that a read is planned from."""

    metadata: MetadataStore
    objects: ObjectStore
    nodes: Nodes | None
    tails: ChainTails | None  # None: chains are not read


@asynccontextmanager
async def open_sources(options: ReadOptions) -> AsyncIterator[Sources]:
    """Open the stores and nodes in the options, and close them at the end.

    Raises ``InvalidConfig`` for stores that are not on this machine.
    """
    with naming_option("metadata"):
        require_metadata_store(options.metadata)
    with naming_option("objects"):
        require_object_store(options.objects)
    async with (
        opened_metadata_store(options.metadata) as metadata,
        opened_object_store(options.objects) as objects,
    ):
        if options.nodes is None:
            tails = None
            if options.is_tail_read:
                tails = ChainTails(objects, is_read_committed=options.is_read_committed)
            yield Sources(metadata, objects, None, tails)
            return
        from tidelog_spark.nodes import Nodes

        nodes = Nodes(options.nodes, is_read_committed=options.is_read_committed)
        await nodes.start()
        try:
            yield Sources(metadata, objects, nodes, None)
        finally:
            await nodes.close()

"""``tidelog tier accept-store`` makes another object store the cluster's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidelog_cli.output import note
from tidelog_cli.stores import DataDir, Metadata, Objects, locate_stores, opened_metadata

if TYPE_CHECKING:
    from tidelog_core.tier.store_identity import Accepted


def accept_store(
    *, data_dir: DataDir = None, metadata: Metadata = None, objects: Objects = None
) -> None:
    """Make this object store the cluster's, whatever it was before. Does not ask for confirmation.

    Nodes write only to the store that the cluster knows, by the id in its object object-store.json.
    If they report wrong-object-store, mount the file system or correct the address first. Accept
    another store only if the objects are lost for good, or if you moved to an empty one on purpose:
    records in the former store are not found in this one. The manifests of the cluster and of all
    topics are written to this store; if that fails, call this again. A node that refuses the store
    takes it within seconds. A node that has checked the former store goes on writing to that one
    until it is restarted. So restart all nodes then: leaders also write the log start offsets of
    their partitions to this store only after that.
    """
    locations = locate_stores(data_dir, metadata, objects)
    accepted = asyncio.run(_accept(locations.metadata, locations.objects))
    if accepted.before == accepted.now:
        note(f"{locations.objects} is the cluster's object store already: {accepted.now}")
        return
    note(f"object store before: {accepted.before or 'none was known'}")
    note(f"object store now: {accepted.now} in {locations.objects}")
    note("restart the nodes, all that were running before")


async def _accept(metadata_url: str, objects_url: str) -> Accepted:
    from tidelog_core.objects.location import opened_object_store
    from tidelog_core.tier.store_identity import accept_store as accept

    async with (
        opened_object_store(objects_url) as objects,
        opened_metadata(metadata_url) as (store, image),
    ):
        return await accept(objects, store, image.cluster_id)

"""``tidelog schema accept-loss`` goes on without the newest entry of the journal of schemas."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from tidelog_cli.failures import UsageError
from tidelog_cli.output import note
from tidelog_cli.stores import DataDir, Metadata, Objects, locate_stores, opened_metadata


def accept_loss(
    key: Annotated[str, typer.Argument(help="The object, as the registry's error names it.")],
    *,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
) -> None:
    """Go on without the newest entry of the journal of schemas, which the bucket has lost.

    Put the object back from an older version of the bucket if you can. Before, stop all that serve
    the registry: nodes with a registry port, and the schemas function of the AWS stack (give it a
    reserved concurrency of 0). See that the bucket is the right one. No schema is lost: what serves
    the registry next writes into the journal again what the metadata store has. Malformed items of
    the metadata store stay as they are, and the journal has what they were before. Exit status: 0
    accepted, 2 it is not lost.
    """
    locations = locate_stores(data_dir, metadata, objects)
    asyncio.run(_accept(key, locations.metadata, locations.objects))
    note("accepted; start the nodes and the schemas function, and run tidelog verify")


async def _accept(key: str, metadata_url: str, objects_url: str) -> None:
    from tidelog_core.objects.location import opened_object_store
    from tidelog_core.schema_registry.journal.accepted_loss import accept_loss as accept
    from tidelog_core.schema_registry.journal.accepted_loss import newest_loss

    async with (
        opened_object_store(objects_url) as objects,
        opened_metadata(metadata_url) as (store, image),
    ):
        lost = await newest_loss(store, objects, image.cluster_id)
        if lost is None:
            raise UsageError("the newest entry of the journal is not lost")
        if key != lost:
            raise UsageError(f"{key} is not the newest entry of the journal, which is {lost}")
        await accept(store, objects, image.cluster_id, key)

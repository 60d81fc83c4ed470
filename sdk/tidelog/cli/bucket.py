"""Commands that look into a bucket without a metadata store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.failures import CommandFailed
from tidelog.cli.output import note

if TYPE_CHECKING:
    from tidelog_core.objects.store import ObjectStore
    from tidelog_core.tier.bucket import ClusterObjects

ClusterId = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Which cluster, where the bucket has several."),
]


async def chosen_cluster(objects: ObjectStore, url: str, cluster_id: str | None) -> ClusterObjects:
    """Return the one cluster in the bucket, or the one named. Raises ``CommandFailed``."""
    from tidelog_core.restoration.survey import list_clusters

    clusters, outside = await list_clusters(objects, cluster_id)
    if outside:
        note(f"{len(outside)} objects in {url} are of no cluster, such as {outside[0]}")
    if cluster_id is not None:
        if cluster_id not in clusters:
            raise CommandFailed(f"there is no cluster {cluster_id} in {url}")
        return clusters[cluster_id]
    if not clusters:
        raise CommandFailed(f"there is no cluster in {url}")
    if len(clusters) > 1:
        names = ", ".join(sorted(clusters))
        raise CommandFailed(f"there are several clusters in {url}, give --cluster-id: {names}")
    return next(iter(clusters.values()))

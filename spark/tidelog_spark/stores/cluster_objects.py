"""Tells a store that lacks an object from one that has nothing of the cluster at all.

A wrong url, or an executor without the driver's folder, would look like lost records, and with
``failOnDataLoss=false``, or for a tail that is listed, like an empty topic.
"""

from __future__ import annotations

from tidelog_core.errors import InvalidConfig
from tidelog_core.objects.store import ObjectStore


async def require_objects(store: ObjectStore, cluster_id: str) -> None:
    """Raise ``InvalidConfig`` if the store has no object of the cluster.

    Call it where the metadata name one: then the bucket has at least the cluster's manifest.
    """
    if await anext(aiter(store.list(f"{cluster_id}/")), None) is None:
        raise InvalidConfig(
            [
                f"option 'objects' names a store without any object of cluster {cluster_id}, so"
                " records may be elsewhere: check the url, and that executors have the same"
                " folder or bucket"
            ]
        )

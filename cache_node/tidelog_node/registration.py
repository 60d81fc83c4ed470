"""How a node makes itself known: the cluster's item, and the broker's own.

Both are conditional writes that anyone may win: the first node writes the cluster, and
a node that starts again replaces its registration under a new incarnation.
"""

from __future__ import annotations

import base64
from uuid import UUID, uuid4

from tidelog_core.errors import VersionConflict
from tidelog_core.metadata.records import Broker, Cluster, broker_key, cluster_key, put
from tidelog_core.metadata.store import ABSENT, MetadataStore

ATTEMPTS_MAX = 10


async def ensure_cluster(store: MetadataStore) -> Cluster:
    """Return the cluster, written now if this is its first node."""
    for _ in range(ATTEMPTS_MAX):
        item = await store.get(cluster_key())
        if item is not None:
            return Cluster.from_item(item)
        try:
            await store.commit([put(Cluster(cluster_id=_new_cluster_id()))])
        except VersionConflict:
            continue
    raise VersionConflict([(cluster_key().collection, cluster_key().key)])


async def register_broker(
    store: MetadataStore,
    *,
    broker_id: int,
    incarnation: UUID,
    host: str,
    port: int,
    rack: str | None,
) -> None:
    """Write where clients reach this node. Durable on return."""
    key = broker_key(broker_id)
    for attempt in range(ATTEMPTS_MAX):
        item = await store.get(key)
        broker = Broker(
            broker_id=broker_id,
            incarnation=incarnation,
            host=host,
            port=port,
            rack=rack,
            version=ABSENT if item is None else item.version,
        )
        try:
            await store.commit([put(broker)])
        except VersionConflict:
            if attempt == ATTEMPTS_MAX - 1:
                raise
            continue
        return


def _new_cluster_id() -> str:
    """Return a random id in Kafka's form: 16 bytes, base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")

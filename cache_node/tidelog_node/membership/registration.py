"""Registers a node: writes the cluster's item and the broker's own.

Both are conditional writes that any node may make: the first node writes the cluster, and a
restarted node replaces its registration under a new incarnation.

Two processes of one broker id never serve at the same time: each serves and decides only while it
holds the id's lease (``broker_id_takeover``), and registers after it has acquired the
lease. The handshake at the registered address only rejects a second process earlier. A process
whose registration is replaced stops, and one whose registration is removed registers again
(``kept_registration``). If it loses the lease before that, it answers only requests that need
none, such as Metadata.
"""

from __future__ import annotations

import base64
import logging
from uuid import UUID, uuid4

from tidelog_core.errors import ErrorCode, StorageError, TidelogError
from tidelog_core.metadata.endpoints import BrokerEndpoint
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Broker, Cluster, cluster_key, put
from tidelog_core.metadata.store import (
    ABSENT,
    ANY_VERSION,
    UNREADABLE_VERSION,
    Item,
    MetadataStore,
    Write,
)
from tidelog_core.metadata.update import update

from tidelog_node.dialing.dialer import Dialer

logger = logging.getLogger(__name__)

ANSWER_SECONDS_MAX = 3.0


class BrokerIdTaken(TidelogError):
    """Another process runs under this broker id."""

    code = ErrorCode.duplicate_broker_registration
    hint = "stop the other node, or give this one a --broker-id of its own"


class ClusterMissing(StorageError):
    """The data directory has a cluster's logs, and the metadata store has no cluster."""

    hint = (
        "give the metadata store that the cluster had; if that is lost, docs/restore.md says how "
        "to restore it; for a new cluster give another data directory"
    )

    def __init__(self) -> None:
        super().__init__(
            "the data directory is in use by a cluster, but the metadata store knows of none"
        )


async def ensure_cluster(store: MetadataStore, *, may_create: bool = True) -> Cluster:
    """Return the cluster; the first node writes it.

    Raises ``ClusterMissing`` if there is none and ``may_create`` is false.
    """

    def create(item: Item | None) -> tuple[Cluster, Write | None]:
        if item is not None:
            return Cluster.from_item(item), None
        if not may_create:
            raise ClusterMissing
        cluster = Cluster(cluster_id=_new_cluster_id())
        return cluster, put(cluster)

    return await update(store, cluster_key(), create)


async def register_broker(
    store: MetadataStore,
    *,
    broker_id: int,
    incarnation: UUID,
    endpoints: tuple[BrokerEndpoint, ...],
    rack: str | None,
    certificate: bytes = b"",
) -> None:
    """Write this node's registration: its endpoints, rack and certificate.

    ``certificate`` is DER. Durable on return.
    """
    broker = Broker(
        broker_id=broker_id,
        incarnation=incarnation,
        endpoints=endpoints,
        rack=rack,
        certificate=base64.b64encode(certificate).decode(),
    )

    def register(item: Item | None) -> tuple[None, Write]:
        version = ABSENT if item is None else item.version
        if version == UNREADABLE_VERSION:
            # Only processes of this id write it, and the lease excludes others.
            version = ANY_VERSION
        return None, Write(broker.item_id, broker.to_body(), version)

    await update(store, broker.item_id, register)


async def require_gone(image: ClusterImage, dialer: Dialer) -> None:
    """Return unless another process answers for the dialer's id. Raises ``BrokerIdTaken``.

    A process that does not prove its identity in time counts as gone here; its lease decides.
    """
    broker_id = dialer.broker_id
    registered = image.brokers.get(broker_id)
    if registered is None:
        return
    if await dialer.is_there(registered, timeout_s=ANSWER_SECONDS_MAX):
        raise BrokerIdTaken(
            f"broker {broker_id} of this cluster runs already, at {registered.endpoint}"
        )
    logger.info("earlier process of this broker is gone")


def _new_cluster_id() -> str:
    """Return a random id in Kafka's form: 16 bytes, base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")

"""Peers of a running node: brokers that are only registered, and connections in their name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

from tidelog_core.metadata.endpoints import NODE, BrokerEndpoint, plaintext_endpoints
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_node.membership.registration import register_broker
from tidelog_node.security.node_identity import NodeIdentity, generate_identity
from tidelog_node.security.node_trust import NodeTrust

from tests.support.waiting import eventually
from tests.support.wire_client import WireClient, api_versions_request


def register_peer(database: Path, broker_id: int) -> NodeIdentity:
    """Register a broker that nobody runs; return what proves to be it."""
    identity = generate_identity(broker_id)

    async def register() -> None:
        store = SqliteMetadataStore(database)
        await register_broker(
            store,
            broker_id=broker_id,
            incarnation=uuid4(),
            endpoints=(
                *plaintext_endpoints("127.0.0.1", 1),
                BrokerEndpoint(NODE, "127.0.0.1", 2),
            ),
            rack=None,
            certificate=identity.certificate,
        )
        await store.close()

    asyncio.run(register())
    return identity


def image_of(database: Path) -> ClusterImage:
    """Return the cluster as its metadata store has it now."""
    return asyncio.run(_view(database)).image


def connect_as(identity: NodeIdentity, database: Path, broker_id: int) -> WireClient:
    """Connect to the broker's node listener in the name of the identity.

    Raises ``OSError`` or ``EOFError`` where the node refuses it.
    """
    view = asyncio.run(_view(database))
    broker = view.image.brokers[broker_id]
    endpoint = broker.endpoint_of(NODE)
    context = NodeTrust(identity, view).client_context(broker, encrypts=True)
    assert endpoint is not None
    assert context is not None
    client = WireClient(endpoint.port, context=context)
    try:
        client.call(api_versions_request())  # The refusal comes after the client's handshake.
    except BaseException:
        client.socket.close()
        raise
    return client


def connected_as(identity: NodeIdentity, database: Path, broker_id: int) -> WireClient:
    """Connect as soon as the node knows the identity."""
    found: list[WireClient] = []

    def is_admitted() -> bool:
        try:
            found.append(connect_as(identity, database, broker_id))
        except (OSError, EOFError):
            return False
        return True

    eventually(is_admitted, "the node knows its peer")
    return found[0]


async def _view(database: Path) -> ClusterView:
    store = SqliteMetadataStore(database)
    try:
        view = ClusterView(store)
        await view.refresh()
        return view
    finally:
        await store.close()

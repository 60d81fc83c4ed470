"""Which certificates a node trusts: those of the image, as it is now."""

from __future__ import annotations

import dataclasses
import ssl
from uuid import uuid4

import pytest
from tidelog_core.metadata.endpoints import NODE, BrokerEndpoint
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Broker, put
from tidelog_core.model import ANONYMOUS, Principal
from tidelog_node.membership.registration import ensure_cluster, register_broker
from tidelog_node.requests.node_sessions import NodeSessions
from tidelog_node.requests.session import NO_NODE
from tidelog_node.security.node_identity import NodeIdentity, generate_identity
from tidelog_node.security.node_trust import SPARE_CERTIFICATES, NodeTrust

from tests.support.memory_store import MemoryMetadataStore
from tests.support.request_contexts import a_session


class World:
    """A node's trust, and the store in which brokers register."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore(latency=0)
        self.view = ClusterView(self.store)
        self.trust = NodeTrust(generate_identity(1), self.view)

    async def register(self, identity: NodeIdentity) -> Broker:
        await register_broker(
            self.store,
            broker_id=identity.broker_id,
            incarnation=uuid4(),
            endpoints=(BrokerEndpoint(NODE, "127.0.0.1", 1),),
            rack=None,
            certificate=identity.certificate,
        )
        await self.view.refresh()
        return self.view.image.brokers[identity.broker_id]


@pytest.fixture
async def world() -> World:
    world = World()
    await ensure_cluster(world.store)
    return world


async def test_a_certificate_is_its_brokers_until_another_process_registers(world: World) -> None:
    first, second = generate_identity(2), generate_identity(2)
    assert world.trust.broker_of(first.certificate) is None
    await world.register(first)
    assert world.trust.broker_of(first.certificate) == 2
    await world.register(second)
    assert world.trust.broker_of(first.certificate) is None
    assert world.trust.broker_of(second.certificate) == 2


async def test_one_damaged_certificate_takes_no_other_away(world: World) -> None:
    known = generate_identity(2)
    await world.register(known)
    broken = await world.register(generate_identity(3))
    for text in ("not base64", "bm8gY2VydGlmaWNhdGU="):
        await world.store.commit([put(dataclasses.replace(broken, certificate=text))])
        await world.view.refresh()
        broken = world.view.image.brokers[3]
        assert world.trust.client_context(broken, encrypts=True) is None
        assert world.trust.broker_of(known.certificate) == 2
        assert world.trust.broker_of(b"no certificate") is None
        assert shakes_hands(world.trust, known)


async def test_contexts_are_made_once_for_an_image(world: World) -> None:
    broker = await world.register(generate_identity(2))
    context, client_context = world.trust.server_context(), world.trust.client_context
    assert client_context(broker, encrypts=True) is client_context(broker, encrypts=True)
    await world.store.commit([])
    await world.view.refresh()
    assert world.trust.server_context() is context
    for _ in range(SPARE_CERTIFICATES):
        identity = generate_identity(3)
        await world.register(identity)
        assert shakes_hands(world.trust, identity)
        assert world.trust.server_context() is context
    # Those that were replaced are let go now and then.
    for _ in range(SPARE_CERTIFICATES):
        await world.register(generate_identity(3))
        last = world.trust.server_context()
    assert last is not context
    assert 2 <= last.cert_store_stats()["x509"] <= 2 * 2 + SPARE_CERTIFICATES


async def test_a_session_acts_as_its_broker_while_the_image_has_its_certificate(
    world: World,
) -> None:
    nodes = NodeSessions(world.trust)
    stop = nodes.start(world.view)
    identity = generate_identity(2)
    await world.register(identity)
    session, other = a_session(1, listener=NODE), a_session(2, listener=NODE)
    nodes.admit(session, identity.certificate)
    nodes.admit(other, identity.certificate)
    assert (session.node_id, str(session.principal)) == (2, "Node:2")
    other.closed()
    await world.register(generate_identity(3))
    assert (session.node_id, session.principal) == (2, Principal("Node", "2"))
    await world.register(generate_identity(2))
    assert (session.node_id, session.principal) == (NO_NODE, ANONYMOUS)
    assert other.node_id == 2  # It was closed before.
    with pytest.raises(PermissionError, match="no broker of this cluster"):
        nodes.admit(a_session(3, listener=NODE), identity.certificate)
    stop()


def shakes_hands(trust: NodeTrust, client: NodeIdentity) -> bool:
    """Whether the node accepts the client, and the client it."""
    ways = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_end = trust.server_context().wrap_bio(*ways, server_side=True)
    client_end = client.client_context([trust.identity.certificate]).wrap_bio(*reversed(ways))
    for _ in range(4):
        for end in (client_end, server_end):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return server_end.getpeercert(binary_form=True) == client.certificate

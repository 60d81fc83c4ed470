"""A cluster's control plane without sockets: real store, real handlers, requests as bytes."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.serial import entity_writer
from tidelog_core.admin.security.delegation_tokens import DelegationTokenAdmin, TokenTimes
from tidelog_core.config import NodeConfig
from tidelog_core.message_reader import read_from
from tidelog_core.message_schemas import load_request_schema, load_response_schema
from tidelog_core.metadata import records
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.node_config import LiveNodeConfig
from tidelog_core.metadata.records import Broker, Cluster
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.security.delegation_tokens import TokenSecret
from tidelog_node.handlers.admin.client_quotas import QuotaHandlers
from tidelog_node.handlers.admin.configs import ConfigHandlers
from tidelog_node.handlers.admin.elections import ElectionHandlers
from tidelog_node.handlers.admin.reassignments import ReassignmentHandlers
from tidelog_node.handlers.admin.topics import TopicHandlers
from tidelog_node.handlers.chain_store_check import ChainStoreCheck
from tidelog_node.handlers.cluster.describe_cluster import ClusterHandlers
from tidelog_node.handlers.cluster.find_coordinator import FindCoordinatorHandlers
from tidelog_node.handlers.cluster.metadata import MetadataHandlers
from tidelog_node.handlers.security.acls import AclHandlers
from tidelog_node.handlers.security.delegation_tokens import DelegationTokenHandlers
from tidelog_node.handlers.security.scram_users import ScramUserHandlers
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import Route
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.wire.messages import build, read_request, write_response

from tests.support.node_context import Alone, node_context
from tests.support.request_contexts import a_session, context_of

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
NOW_MS = 1_700_000_000_000


class Node:
    """One node's handlers over the shared store."""

    def __init__(self, store: SqliteMetadataStore, broker_id: int, static: NodeConfig) -> None:
        self.store = store
        self.view = ClusterView(store, shows_security=True)
        self.broker_id = broker_id
        self.static = static
        self.membership = membership = Alone(broker_id)
        self.peers = membership.peers
        node = node_context(
            store,
            self.view,
            broker_id=broker_id,
            static_config=static,
            config=LiveNodeConfig(static, self.view, broker_id),
            membership=membership,
            clock_ms=lambda: NOW_MS,
        )
        self.counters = node.counters
        throttle = Throttle(self.view, static, clock_ns=lambda: NOW_MS * 1_000_000)
        throttle.start(self.view)
        self.chain_store = chain_store = ChainStoreCheck()
        routes: Iterable[Route] = [
            *MetadataHandlers(
                node, throttle=throttle, access=None, chain_store=chain_store
            ).routes(),
            *TopicHandlers(node, throttle=throttle, access=None, chain_store=chain_store).routes(),
            *ConfigHandlers(node, chain_store=chain_store).routes(),
            *ScramUserHandlers(node).routes(),
            *AclHandlers(node).routes(),
            *QuotaHandlers(node, throttle=throttle).routes(),
            *ClusterHandlers(node).routes(),
            *FindCoordinatorHandlers(node).routes(),
            *ElectionHandlers(node).routes(),
            *ReassignmentHandlers(node).routes(),
            *DelegationTokenHandlers(_token_admin(node)).routes(),
        ]
        self.session = a_session()
        self.client_id = b"test"
        self._routes = {
            (route.api_key, version): route
            for route in routes
            for version in range(route.min_version, route.max_version + 1)
        }

    async def handle(self, api_key: int, version: int, request: object) -> object:
        """Have a request of the newest class handled, as if it were of this version."""
        context = context_of(
            version, api_key=api_key, client_id=self.client_id, session=self.session
        )
        return await self.route(api_key, version).handle(request, context)

    def route(self, api_key: int, version: int) -> Route:
        """Return the route of this version."""
        return self._routes[api_key, version]

    def replace(self, route: Route, version: int) -> None:
        """Have this route answer requests of this version."""
        self._routes[route.api_key, version] = route

    async def ask(self, api_key: int, version: int, **fields: object) -> Any:
        """Send a request of this version through the wire formats; return the answer's."""
        request_class: Any = load_request_schema(api_key, version)
        buffer = io.BytesIO()
        entity_writer(request_class)(buffer, make(request_class, fields))
        newest = load_request_schema(api_key, self.route(api_key, version).max_version)
        request = read_request(api_key, version, buffer.getvalue(), newest=newest)
        response: Any = await self.handle(api_key, version, request)
        data = (
            response if isinstance(response, bytes) else write_response(api_key, version, response)
        )
        # kio's own reader takes no -1 for a time, which answers about tokens have.
        answer, end = read_from(load_response_schema(api_key, version), data, 0)
        assert end == len(data)
        return answer


def _token_admin(node: NodeContext) -> DelegationTokenAdmin:
    config = node.static_config
    key = config.delegation_token_secret_key
    return DelegationTokenAdmin(
        node.store,
        node.view,
        secret=TokenSecret(key) if key else None,
        times=TokenTimes(
            config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms
        ),
        clock_ms=node.clock_ms,
    )


def make(cls: Any, fields: dict[str, Any]) -> Any:
    """Return a kio entity from nested dicts and lists."""
    import typing

    hints = typing.get_type_hints(cls)
    return build(cls, **{name: _convert(hints[name], value) for name, value in fields.items()})


def _convert(hint: Any, value: Any) -> Any:
    import typing

    arguments = [a for a in typing.get_args(hint) if a not in (type(None), Ellipsis)]
    if isinstance(value, dict):
        return make(hint if dataclasses.is_dataclass(hint) else arguments[0], value)
    if isinstance(value, list | tuple):
        origin = typing.get_origin(hint)
        inner = hint if origin is tuple else next(a for a in arguments if typing.get_args(a))
        (element, *_) = typing.get_args(inner)
        return tuple(_convert(element, part) for part in value)
    return value


@asynccontextmanager
async def cluster(
    path: Path, *, nodes: int = 1, static: NodeConfig | None = None, racks: bool = False
) -> AsyncIterator[list[Node]]:
    """Run a cluster of registered brokers 1..n on the database at ``path``."""
    store = SqliteMetadataStore(path / "metadata.db")
    await store.commit([records.put(Cluster(cluster_id=CLUSTER_ID))])
    members = []
    for broker_id in range(1, nodes + 1):
        broker = Broker(
            broker_id=broker_id,
            incarnation=UUID(int=broker_id),
            endpoints=plaintext_endpoints(f"host-{broker_id}", 9000 + broker_id),
            rack=f"rack-{broker_id % 2}" if racks else None,
        )
        await store.commit([records.put(broker)])
        members.append(Node(store, broker_id, NodeConfig() if static is None else static))
    for node in members:
        await node.view.refresh()
    try:
        yield members
    finally:
        await store.close()

"""Builds the handlers, the dispatch table and the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tidelog_core.audit.events import AUDIT_TOPIC, AuditKind
from tidelog_core.clock import monotonic_ms
from tidelog_core.security.authorization import Authorizer
from tidelog_core.setting_values.authorizer import parse_super_users

from tidelog_node.assembly.cluster import Cluster
from tidelog_node.assembly.control import ControlHandlers
from tidelog_node.assembly.coordination import Coordination
from tidelog_node.assembly.logs import Logs
from tidelog_node.authentication.login_log import LoginLog
from tidelog_node.authorization.access import Access
from tidelog_node.authorization.denial_log import DenialLog
from tidelog_node.connections.listener_transports import ListenerTransports
from tidelog_node.connections.server import LoginFactory, Server
from tidelog_node.connections.tls_transport import TlsBuffers
from tidelog_node.connections.transport import TransportFactory, plain_transport
from tidelog_node.dispatch import Dispatch
from tidelog_node.groups.share.partitions import SharePartitions
from tidelog_node.groups.share.service import ShareService
from tidelog_node.handlers.admin.topics import TopicHandlers
from tidelog_node.handlers.chain_store_check import ChainStoreCheck
from tidelog_node.handlers.cluster.api_versions import ApiVersionsHandler
from tidelog_node.handlers.cluster.metadata import MetadataHandlers
from tidelog_node.handlers.fetch.handler import FetchHandler
from tidelog_node.handlers.produce.diskless_admission import DisklessAdmission
from tidelog_node.handlers.produce.handler import ProduceHandler
from tidelog_node.handlers.share.acknowledge import ShareAcknowledgeHandler
from tidelog_node.handlers.share.fetch import ShareFetchHandler
from tidelog_node.node_context import NodeContext
from tidelog_node.replication.closest import RackAwareness
from tidelog_node.requests.node_sessions import NodeSessions
from tidelog_node.requests.routes import Route
from tidelog_node.settings import NodeSettings
from tidelog_node.throttling.connection_limits import ConnectionLimits
from tidelog_node.throttling.share_exchange import ShareExchange
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.transactions.produce_gate import ProduceGate
from tidelog_node.wire import gateway_append

if TYPE_CHECKING:
    from tidelog_node.audit.audit_log import AuditLog
    from tidelog_node.audit.publisher import AuditPublisher
    from tidelog_node.audit.transfers import TransferRecorder
    from tidelog_node.authentication.issuer_keys import IssuerKeys
    from tidelog_node.authentication.token_expiry import TokenExpiry
    from tidelog_node.client_metrics.forwarder import Forwarder


@dataclass(frozen=True, slots=True)
class Serving:
    """The server, which has no address yet, and the handlers whose requests may wait."""

    server: Server
    dispatch: Dispatch
    produce: ProduceHandler
    gate: ProduceGate  # of its transactions
    admission: DisklessAdmission  # of its requests
    chain_store: ChainStoreCheck  # of topics that are created
    fetch: FetchHandler
    share_fetch: ShareFetchHandler
    share_exchange: ShareExchange | None  # of quotas, if they are those of the cluster
    issuer_keys: IssuerKeys | None  # if clients may log in with tokens of an issuer
    token_expiry: TokenExpiry | None  # if clients may log in with delegation tokens
    audit: AuditPublisher | None  # if events are recorded
    client_metrics: Forwarder | None  # if clients may push their metrics
    access: Access | None  # the rights of clients; ``None``: there is no authorizer
    logins: LoginLog

    def background(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the work of the parts that have any, for as long as the node runs."""
        for part in (
            self.issuer_keys,
            self.token_expiry,
            self.share_exchange,
            self.audit,
            self.client_metrics,
        ):
            if part is not None:
                yield part.run()


def build_serving(
    stack: AsyncExitStack,
    cluster: Cluster,
    logs: Logs,
    coordination: Coordination,
    *,
    settings: NodeSettings,
) -> Serving:
    """Return the server and its handlers; the stack closes the dispatch table's resources."""
    node = cluster.node
    audit = _audit_log(node)
    access = _access(node, audit)
    throttle = Throttle(
        node.view, node.static_config, clock_ns=time.monotonic_ns, counters=node.counters
    )
    stack.callback(throttle.start(node.view))
    admission, chain_store = DisklessAdmission(), ChainStoreCheck()
    gate = ProduceGate(coordination.verifier)
    produce = ProduceHandler(
        node,
        admission=admission,
        replicas=logs.replicas,
        flusher=logs.flusher,
        inspector=logs.inspector,
        gate=gate,
        access=access,
        throttle=throttle,
        record=_recorder_of(audit, AuditKind.PRODUCE, node),
    )
    fetch = FetchHandler(
        node,
        replicas=logs.replicas,
        closest=RackAwareness(node),
        access=access,
        throttle=throttle,
        record=_recorder_of(audit, AuditKind.CONSUME, node),
    )
    share_service = _start_share_service(stack, node, logs)
    share_fetch = ShareFetchHandler(
        node,
        service=share_service,
        access=access,
        throttle=throttle,
        record=_recorder_of(audit, AuditKind.CONSUME, node),
    )
    hot = [produce.hot_route(), fetch.hot_route(), share_fetch.hot_route()]
    handlers = ControlHandlers(
        cluster,
        logs,
        coordination,
        access,
        throttle,
        chain_store,
        data_dir=settings.data_dir,
    )
    control: list[Route] = [
        *MetadataHandlers(node, access=access, throttle=throttle, chain_store=chain_store).routes(),
        *TopicHandlers(node, access=access, throttle=throttle, chain_store=chain_store).routes(),
        *ShareAcknowledgeHandler(service=share_service).routes(),
    ]
    for late in handlers.late():
        control += late.routes()
    if node.static_config.diskless_gateways_enable:
        control = _relayed(stack, node, logs, control)
    forwarder, push_routes = _client_metrics(stack, node)
    control += push_routes
    # Its handler comes with the first diskless topic, and other nodes ask once.
    for_nodes = {gateway_append.API_KEY: (0, gateway_append.VERSION_MAX)}
    control += ApiVersionsHandler(hot, control, for_nodes=for_nodes).routes()
    exchange = _share_exchange(node, throttle)
    if exchange is not None:
        hot.append(exchange.hot_route())
    dispatch = Dispatch(
        hot,
        _watched(control, node, access, audit),
        elements_max=node.static_config.socket_request_max_elements,
        partitions_max=node.static_config.socket_request_max_partitions,
        throttle=throttle,
        counters=node.counters,
    )
    stack.callback(dispatch.close)
    log = LoginLog(audit)
    logins = _logins(cluster, dispatch, settings, log)
    return Serving(
        _server(stack, cluster, dispatch, settings, log=log, begin_login=logins.begin),
        dispatch,
        produce,
        gate,
        admission,
        chain_store,
        fetch,
        share_fetch,
        share_exchange=exchange,
        issuer_keys=logins.issuer_keys,
        token_expiry=logins.token_expiry,
        audit=_publisher(node, audit),
        client_metrics=forwarder,
        access=access,
        logins=log,
    )


def _server(
    stack: AsyncExitStack,
    cluster: Cluster,
    dispatch: Dispatch,
    settings: NodeSettings,
    *,
    log: LoginLog,
    begin_login: LoginFactory,
) -> Server:
    """Return the server, with the node's limits and the transports of its listeners."""
    node, config = cluster.node, cluster.node.static_config
    nodes = NodeSessions(cluster.trust)
    stack.callback(nodes.start(node.view))
    buffers = cache(TlsBuffers)  # made for the first connection with TLS
    return Server(
        dispatch,
        request_bytes_max=config.socket_request_max_bytes,
        queued_requests_max=config.queued_max_requests,
        queued_request_bytes_max=config.queued_max_request_bytes,
        frame_seconds_max=config.queued_request_receive_timeout_ms / 1000,
        idle_seconds_max=config.connections_max_idle_ms / 1000,
        send_buffer_bytes=config.socket_send_buffer_bytes,
        nodes_listener=settings.listeners.nodes.name,
        make_transport=ListenerTransports(
            settings.listeners.nodes.name,
            trust=cluster.trust,
            nodes=nodes,
            buffers=buffers,
            of_clients=_client_transports(stack, cluster, settings, log, buffers),
        ),
        begin_login=begin_login,
        limits=ConnectionLimits(
            node.config,
            node.view,
            listeners={one.name: one.config for one in settings.listeners.clients},
            nodes_listener=settings.listeners.nodes.name,
            clock_ms=monotonic_ms,
        ),
        counters=node.counters,
    )


# What follows imports what only some nodes use, so that the others need not.


@dataclass(frozen=True, slots=True)
class _Logins:
    """The login service of the listeners with SASL, and the tasks that keep tokens up to date."""

    begin: LoginFactory
    issuer_keys: IssuerKeys | None = None
    token_expiry: TokenExpiry | None = None


def _logins(cluster: Cluster, dispatch: Dispatch, settings: NodeSettings, log: LoginLog) -> _Logins:
    """Return how clients log in, if they do at any listener."""
    has_sasl = any(one.protocol.has_sasl for one in settings.listeners.clients)
    if not has_sasl and cluster.token_secret is None:
        return _Logins(lambda _, __: None)
    from tidelog_node.assembly import logins

    node = cluster.node
    keys = logins.token_issuer_keys(node, settings)
    service = logins.build_login_service(cluster, dispatch, settings, logins=log, issuer_keys=keys)
    if cluster.token_secret is None:
        return _Logins(service.begin, keys)
    expiry = logins.token_expiry(node, logins.token_admin(cluster))
    return _Logins(service.begin, keys, expiry)


def _client_transports(
    stack: AsyncExitStack,
    cluster: Cluster,
    settings: NodeSettings,
    log: LoginLog,
    buffers: Callable[[], TlsBuffers],
) -> TransportFactory:
    """Return what makes the transports of clients."""
    if cluster.tls is None:
        return plain_transport
    from tidelog_node.assembly.tls_clients import build_tls_clients

    return build_tls_clients(
        stack, settings.listeners, tls=cluster.tls, logins=log, buffers=buffers
    )


def _relayed(
    stack: AsyncExitStack, node: NodeContext, logs: Logs, routes: Iterable[Route]
) -> list[Route]:
    """Return the routes; some of them ask leaders in other zones first."""
    from tidelog_node.dialing.peers import Peers
    from tidelog_node.handlers.leader_relay import LeaderRelay

    peers = Peers(node.view, node.dialer)
    stack.push_async_callback(peers.close)
    return list(LeaderRelay(node, replicas=logs.replicas, peers=peers).wrap(routes))


def _client_metrics(
    stack: AsyncExitStack, node: NodeContext
) -> tuple[Forwarder | None, list[Route]]:
    """Return the forwarder and the routes of clients' metrics, if the node forwards them."""
    if not node.static_config.client_metrics_otlp_endpoint:
        return None, []
    from tidelog_node.assembly.client_metrics import build_client_metrics

    made = build_client_metrics(stack, node)
    return made.forwarder, made.routes


def _watched(
    routes: list[Route], node: NodeContext, access: Access | None, audit: AuditLog | None
) -> list[Route]:
    """Return the routes wrapped in their guards, recorders and tracers."""
    if access is not None:
        from tidelog_node.authorization.guarded_routes import guard_routes

        routes = guard_routes(routes, access, node.view)
    if audit is not None:
        from tidelog_node.audit.audited_routes import audit_routes

        routes = audit_routes(routes, audit, is_mandatory=node.static_config.audit_mandatory)
    if node.tracer is not None:
        from tidelog_node.requests.traced_routes import trace_routes

        routes = trace_routes(routes, node.tracer)
    return routes


def _publisher(node: NodeContext, audit: AuditLog | None) -> AuditPublisher | None:
    """Return the writer of audit events, ``None`` if none are recorded."""
    if audit is None:
        return None
    from tidelog_node.audit.publisher import AuditPublisher
    from tidelog_node.handlers.administration import topic_admin

    count = node.static_config.audit_topic_num_partitions
    return AuditPublisher(node, audit, topic_admin(node), partition_count=count)


def _share_exchange(node: NodeContext, throttle: Throttle) -> ShareExchange | None:
    """Return the exchange of the nodes' parts of quotas, if these are those of the cluster."""
    if node.static_config.quota_scope != "cluster":
        return None
    shares = throttle.share(
        node.broker_id,
        live=lambda: node.membership.live_brokers(node.view.image).keys(),
        now=time.monotonic,
    )
    return ShareExchange(node, throttle, shares)


def _audit_log(node: NodeContext) -> AuditLog | None:
    """Return the events of the node, ``None`` if none are recorded."""
    config = node.static_config
    if not config.audit_enable:
        return None
    from tidelog_node.audit.audit_log import AuditLog

    return AuditLog(
        map(AuditKind, config.audit_event_types),
        clock_ms=node.clock_ms,
        excluded=config.audit_excluded_principals,
        is_dry_run=config.authorizer_dry_run,
    )


def _recorder_of(
    audit: AuditLog | None, kind: AuditKind, node: NodeContext
) -> TransferRecorder | None:
    """Return the recorder of produces or fetches, ``None`` if they are not recorded."""
    if audit is None or not audit.wants(kind):
        return None
    from tidelog_node.audit.transfers import TransferRecorder

    return TransferRecorder(audit, kind, node.view)


def _access(node: NodeContext, audit: AuditLog | None) -> Access | None:
    """Return the rights of clients, ``None`` if the node has no authorizer."""
    config = node.static_config
    if not config.authorizer_class_name:
        return None
    super_users = parse_super_users(config.super_users)
    authorizer = Authorizer(super_users, allows_without_acls=config.allow_everyone_if_no_acl_found)
    denials = DenialLog(
        is_dry_run=config.authorizer_dry_run,
        record=None if audit is None else audit.note_denied,
        counters=node.counters,
    )
    protected = frozenset[str]() if audit is None else frozenset({AUDIT_TOPIC})
    return Access(authorizer, node.view, denials=denials, protected=protected)


def _start_share_service(stack: AsyncExitStack, node: NodeContext, logs: Logs) -> ShareService:
    """Start the service that keeps the share-group state of led partitions."""
    partitions = SharePartitions(node, replicas=logs.replicas, inspector=logs.inspector)
    partitions.start()
    stack.push_async_callback(partitions.close)
    service = ShareService(node, replicas=logs.replicas, partitions=partitions)
    stack.push_async_callback(service.close)
    return service

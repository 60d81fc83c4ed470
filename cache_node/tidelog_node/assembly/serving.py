"""Builds the handlers, the dispatch table and the server."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidelog_core.audit.events import AUDIT_TOPIC, AuditKind
from tidelog_core.authorizer_settings import parse_super_users
from tidelog_core.clock import monotonic_ms
from tidelog_core.security.authorization import Authorizer

from tidelog_node.assembly.client_metrics import build_client_metrics
from tidelog_node.assembly.cluster import Cluster
from tidelog_node.assembly.logins import (
    build_login_desk,
    token_admin,
    token_expiry,
    token_issuer_keys,
)
from tidelog_node.assembly.logs import Logs
from tidelog_node.assembly.transactions import Transactions
from tidelog_node.audit.audit_log import AuditLog
from tidelog_node.audit.audited_routes import audit_routes
from tidelog_node.audit.publisher import AuditPublisher
from tidelog_node.audit.transfers import TransferRecorder
from tidelog_node.authentication.issuer_keys import IssuerKeys
from tidelog_node.authentication.login_log import LoginLog
from tidelog_node.authentication.token_expiry import TokenExpiry
from tidelog_node.authorization.access import Access
from tidelog_node.authorization.denial_log import DenialLog
from tidelog_node.authorization.guarded_routes import guard_routes
from tidelog_node.client_metrics.forwarder import Forwarder
from tidelog_node.connections.listener_transports import ListenerTransports
from tidelog_node.connections.read_watch import ReadWatch
from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.share_offsets import ShareOffsets
from tidelog_node.dispatch import Dispatch
from tidelog_node.groups.share.partitions import SharePartitions
from tidelog_node.groups.share.service import ShareService
from tidelog_node.handlers.acls import AclHandlers
from tidelog_node.handlers.administration import cluster_admin
from tidelog_node.handlers.alter_log_dirs import AlterLogDirsHandler
from tidelog_node.handlers.api_versions import ApiVersionsHandler
from tidelog_node.handlers.chain_store_check import ChainStoreCheck
from tidelog_node.handlers.client_quotas import QuotaHandlers
from tidelog_node.handlers.cluster import ClusterHandlers
from tidelog_node.handlers.configs import ConfigHandlers
from tidelog_node.handlers.controllers import ControllerHandlers
from tidelog_node.handlers.delegation_tokens import DelegationTokenHandlers
from tidelog_node.handlers.delete_records import DeleteRecordsHandler
from tidelog_node.handlers.diskless_admission import DisklessAdmission
from tidelog_node.handlers.elections import ElectionHandlers
from tidelog_node.handlers.fetch import FetchHandler
from tidelog_node.handlers.find_coordinator import FindCoordinatorHandlers
from tidelog_node.handlers.gateway_append import GatewayAppends
from tidelog_node.handlers.groups import GroupHandlers
from tidelog_node.handlers.leader_epoch import LeaderEpochHandler
from tidelog_node.handlers.leader_relay import LeaderRelay
from tidelog_node.handlers.list_offsets import ListOffsetsHandler
from tidelog_node.handlers.log_dirs import LogDirsHandler
from tidelog_node.handlers.metadata import MetadataHandlers
from tidelog_node.handlers.offsets import OffsetHandlers
from tidelog_node.handlers.produce import ProduceHandler
from tidelog_node.handlers.producer_ids import ProducerIdHandlers
from tidelog_node.handlers.producers import ProducersHandler
from tidelog_node.handlers.reassignments import ReassignmentHandlers
from tidelog_node.handlers.roles import RoleHandlers
from tidelog_node.handlers.sasl import SaslHandlers
from tidelog_node.handlers.scram_users import ScramUserHandlers
from tidelog_node.handlers.share_acknowledge import ShareAcknowledgeHandler
from tidelog_node.handlers.share_fetch import ShareFetchHandler
from tidelog_node.handlers.share_offsets import ShareOffsetHandlers
from tidelog_node.handlers.topics import TopicHandlers
from tidelog_node.handlers.transactions import TransactionHandlers
from tidelog_node.node_context import NodeContext
from tidelog_node.node_sessions import NodeSessions
from tidelog_node.replication.closest import RackAwareness
from tidelog_node.routes import Route
from tidelog_node.security.kernel_tls import listeners_with_kernel_tls
from tidelog_node.server import Server
from tidelog_node.settings import NodeSettings
from tidelog_node.throttling.connection_limits import ConnectionLimits
from tidelog_node.throttling.share_exchange import ShareExchange
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.traced_routes import trace_routes
from tidelog_node.transactions.peers import Peers
from tidelog_node.transactions.produce_gate import ProduceGate


@dataclass(frozen=True, slots=True)
class Serving:
    """The server, which has no address yet, and the handlers whose requests may wait."""

    server: Server
    produce: ProduceHandler
    admission: DisklessAdmission  # of its requests
    chain_store: ChainStoreCheck  # of topics that are created
    fetch: FetchHandler
    share_fetch: ShareFetchHandler
    gateway_appends: GatewayAppends  # of other nodes
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
    groups: GroupCoordinator,
    transactions: Transactions,
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
    gate = ProduceGate(transactions.verifier)
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
    tokens = token_admin(cluster)
    hot = [produce.hot_route(), fetch.hot_route(), share_fetch.hot_route()]
    control = [
        *_control_routes(
            node,
            logs,
            groups,
            transactions,
            access=access,
            throttle=throttle,
            chain_store=chain_store,
            data_dir=settings.data_dir,
        ),
        *ShareAcknowledgeHandler(service=share_service).routes(),
        *SaslHandlers().routes(),
        *DelegationTokenHandlers(tokens).routes(),
    ]
    if node.static_config.diskless_gateways_enable:
        peers = Peers(node)
        stack.push_async_callback(peers.close)
        control = list(LeaderRelay(node, replicas=logs.replicas, peers=peers).wrap(control))
    client_metrics = build_client_metrics(stack, node)
    control += client_metrics.routes
    control += ApiVersionsHandler(hot, control).routes()
    gateway_appends = GatewayAppends(node, replicas=logs.replicas, gate=gate)
    hot.append(gateway_appends.hot_route())
    exchange = _share_exchange(node, throttle)
    if exchange is not None:
        hot.append(exchange.hot_route())
    if access is not None:
        control = guard_routes(control, access, node.view)
    config = node.static_config
    publisher: AuditPublisher | None = None
    if audit is not None:
        control = audit_routes(control, audit, is_mandatory=config.audit_mandatory)
        publisher = AuditPublisher(
            node,
            audit,
            cluster_admin(node),
            partition_count=config.audit_topic_num_partitions,
        )
    if node.tracer is not None:
        control = trace_routes(control, node.tracer)
    dispatch = Dispatch(
        hot,
        control,
        elements_max=config.socket_request_max_elements,
        partitions_max=config.socket_request_max_partitions,
        throttle=throttle,
        counters=node.counters,
    )
    stack.callback(dispatch.close)
    logins = LoginLog(audit)
    issuer_keys = token_issuer_keys(node, settings)
    nodes = NodeSessions(cluster.trust)
    stack.callback(nodes.start(node.view))
    server = Server(
        dispatch,
        request_bytes_max=config.socket_request_max_bytes,
        queued_requests_max=config.queued_max_requests,
        queued_request_bytes_max=config.queued_max_request_bytes,
        frame_seconds_max=config.queued_request_receive_timeout_ms / 1000,
        idle_seconds_max=config.connections_max_idle_ms / 1000,
        send_buffer_bytes=config.socket_send_buffer_bytes,
        make_transport=ListenerTransports(
            settings.listeners,
            tls=cluster.tls,
            trust=cluster.trust,
            nodes=nodes,
            logins=logins,
            kernel_tls=_start_kernel_tls(stack, settings),
        ),
        begin_login=build_login_desk(
            cluster, dispatch, settings, logins=logins, issuer_keys=issuer_keys
        ).begin,
        limits=ConnectionLimits(
            node.config,
            node.view,
            listeners={one.name: one.config for one in settings.listeners.clients},
            nodes_listener=settings.listeners.nodes.name,
            clock_ms=monotonic_ms,
        ),
        counters=node.counters,
    )
    expiry = None if cluster.token_secret is None else token_expiry(node, tokens)
    return Serving(
        server,
        produce,
        admission,
        chain_store,
        fetch,
        share_fetch,
        gateway_appends=gateway_appends,
        share_exchange=exchange,
        issuer_keys=issuer_keys,
        token_expiry=expiry,
        audit=publisher,
        client_metrics=client_metrics.forwarder,
        access=access,
        logins=logins,
    )


def _start_kernel_tls(stack: AsyncExitStack, settings: NodeSettings) -> dict[str, ReadWatch]:
    """Return the listeners with kernel TLS, and the watch of their connections' reads."""
    names = listeners_with_kernel_tls(settings.listeners.clients)
    if not names:
        return {}
    watch = ReadWatch()
    stack.callback(watch.close)
    return dict.fromkeys(names, watch)


def _share_exchange(node: NodeContext, throttle: Throttle) -> ShareExchange | None:
    """Return the exchange of the nodes' parts of quotas, if these are those of the cluster."""
    if node.static_config.quota_scope != "cluster":
        return None
    shares = throttle.share(
        node.broker_id,
        live=lambda: node.standing.live_brokers(node.view.image).keys(),
        now=time.monotonic,
    )
    return ShareExchange(node, throttle, shares)


def _audit_log(node: NodeContext) -> AuditLog | None:
    """Return the events of the node, ``None`` if none are recorded."""
    config = node.static_config
    if not config.audit_enable:
        return None
    return AuditLog(
        map(AuditKind, config.audit_event_types),
        clock_ms=node.clock_ms,
        excluded=config.audit_excluded_principals,
        is_dry_run=config.authorizer_dry_run,
    )


def _recorder_of(
    audit: AuditLog | None, kind: AuditKind, node: NodeContext
) -> TransferRecorder | None:
    """Return what records that clients produce or consume, ``None`` if that is not recorded."""
    if audit is None or not audit.wants(kind):
        return None
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


def _control_routes(
    node: NodeContext,
    logs: Logs,
    groups: GroupCoordinator,
    transactions: Transactions,
    *,
    access: Access | None,
    throttle: Throttle,
    chain_store: ChainStoreCheck,
    data_dir: Path,
) -> Iterator[Route]:
    """Yield the routes outside the hot path."""
    replicas, coordinator = logs.replicas, transactions.coordinator
    find_coordinator = FindCoordinatorHandlers(node)
    handlers = (
        MetadataHandlers(node, access=access, throttle=throttle, chain_store=chain_store),
        TopicHandlers(node, access=access, throttle=throttle, chain_store=chain_store),
        ConfigHandlers(node, chain_store=chain_store),
        ScramUserHandlers(node),
        AclHandlers(node),
        RoleHandlers(node),
        QuotaHandlers(node, throttle=throttle),
        ClusterHandlers(node),
        find_coordinator,
        GroupHandlers(coordinator=groups, access=access),
        ShareOffsetHandlers(node, offsets=ShareOffsets(node, coordinator=groups)),
        OffsetHandlers(
            node,
            coordinator=groups,
            transactional=transactions.offsets,
            verifier=transactions.verifier,
        ),
        ElectionHandlers(node),
        ReassignmentHandlers(node),
        ProducerIdHandlers(producer_ids=transactions.producer_ids, coordinator=coordinator),
        TransactionHandlers(
            node,
            coordinator=coordinator,
            writer=transactions.writer,
            ensure_shards=find_coordinator.ensure_shards,
        ),
        ProducersHandler(node, replicas=replicas),
        ListOffsetsHandler(node, replicas=replicas, inspector=logs.inspector),
        LeaderEpochHandler(node, replicas=replicas),
        LogDirsHandler(node, replicas=replicas, data_dir=data_dir),
        AlterLogDirsHandler(node, replicas=replicas, data_dir=data_dir),
        ControllerHandlers(),
        DeleteRecordsHandler(node, replicas=replicas),
    )
    for handler in handlers:
        yield from handler.routes()

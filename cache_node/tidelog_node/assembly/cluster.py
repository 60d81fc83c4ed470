"""Builds the first part of a node: data directory, stores, cluster membership."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tidelog_core.clock import steady_clock_ms, wall_clock_ms
from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.errors import InvalidConfig
from tidelog_core.metadata.endpoints import BrokerEndpoint
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.node_config import LiveNodeConfig
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.retention.clock_watch import ClockWatch, store_witness
from tidelog_core.security.delegation_tokens import TokenSecret

from tidelog_node.dialing.dialer import Dialer
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.logs.restore import UnrestoredLogs, restore_logs
from tidelog_node.membership.lease_thread import LeaseThread
from tidelog_node.membership.member import ClusterMember
from tidelog_node.membership.membership import new_membership
from tidelog_node.membership.registration import ensure_cluster, register_broker
from tidelog_node.node_context import NodeContext
from tidelog_node.node_health import NodeHealth
from tidelog_node.security.listeners import Listeners
from tidelog_node.security.node_identity import generate_identity
from tidelog_node.security.node_trust import NodeTrust
from tidelog_node.security.pem_reader import PemReader
from tidelog_node.security.token_secret import load_token_secret
from tidelog_node.settings import NodeSettings
from tidelog_node.tracing.tracer import Tracer

if TYPE_CHECKING:
    from tidelog_node.security.listener_tls import ListenerTls

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster as this node sees it, with the node's stores and data directory."""

    node: NodeContext
    trust: NodeTrust
    tls: ListenerTls | None  # ``None``: no listener for clients has TLS
    token_secret: TokenSecret | None  # None: there are no delegation tokens
    member: ClusterMember
    directories: LogDirectories
    unrestored: UnrestoredLogs
    clock_watch: ClockWatch
    stores: tuple[MetadataStore, ...]  # all that the node has open

    def background(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the work that keeps the view and certificates up to date while the node runs."""
        config = self.node.static_config
        yield self.node.view.run(config.metadata_poll_interval_ms / 1000)
        if self.tls is not None:
            yield self.tls.run(config.ssl_reload_interval_ms / 1000)

    async def register(self, endpoints: tuple[BrokerEndpoint, ...], *, rack: str | None) -> None:
        """Register this process in the cluster, and wait until the view shows it."""
        await register_broker(
            self.node.store,
            broker_id=self.node.broker_id,
            incarnation=self.node.incarnation,
            endpoints=endpoints,
            rack=rack,
            certificate=self.trust.identity.certificate,
        )
        await self.node.view.refresh()


async def open_cluster(
    settings: NodeSettings, stack: AsyncExitStack, tracer: Tracer | None = None
) -> Cluster:
    """Open directory and stores; on return every earlier process of this broker id has ended."""
    broker_id = settings.broker_id
    static_config = parse_config(NodeConfig, settings.config_overrides)
    directories = LogDirectories(settings.data_dir)
    stack.callback(directories.close)
    executor = ThreadPoolExecutor(static_config.background_threads, "tidelog-files")
    stack.callback(executor.shutdown)
    tls = await _listener_tls(settings.listeners, executor)
    token_secret = await load_token_secret(static_config, executor)
    store = open_metadata_store(settings.metadata_store_url, may_be_new=True)
    stack.push_async_callback(store.close)
    # Separate stores: lease readings must not queue behind other calls, and renewals must not wait
    # for this loop.
    lease_store = open_metadata_store(settings.metadata_store_url, may_be_new=True)
    stack.push_async_callback(lease_store.close)
    renewal_store = open_metadata_store(settings.metadata_store_url, may_be_new=True)
    lease_thread = LeaseThread()
    stack.push_async_callback(lease_thread.close)
    stack.push_async_callback(lambda: lease_thread.run(renewal_store.close()))
    known = await ensure_cluster(store, may_create=directories.is_new)
    directories.take_possession(known.cluster_id, broker_id)
    view = ClusterView(store, shows_security=True)
    await view.refresh()
    await _store_first_user(static_config, executor, store, view)
    config = LiveNodeConfig(static_config, view, broker_id)
    membership = new_membership(broker_id, config())
    clock_watch = ClockWatch(
        wall_ms=wall_clock_ms,
        steady_ms=steady_clock_ms,
        node_config=config,
        sources=[store_witness(store), membership.peer_clocks.witnesses],
        has_heard_all=lambda: membership.peer_clocks.have_heard(
            membership.live_brokers(view.image)
        ),
    )
    trust = NodeTrust(
        generate_identity(broker_id),
        view,
        encrypts=static_config.inter_broker_encryption_enable,
    )
    node = NodeContext(
        broker_id=broker_id,
        incarnation=uuid4(),
        static_config=static_config,
        config=config,
        store=store,
        view=view,
        membership=membership,
        dialer=Dialer(trust, listener=settings.listeners.nodes.name),
        executor=executor,
        health=NodeHealth(),
        clock_ms=wall_clock_ms,
        may_expire=clock_watch.may_expire,
        tracer=tracer,
    )
    member = ClusterMember(
        node,
        membership,
        lease_store=lease_store,
        renewal_store=renewal_store,
        run_renewals=lease_thread.run,
        ports=node.dialer,
    )
    await member.prepare(settings.data_dir, was_clean=directories.was_clean)
    unrestored = await restore_logs(
        store, view, directories, broker_id=broker_id, objects_url=settings.object_store_url
    )
    return Cluster(
        node,
        trust,
        tls,
        token_secret,
        member,
        directories,
        unrestored,
        clock_watch,
        stores=(store, lease_store, renewal_store),
    )


async def _listener_tls(listeners: Listeners, executor: Executor) -> ListenerTls | None:
    """Return the contexts of the listeners with TLS, if there are any. Raises ``InvalidConfig``."""
    if not any(one.protocol.has_tls for one in listeners.clients):
        return None
    # Only now: most nodes have none.
    from tidelog_node.assembly.tls_clients import load_listener_tls

    return await load_listener_tls(listeners, executor)


async def _store_first_user(
    config: NodeConfig, executor: Executor, store: MetadataStore, view: ClusterView
) -> None:
    """Store the user of ``bootstrap.admin.user`` if there is no such user.

    Raises ``InvalidConfig`` if the password cannot be read, and the store's errors.
    """
    user, location = config.bootstrap_admin_user, config.bootstrap_admin_password_location
    if not user or user in view.image.scram_users.by_user:
        return
    # Only now: few nodes need it, and none of them twice.
    from tidelog_core.admin.security.first_user import ensure_first_user

    if not location:
        raise InvalidConfig(["bootstrap.admin.user needs bootstrap.admin.password.location"])
    password = (await PemReader(executor).read(location)).strip()
    if not password:
        raise InvalidConfig([f"there is no password in {location}: write it there"])
    if await ensure_first_user(store, view, user, password):
        logger.info("first user stored", extra={"user": user})

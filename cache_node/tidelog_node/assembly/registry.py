"""Builds the schema registry of a node, if it has a port for one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from tidelog_core.errors import TidelogError
from tidelog_core.metadata.schema_records import schema_journal_key
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.objects.store import ObjectStore
from tidelog_core.software_version import tidelog_version

from tidelog_node.assembly.cluster import Cluster
from tidelog_node.assembly.serving import Serving
from tidelog_node.authentication.login_credentials import ImageCredentials
from tidelog_node.authentication.password_checks import PasswordChecks
from tidelog_node.counters import SchemaTraffic
from tidelog_node.http_serving.known_hosts import KnownHosts
from tidelog_node.monitoring.sources import Sources
from tidelog_node.security.listeners import is_loopback
from tidelog_node.settings import NodeSettings

if TYPE_CHECKING:
    from tidelog_core.schema_registry.journal.journal import RegistryJournal

    from tidelog_node.registry.callers import CallerDesk
    from tidelog_node.registry.http_server import RegistryServer

logger = logging.getLogger(__name__)

OPENING_SECONDS_MAX = 10.0
OPEN_HINT = "give its first listener the protocol SASL_SSL, or the registry a loopback address"


async def start_registry(
    settings: NodeSettings,
    stack: AsyncExitStack,
    cluster: Cluster,
    *,
    objects: ObjectStore,
    serving: Serving,
    sources: Sources | None,
) -> None:
    """Serve schemas until the stack is left. Raises ``OSError`` if the port is in use."""
    if settings.registry_port is None:
        return
    # Only now: a node without a registry does without aiohttp and its API.
    from tidelog_core.schema_registry.api.registry_api import RegistryApi
    from tidelog_core.schema_registry.journal.journal import RegistryJournal
    from tidelog_core.schema_registry.registry import SchemaRegistry

    from tidelog_node.registry.call_records import CallRecords
    from tidelog_node.registry.http_server import RegistryServer

    node = cluster.node
    listener = settings.listeners.clients[0]
    # One thread: schemas that take long to parse make each other wait, and nobody else.
    executor = ThreadPoolExecutor(1, "tidelog-schemas")
    stack.callback(executor.shutdown, wait=False, cancel_futures=True)

    journal = RegistryJournal(node.store, objects, node.view.image.cluster_id)
    stack.push_async_callback(journal.close)
    api = RegistryApi(
        SchemaRegistry(node.store, executor, committer=journal),
        cluster_id=node.view.image.cluster_id,
        version=tidelog_version(),
    )
    traffic = SchemaTraffic()
    audit = None if serving.audit is None else serving.audit.log
    server = RegistryServer(
        api,
        _desk(settings, cluster, serving),
        lambda: None if cluster.tls is None else cluster.tls.context(listener.name),
        hosts=KnownHosts.of(settings.host_names),
        records=CallRecords(traffic, audit, is_mandatory=node.static_config.audit_mandatory),
    )
    if sources is not None:
        from tidelog_node.monitoring.registry_source import RegistrySource

        source = RegistrySource(traffic, node.store, journal.health, clock=time.monotonic)
        sources.add(source.collect)
    stack.push_async_callback(server.close)
    host = settings.registry_host
    port = await server.bind(host, settings.registry_port)
    extra = {"host": host, "port": port, "listener": listener.name}
    if not is_loopback(host) and not listener.protocol.has_sasl:
        logger.warning(
            "schema registry is open to everyone who can reach it",
            extra={**extra, "hint": OPEN_HINT},
        )
    await _begin(journal, server, stack, node.store, extra)


def _desk(settings: NodeSettings, cluster: Cluster, serving: Serving) -> CallerDesk:
    """Return who finds out who calls: by the security of the node's first listener."""
    from tidelog_node.registry.callers import CallerDesk

    node = cluster.node

    def credentials() -> ImageCredentials:
        image = node.view.image
        return ImageCredentials(
            image.scram_users, image.delegation_tokens, cluster.token_secret, node.clock_ms
        )

    return CallerDesk(
        settings.listeners.clients[0],
        cluster.tls,
        passwords=PasswordChecks(credentials, node.executor),
        access=serving.access,
        logins=serving.logins,
    )


async def _begin(
    journal: RegistryJournal,
    server: RegistryServer,
    stack: AsyncExitStack,
    store: MetadataStore,
    address: Mapping[str, object],
) -> None:
    """Open the journal, and let clients in: at once if there is no journal yet."""
    is_open = asyncio.Event()
    is_new = await store.get(schema_journal_key()) is None
    if is_new:
        is_open.set()  # The first change makes the journal.
    opening = asyncio.create_task(_open(journal, store, is_open), name="schema journal")
    stack.push_async_callback(_end, opening)
    listening = asyncio.create_task(
        listen_once_open(server, is_open, address), name="schema registry"
    )
    stack.push_async_callback(_end, listening)
    if is_new:
        await listening


async def _open(journal: RegistryJournal, store: MetadataStore, is_open: asyncio.Event) -> None:
    """Write the missing entries of the bucket's journal: of older programs, and lost ones.

    The first change need not wait for the tier worker's start then.
    """
    try:
        await journal.adopt()
        if await store.get(schema_journal_key()) is None:
            await journal.warm_up()
            return
        await journal.begin()
        is_open.set()
        await journal.inspect()
    except TidelogError as error:
        extra = {"reason": str(error)}
        logger.warning("schemas are not all in the bucket; the next start tries again", extra=extra)
    except Exception:
        # Any failure: nobody reads the result of this task.
        logger.exception("opening the journal of schemas broke; the next start tries again")
    finally:
        is_open.set()


async def listen_once_open(
    server: RegistryServer, is_open: asyncio.Event, address: Mapping[str, object]
) -> None:
    """Let clients in once changes need not wait: until then they ask another node.

    If the bucket is away, reads are served all the same.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(OPENING_SECONDS_MAX):
            await is_open.wait()
    try:
        server.listen()
        logger.info("schema registry serves", extra=address)
    except OSError as error:
        extra = {**address, "reason": str(error), "hint": "end what uses the port, and restart"}
        logger.error("schema registry cannot listen", extra=extra)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

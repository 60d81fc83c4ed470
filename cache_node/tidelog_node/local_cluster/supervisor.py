"""``tidelog up``: several nodes of one cluster on one machine, under one parent.

Each node is a separate process with its own id, port and data directory; all share one
metadata store and one object store:

    <data dir>/metadata.db     the metadata store
    <data dir>/objects/        the object store
    <data dir>/node-<id>/      the logs of one node

One more process runs the functions (``tidelog_functions.local``): retention and scrub, called as
Lambda calls them when the cluster is deployed. Another is the console (``tidelog_console``), if it
is wanted: a web page that shows the cluster.

A process that ends by itself or is killed is restarted, with a growing delay; this is logged
on stderr, and the other processes continue. A node that ends before it was ready for the
first time ends the cluster: a restart would not help.

Each process watches its end of a pipe. The parent closes the pipes on SIGTERM and SIGINT, and
exits when every process has ended; if the parent is killed, the pipes are closed too. A node
that is stopped like this does not hand its partitions over first, because no node remains to
serve them. A node that gets SIGTERM itself does, and so does one that leaves because there shall be
fewer (``cluster_size``).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable

from tidelog_core.errors import BrokerNotAvailable

from tidelog_node.local_cluster.child_process import ChildProcess
from tidelog_node.local_cluster.cluster_settings import ClusterSettings, in_url
from tidelog_node.local_cluster.cluster_size import SizeServer
from tidelog_node.local_cluster.leaving_nodes import require_others
from tidelog_node.processes.ending_signals import on_ending_signals
from tidelog_node.settings import HTTP_ON

READY_ON = " ready on "  # before the address in the line of a process that is ready


def run_cluster(
    settings: ClusterSettings,
    *,
    announce: Callable[[str], None] = print,
    announce_console: Callable[[str], None] = print,
) -> int:
    """Run the cluster until a signal; return the exit status.

    ``announce`` gets one line when every node serves clients, ``announce_console`` then the
    console's URL, and each later one. 0: stopped by a signal, 1: a node ended before it was ready.
    """
    return asyncio.run(_run(settings, announce, announce_console))


async def _run(
    settings: ClusterSettings,
    announce: Callable[[str], None],
    announce_console: Callable[[str], None],
) -> int:
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    stop = asyncio.Event()
    with on_ending_signals(stop.set):
        return await _run_until(stop, settings, announce, announce_console)


async def _run_until(
    stop: asyncio.Event,
    settings: ClusterSettings,
    announce: Callable[[str], None],
    announce_console: Callable[[str], None],
) -> int:
    nodes = _Nodes(settings)
    functions = ChildProcess("functions", settings.functions_command(), ends_cluster=False)
    helpers = [functions]
    beside: list[asyncio.Task[None]] = []
    sizes = SizeServer(settings.data_dir, nodes)
    running = [nodes.start(number) for number in range(1, settings.node_count + 1)]
    stopping = asyncio.create_task(stop.wait())
    ready = asyncio.create_task(nodes.wait_ready())
    try:
        await asyncio.wait([stopping, ready, *running], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            last_port = settings.port + settings.node_count - 1
            host = in_url(settings.advertised_host or settings.host)
            addresses = ",".join(f"{host}:{port}" for port in range(settings.port, last_port + 1))
            if not settings.has_objects_of_one_process:
                beside.append(asyncio.create_task(functions.run()))
            http = nodes.http_addresses
            line = f"tidelog cluster of {settings.node_count} ready on {addresses}"
            await sizes.start()
            announce(f"{line}{HTTP_ON}{','.join(http)}" if http else line)
            if settings.console_port is not None:
                console = ChildProcess(
                    "console",
                    settings.console_command(http),
                    ends_cluster=False,
                    on_ready=_announcing(announce_console),
                )
                nodes.on_resized = lambda: console.start_again(
                    settings.console_command(nodes.http_addresses)
                )
                helpers.append(console)
                beside.append(asyncio.create_task(console.run()))
            await stopping  # A node that was ready is started again whenever it ends.
        return 0 if stopping.done() else 1
    finally:
        stopping.cancel()
        ready.cancel()
        await sizes.close()
        for child in helpers:
            child.stop()
        await asyncio.gather(nodes.stop(), *beside)
        await asyncio.gather(stopping, ready, return_exceptions=True)


def _announcing(announce: Callable[[str], None]) -> Callable[[str], None]:
    """Return a reader of a console's first line that announces its URL, if that has changed."""
    known = ""

    def say(line: str) -> None:
        nonlocal known
        before, known = known, line.partition(READY_ON)[2]
        if known != before:
            announce(known)

    return say


class _Nodes:
    """The nodes that run, by number. For the parent's loop."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._children: dict[int, tuple[ChildProcess, asyncio.Task[None]]] = {}
        self._is_stopping = False
        self.on_resized: Callable[[], None] = lambda: None  # called when other nodes run

    def start(self, number: int) -> asyncio.Task[None]:
        """Run a node until it is stopped; the task ends too if it was never ready."""
        command = self._settings.command(number)
        child = ChildProcess(f"node {number}", command, ends_cluster=True)
        task = asyncio.create_task(child.run())
        self._children[number] = child, task
        return task

    @property
    def http_addresses(self) -> list[str]:
        """The addresses of the nodes' probes and metrics."""
        return [child.http_address for child, _ in self._children.values() if child.http_address]

    async def wait_ready(self) -> None:
        """Return when all nodes have been ready."""
        for child, _ in list(self._children.values()):
            await child.has_been_ready.wait()

    async def resize(self, count: int, *, force: bool) -> AsyncIterator[tuple[int, bool]]:
        """Start nodes, or have those of the highest numbers leave, until there are so many.

        Raises ``InvalidRequest`` if only those have some partitions, unless ``force``.
        """
        dataclasses.replace(self._settings, node_count=count)  # Raises InvalidConfig.
        if len(self._children) > count and not force:
            await require_others(self._settings.metadata_url, count)
        before = set(self._children)
        try:
            async for joined in self._resize(count):
                yield joined
        finally:
            if before != set(self._children):
                self.on_resized()

    async def _resize(self, count: int) -> AsyncIterator[tuple[int, bool]]:
        while len(self._children) > count:
            number = max(self._children)
            child, task = self._children.pop(number)
            child.leave()
            await task
            yield number, False
        while len(self._children) < count and not self._is_stopping:
            number = max(self._children) + 1
            task = self.start(number)
            ready = asyncio.create_task(self._children[number][0].has_been_ready.wait())
            await asyncio.wait([ready, task], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                ready.cancel()
                del self._children[number]
                raise BrokerNotAvailable(f"node {number} did not start: its log says why")
            yield number, True

    async def stop(self) -> None:
        """Have all nodes shut down; return when they have."""
        self._is_stopping = True
        for child, _ in self._children.values():
            child.stop()
        await asyncio.gather(*[task for _, task in self._children.values()])

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
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tidelog_core.errors import BrokerNotAvailable, InvalidConfig
from tidelog_core.listener_settings import LISTENER_PREFIX
from tidelog_core.log_format import TEXT
from tidelog_core.metadata.endpoints import PLAINTEXT, PORT_MAX

from tidelog_node.cluster_size import SizeServer
from tidelog_node.ending_signals import on_ending_signals
from tidelog_node.leaving_nodes import require_others
from tidelog_node.settings import HTTP_HOST, HTTP_ON

logger = logging.getLogger(__name__)

NODES_MAX = 64
STOP_SECONDS_MAX = 45.0  # closing its logs may take 25
RESTART_SECONDS_FIRST, RESTART_SECONDS_MAX = 1.0, 30.0
# Each node has another address, and this command makes them.
ADDRESS_SETTINGS = frozenset({"advertised.listeners", "listeners"})
ALTERNATIVE = "start each node by itself (python -m tidelog_node)"
STABLE_SECONDS = 60.0  # after this run time the delay starts at the first value again
LINE_BYTES_MAX = 65_536
READY_ON = " ready on "  # before the address in the line of a process that is ready


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """A cluster of nodes on this machine. Node ``i`` (from 1) listens on ``port + i - 1``."""

    data_dir: Path
    node_count: int = 1
    host: str = "127.0.0.1"
    port: int = 9092
    # Node i has http_port + i - 1, or a free port if this is 0. None: no probes and metrics.
    http_port: int | None = None
    has_usual_http_port: bool = False  # a node takes a free port if its own is in use
    http_host: str = HTTP_HOST
    http_allowed_hosts: str = ""  # further names of the nodes in HTTP requests, or *
    registry_port: int | None = None  # None: no schema registry. As ``http_port`` otherwise
    registry_host: str = HTTP_HOST
    advertised_host: str | None = None  # the host that clients connect to; None: ``host``
    metadata_store_url: str | None = None  # default: SQLite in the data directory
    object_store_url: str | None = None  # default: a folder in the data directory
    config_overrides: Mapping[str, str] = field(default_factory=dict)  # of NodeConfig
    log_level: str = "INFO"
    log_format: str = TEXT
    security_protocol: str = PLAINTEXT  # of the listener that each node has for clients
    console_port: int | None = None  # None: no console. 0: a free port
    has_usual_console_port: bool = False  # the console takes a free port if that one is in use
    authority_file: Path | None = None  # PEM of the authority of the nodes' certificates

    def __post_init__(self) -> None:
        problems = []
        if not 1 <= self.node_count <= NODES_MAX:
            problems.append(f"{self.node_count} nodes: from 1 to {NODES_MAX} are allowed")
        if not 1 <= self.port <= PORT_MAX - self.node_count + 1:
            problems.append(f"port {self.port} must be from 1 to {PORT_MAX}, as every node's")
        if self.http_port and self.http_port > PORT_MAX - self.node_count + 1:
            problems.append(f"http port {self.http_port} must be up to {PORT_MAX}, as every node's")
        if self.registry_port and self.registry_port > PORT_MAX - self.node_count + 1:
            what = f"registry port {self.registry_port}"
            problems.append(f"{what} must be up to {PORT_MAX}, as every node's")
        problems += [
            f"{name} cannot be given for all nodes of a machine: {ALTERNATIVE}"
            for name in self.config_overrides
            if name in ADDRESS_SETTINGS or name.startswith(LISTENER_PREFIX)
        ]
        if problems:
            raise InvalidConfig(problems)

    def command(self, broker_id: int) -> list[str]:
        """Return the command line of one node."""
        metadata, objects = self._stores()
        command = [sys.executable, "-m", "tidelog_node"]
        command += ["--broker-id", str(broker_id), *self._address(self.port + broker_id - 1)]
        command += ["--data-dir", str(self.data_dir.absolute() / f"node-{broker_id}")]
        command += ["--metadata-store", metadata, "--object-store", objects]
        command += ["--log-level", self.log_level, "--log-format", self.log_format]
        command += ["--stop-with-parent"]
        if self.http_port is not None:
            port = self.http_port and self.http_port + broker_id - 1
            command += ["--http-host", self.http_host, "--http-port", str(port)]
            command += ["--http-port-or-free"] if self.has_usual_http_port else []
        if self.registry_port is not None:
            port = self.registry_port and self.registry_port + broker_id - 1
            command += ["--registry-host", self.registry_host, "--registry-port", str(port)]
        if self.http_allowed_hosts:
            command += ["--http-allowed-hosts", self.http_allowed_hosts]
        return command + self._overrides()

    def functions_command(self) -> list[str]:
        """Return the command line of the functions' process. Nodes do not import its module."""
        metadata, objects = self._stores()
        command = [sys.executable, "-m", "tidelog_functions.local"]
        command += ["--metadata", metadata, "--objects", objects]
        command += ["--log-level", self.log_level, "--log-format", self.log_format]
        command += ["--until-stdin-ends"]
        return command + self._overrides()

    def console_command(self, node_http: Sequence[str]) -> list[str]:
        """Return the command line of the console. Nodes do not import its module."""
        metadata, objects = self._stores()
        host = _in_url(self.advertised_host or self.host)
        command = [sys.executable, "-m", "tidelog_console"]
        command += ["--bootstrap", f"{host}:{self.port}", "--port", str(self.console_port)]
        command += ["--port-or-free"] if self.has_usual_console_port else []
        command += ["--security-protocol", self.security_protocol]
        command += ["--metadata", metadata, "--objects", objects]
        command += ["--log-level", self.log_level, "--log-format", self.log_format]
        if self.authority_file is not None:
            command += ["--ca-file", str(self.authority_file)]
        for address in node_http:
            command += ["--node-http", address]
        command += ["--until-stdin-ends"]
        return command + self._overrides()

    @property
    def has_objects_of_one_process(self) -> bool:
        """Whether only a node's own tier worker sees its objects, and functions would see none."""
        return self._stores()[1].startswith("memory:")

    @property
    def metadata_url(self) -> str:
        """The metadata store of all processes."""
        return self._stores()[0]

    def _address(self, port: int) -> list[str]:
        advertised = self.advertised_host
        if self.security_protocol == PLAINTEXT:
            address = ["--host", self.host, "--port", str(port)]
            return address + ([] if advertised is None else ["--advertised-host", advertised])
        begin = f"{self.security_protocol}://"
        address = ["--set", f"listeners={begin}{_in_url(self.host)}:{port}"]
        if advertised is not None:
            address += ["--set", f"advertised.listeners={begin}{_in_url(advertised)}:{port}"]
        return address

    def _stores(self) -> tuple[str, str]:
        data_dir = self.data_dir.absolute()
        return (
            self.metadata_store_url or f"sqlite://{data_dir}/metadata.db",
            self.object_store_url or f"file://{data_dir}/objects",
        )

    def _overrides(self) -> list[str]:
        options: list[str] = []
        for name, value in self.config_overrides.items():
            options += ["--set", f"{name}={value}"]
        return options


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
    functions = _Child("functions", settings.functions_command(), ends_cluster=False)
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
            host = _in_url(settings.advertised_host or settings.host)
            addresses = ",".join(f"{host}:{port}" for port in range(settings.port, last_port + 1))
            if not settings.has_objects_of_one_process:
                beside.append(asyncio.create_task(functions.run()))
            http = nodes.http_addresses
            line = f"tidelog cluster of {settings.node_count} ready on {addresses}"
            await sizes.start()
            announce(f"{line}{HTTP_ON}{','.join(http)}" if http else line)
            if settings.console_port is not None:
                console = _Child(
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


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


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
        self._children: dict[int, tuple[_Child, asyncio.Task[None]]] = {}
        self._is_stopping = False
        self.on_resized: Callable[[], None] = lambda: None  # called when other nodes run

    def start(self, number: int) -> asyncio.Task[None]:
        """Run a node until it is stopped; the task ends too if it was never ready."""
        command = self._settings.command(number)
        child = _Child(f"node {number}", command, ends_cluster=True)
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


class _Child:
    """The successive processes of one node, of the functions, or of the console."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        ends_cluster: bool,
        on_ready: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``ends_cluster``: if a process ends before the first was ready, do not restart it.

        ``on_ready`` gets the first line of each process.
        """
        self.has_been_ready = asyncio.Event()
        self.first_line = ""  # of the newest process that was ready
        self._name = name
        self._command = command
        self._ends_cluster = ends_cluster
        self._on_ready = on_ready
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._is_changing = False  # the process is to end, and another one begins

    @property
    def http_address(self) -> str:
        """The address in the first line, "" if it has none."""
        return self.first_line.partition(HTTP_ON)[2]

    async def run(self) -> None:
        """Restart the process until it is stopped or ends the cluster."""
        delay_seconds = RESTART_SECONDS_FIRST
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            started = loop.time()
            status = await self._run_once()
            if self._stopping.is_set():
                return
            if self._is_changing:
                self._is_changing = False
                continue
            if self._ends_cluster and not self.has_been_ready.is_set():
                logger.error(
                    "process ended before it was ready, not started again",
                    extra={"process_name": self._name, "status": status},
                )
                return
            if loop.time() - started > STABLE_SECONDS:
                delay_seconds = RESTART_SECONDS_FIRST
            logger.error(
                "process ended, it is started again",
                extra={"process_name": self._name, "status": status, "in_s": delay_seconds},
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_seconds):
                    await self._stopping.wait()
            delay_seconds = min(delay_seconds * 2, RESTART_SECONDS_MAX)

    def stop(self) -> None:
        """Have the process shut down; ``run`` returns when it has ended."""
        self._stopping.set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def start_again(self, command: Sequence[str]) -> None:
        """End the process, and run this command instead."""
        self._command = command
        if self._process is not None and self._process.stdin is not None:
            self._is_changing = True
            self._process.stdin.close()

    def leave(self) -> None:
        """Have a node hand its partitions over, then shut down; ``run`` returns when it has."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()

    async def _run_once(self) -> int:
        """Run one process to its end and return its exit status."""
        # In its own session, so that Ctrl-C reaches only the parent, which stops the nodes.
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,  # its end is the signal to stop
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            start_new_session=True,
        )
        if self._stopping.is_set():
            self.stop()
        assert process.stdout is not None
        watching = asyncio.create_task(self._watch(process.stdout))
        ending = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([ending, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await asyncio.wait([ending], timeout=STOP_SECONDS_MAX)
        if not ending.done():
            logger.error("process does not stop, killed", extra={"process_name": self._name})
            process.kill()
        stopping.cancel()
        await asyncio.gather(ending, watching)
        await asyncio.gather(stopping, return_exceptions=True)
        self._process = None
        return ending.result()

    async def _watch(self, stdout: asyncio.StreamReader) -> None:
        """Set ``has_been_ready`` at the first line, and discard all further output."""
        line = await stdout.readline()
        if line:
            self.first_line = line.decode().strip()
            self.has_been_ready.set()
            self._on_ready(self.first_line)
        while await stdout.read(LINE_BYTES_MAX):
            pass

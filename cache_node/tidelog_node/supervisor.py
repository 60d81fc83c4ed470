"""``tidelog up``: several nodes of one cluster on one machine, under one parent.

Each node is a process of its own with its own id, port and data directory; all share
one metadata store and one object store:

    <data dir>/metadata.db     the metadata store
    <data dir>/objects/        the object store
    <data dir>/node-<id>/      the logs of one node

A node that ends by itself ends the cluster: nothing is restarted silently. SIGTERM and
SIGINT are passed on, and the parent leaves when every node has. A parent that is killed
takes its nodes with it: each watches its end of a pipe.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelog_core.errors import InvalidConfig

logger = logging.getLogger(__name__)

NODES_MAX = 64
PORT_MAX = 65_535
STOP_SECONDS_MAX = 30.0
LINE_BYTES_MAX = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """A cluster of nodes on this machine. Node ``i`` (from 1) listens on ``port + i - 1``."""

    data_dir: Path
    node_count: int = 1
    host: str = "127.0.0.1"
    port: int = 9092
    metadata_store_url: str | None = None  # default: SQLite in the data directory
    object_store_url: str | None = None  # default: a folder in the data directory
    config_overrides: Mapping[str, str] = field(default_factory=dict)  # of NodeConfig
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        problems = []
        if not 1 <= self.node_count <= NODES_MAX:
            problems.append(f"{self.node_count} nodes: from 1 to {NODES_MAX} are allowed")
        if not 1 <= self.port <= PORT_MAX - self.node_count + 1:
            problems.append(f"port {self.port} must be from 1 to {PORT_MAX}, as every node's")
        if problems:
            raise InvalidConfig(problems)

    def command(self, broker_id: int) -> list[str]:
        """Return the command line of one node."""
        data_dir = self.data_dir.absolute()
        metadata = self.metadata_store_url or f"sqlite://{data_dir}/metadata.db"
        objects = self.object_store_url or f"file://{data_dir}/objects"
        command = [sys.executable, "-m", "tidelog_node"]
        command += ["--broker-id", str(broker_id), "--host", self.host]
        command += ["--port", str(self.port + broker_id - 1)]
        command += ["--data-dir", str(data_dir / f"node-{broker_id}")]
        command += ["--metadata-store", metadata, "--object-store", objects]
        command += ["--log-level", self.log_level, "--stop-with-parent"]
        for name, value in self.config_overrides.items():
            command += ["--set", f"{name}={value}"]
        return command


def run_cluster(settings: ClusterSettings, *, announce: Callable[[str], None] = print) -> int:
    """Run the cluster until a signal or the end of a node; return the exit status.

    ``announce`` gets one line once every node serves clients. 0: stopped by a signal.
    """
    return asyncio.run(_run(settings, announce))


async def _run(settings: ClusterSettings, announce: Callable[[str], None]) -> int:
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    nodes: list[asyncio.subprocess.Process] = []
    try:
        for broker_id in range(1, settings.node_count + 1):
            node = await _start_node(settings, broker_id)
            nodes.append(node)
        return await _watch(settings, nodes, stop, announce)
    finally:
        await _stop(nodes)


async def _start_node(settings: ClusterSettings, broker_id: int) -> asyncio.subprocess.Process:
    # In a session of its own: Ctrl-C reaches the parent alone, which passes it on.
    return await asyncio.create_subprocess_exec(
        *settings.command(broker_id),
        stdin=asyncio.subprocess.PIPE,  # its end tells the node that the parent is gone
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
        start_new_session=True,
    )


async def _watch(
    settings: ClusterSettings,
    nodes: Sequence[asyncio.subprocess.Process],
    stop: asyncio.Event,
    announce: Callable[[str], None],
) -> int:
    """Announce the cluster when it is ready; return when it is to end."""
    stopping = asyncio.create_task(stop.wait())
    ready = asyncio.create_task(_wait_ready(nodes))
    ends = [asyncio.create_task(node.wait()) for node in nodes]
    tasks: list[asyncio.Task[Any]] = [stopping, ready, *ends]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and ready.result():
            last_port = settings.port + settings.node_count - 1
            addresses = ",".join(
                f"{settings.host}:{port}" for port in range(settings.port, last_port + 1)
            )
            announce(f"tidelog cluster of {settings.node_count} ready on {addresses}")
            await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            return 0
        # A node whose output has ended is about to end itself.
        await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
        for broker_id, node in enumerate(nodes, 1):
            if node.returncode is not None:
                logger.error(
                    "node ended, the cluster stops",
                    extra={"broker_id": broker_id, "status": node.returncode},
                )
        return 0 if stopping.done() else 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_ready(nodes: Sequence[asyncio.subprocess.Process]) -> bool:
    """Return whether every node said that it serves; False where one ended first."""
    for node in nodes:
        assert node.stdout is not None
        if not await node.stdout.readline():
            return False
    return True


async def _stop(nodes: Sequence[asyncio.subprocess.Process]) -> None:
    """End every node in order; kill those that take too long."""
    running = [node for node in nodes if node.returncode is None]
    for node in running:
        node.terminate()
    if not running:
        return
    _, late = await asyncio.wait(
        [asyncio.create_task(node.wait()) for node in running], timeout=STOP_SECONDS_MAX
    )
    for node in running:
        if node.returncode is None:
            logger.error("node does not stop, killed", extra={"pid": node.pid})
            node.kill()
    if late:
        await asyncio.wait(late)

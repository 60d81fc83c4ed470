"""Runs a node as a process, and reads the resources it has used from the kernel."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import usage
from tools.installed import installed_python
from tools.ports import free_port
from tools.server_process import ServerProcess, running

START_SECONDS_MAX = 20.0


@dataclass(frozen=True, slots=True)
class Node(ServerProcess):
    """A running node or compared broker, and its use of resources."""

    client_settings: Mapping[str, str] = field(default_factory=dict)  # of librdkafka

    @classmethod
    def of(cls, server: ServerProcess) -> Node:
        """Return the server with methods for its use of resources."""
        return cls(server.pid, server.port, server.started_at)

    @property
    def bootstrap(self) -> str:
        """Return the value of a client's bootstrap.servers."""
        return f"127.0.0.1:{self.port}"

    def cpu_seconds(self) -> float:
        """Return user and system time of the node and its tier worker so far, seconds."""
        return usage.cpu_seconds(usage.process_tree(self.pid))

    def rss_megabytes(self) -> float:
        """Return the resident memory of the node itself, 10^6 bytes."""
        return usage.rss_megabytes(self.pid)

    def resident_megabytes(self) -> float:
        """Return the resident memory of all its processes, 10^6 bytes, shared pages once."""
        return usage.resident_megabytes(usage.process_tree(self.pid))


@contextmanager
def running_node(
    data_dir: Path,
    *arguments: str,
    is_compiled: bool = True,
    port: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Node]:
    """Start a node on a free port, and end it with SIGTERM.

    ``port`` is that of its first listener, if the arguments have listeners. It runs from a wheel
    with the compiled hot path, or from the source. ``variables`` are added to its environment.
    """
    python = str(installed_python()) if is_compiled else sys.executable
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-m", "tidelog_node", "--data-dir", str(data_dir)]
    if port is None:
        port = free_port()
        command += ["--port", str(port)]
    with running(
        "the node",
        [*command, *arguments],
        port=port,
        start_seconds_max=START_SECONDS_MAX,
        environment=environment | dict(variables or {}),
    ) as server:
        yield Node.of(server)

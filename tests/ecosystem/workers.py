"""Workers of Kafka Connect in its distributed mode, and their REST API."""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from tests.ecosystem.counting import SECONDS_MAX
from tests.support.waiting import eventually
from tools.java_program import JavaProgram
from tools.ports import free_port

STRING = "org.apache.kafka.connect.storage.StringConverter"


class Workers:
    """Some workers; the last one is asked, so it is not to be killed."""

    def __init__(
        self, program: JavaProgram, folder: Path, address: str, stack: ExitStack, *, count: int
    ) -> None:
        self._ports = [free_port() for _ in range(count)]
        self.processes = [
            stack.enter_context(program.running(_worker_settings(folder, address, number, port)))
            for number, port in enumerate(self._ports)
        ]

    def put(self, connector: str, **config: str) -> None:
        """Create a connector, as soon as a worker takes it."""
        eventually(lambda: self._put(connector, config), f"{connector} is taken", SECONDS_MAX)

    def state(self, connector: str) -> str:
        """Return the states of a connector and its tasks."""
        try:
            status = self._ask("GET", f"/connectors/{connector}/status", None)
        except OSError as error:
            return str(error)
        return ", ".join([status["connector"]["state"], *(t["state"] for t in status["tasks"])])

    def _put(self, connector: str, config: dict[str, str]) -> bool:
        try:
            self._ask("PUT", f"/connectors/{connector}/config", config)
        except OSError:  # It starts, or rebalances.
            return False
        return True

    def _ask(self, method: str, path: str, body: object) -> dict:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._ports[-1]}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


def _worker_settings(folder: Path, address: str, number: int, port: int) -> Path:
    path = folder / f"worker-{number}.properties"
    path.write_text(
        "\n".join(
            (
                f"bootstrap.servers={address}",
                "group.id=workers",
                f"key.converter={STRING}",
                f"value.converter={STRING}",
                "exactly.once.source.support=enabled",
                "config.storage.topic=connect-configs",
                "offset.storage.topic=connect-offsets",
                "status.storage.topic=connect-status",
                "config.storage.replication.factor=1",
                "offset.storage.replication.factor=1",
                "status.storage.replication.factor=1",
                "offset.storage.partitions=3",
                "offset.flush.interval.ms=1000",
                # The killed worker's tasks move soon.
                "scheduled.rebalance.max.delay.ms=1000",
                "session.timeout.ms=10000",
                "heartbeat.interval.ms=3000",
                # A task that is told to stop while the node is away ends when the node is back: as an
                # orphan it would go on, and Debezium's would keep the slot of the database.
                "task.shutdown.graceful.timeout.ms=180000",
                f"listeners=HTTP://127.0.0.1:{port}",
                "plugin.discovery=only_scan",
                f"plugin.path={folder / 'plugins'}",
            )
        )
    )
    (folder / "plugins").mkdir(exist_ok=True)
    return path

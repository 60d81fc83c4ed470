"""Machines of a cluster: their launcher, real, and their metadata service, played."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.location import open_metadata_store

from tests.aws.instance_metadata import metadata_service
from tests.support.waiting import eventually
from tools.places import ROOT
from tools.ports import free_port
from tools.server_process import children_running

NODE_PROGRAMS = ROOT / "infra" / "node"
LAUNCHER = NODE_PROGRAMS / "tidelog_launch.py"
WAIT_SECONDS_MAX = 60.0
CLAIM_SECONDS = 4


class Instance:
    """One machine: its metadata service, its disk, its launcher."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        endpoint: str,
        table: str,
        zone_number: int = 2,
        zone: str = "us-east-1a",
        group: str = "",
        settings: Sequence[str] = (),
    ) -> None:
        """``zone_number`` is 0 if ids are not of a zone; ``group`` has a hook to complete."""
        self.zone_number = zone_number
        self.address = f"127.0.0.{zone_number or 1}"
        self.port = free_port()
        self.values = {
            "instance-id": name,
            "local-ipv4": self.address,
            "local-hostname": f"zone-{zone_number}.example.org",
            "placement/availability-zone": zone,
            "tags/instance/tidelog-instances-per-zone": "1",
            "autoscaling/target-lifecycle-state": "InService",
        }
        self.data_dir = directory / name
        self._log_path = directory / f"{name}.log"
        self._metadata = metadata_service(self.values)
        self._metadata_url = f"http://127.0.0.1:{self._metadata.server_port}"
        self._table = table
        self._group = group
        self.environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint}
        self.metadata_store = f"sqlite://{directory}/metadata.db"
        self._node_arguments = ["--metadata-store", self.metadata_store]
        self._node_arguments += ["--object-store", f"file://{directory}/objects"]
        for setting in ("broker.session.timeout.ms=2000", *settings):
            self._node_arguments += ["--set", setting]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def broker_id(self) -> int:
        if self.zone_number:
            return 100 * self.zone_number + 1
        return int(re.findall(r"broker id (\d+) taken", self.log)[-1])

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def start(self, *, python: str = sys.executable, launcher: Path = LAUNCHER) -> None:
        self.data_dir.mkdir(exist_ok=True)
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(python, launcher, "--table", self._table),
                    *("--zone-number", str(self.zone_number)),
                    *("--processes-per-instance", "1", "--process", "0"),
                    *("--port-first", str(self.port)),
                    *("--inter-broker-port-first", "0", "--group", self._group),
                    *("--data-dir", self.data_dir, "--claim-seconds", str(CLAIM_SECONDS)),
                    *("--metadata-url", self._metadata_url),
                    *("--", *self._node_arguments),
                ],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_node(self, *, count: int = 1) -> None:
        """Return when a node has got ready for the ``count``-th time."""

        def is_ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log
            return len(re.findall(r"tidelog node \d+ ready", self.log)) >= count

        eventually(is_ready, "a node is ready")

    def wait_in_sync(
        self,
        seconds_max: float,
        *,
        stack: str = "",
        processes: int = 1,
        python: str = sys.executable,
        programs: Path = NODE_PROGRAMS,
    ) -> subprocess.Popen[str]:
        """Start what an update waits for; its log is its stdout."""
        return subprocess.Popen(
            [
                *(python, programs / "tidelog_in_sync.py"),
                *("--metadata-store", self.metadata_store, "--stack", stack),
                *("--processes-per-instance", str(processes)),
                *("--metadata-url", self._metadata_url),
                *("--hold-seconds", "1", "--seconds-max", str(seconds_max)),
            ],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def terminate(self) -> None:
        """Do what the auto scaling group does; return when the machine has drained."""
        self.values["autoscaling/target-lifecycle-state"] = "Terminated"
        assert self.process is not None
        assert self.process.wait(WAIT_SECONDS_MAX) == 0, self.log

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Have nothing of the machine run for a while."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    @contextmanager
    def node_suspended(self) -> Iterator[None]:
        """Have the node hang, and not its launcher."""
        assert self.process is not None
        (node,) = children_running(self.process.pid, "tidelog_node")
        os.kill(node, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(node, signal.SIGCONT)

    def vanish(self) -> None:
        """Lose the machine: nothing of it runs on."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.vanish()
        self._metadata.shutdown()
        self._metadata.server_close()


def image_of(machine: Instance) -> ClusterImage:
    """Return the cluster as its metadata store has it."""

    async def read() -> ClusterImage:
        store = open_metadata_store(machine.metadata_store)
        try:
            return await ClusterView(store).refresh()
        finally:
            await store.close()

    return asyncio.run(read())


@contextmanager
def machines(directory: Path, endpoint: str, table: str) -> Iterator[Callable[..., Instance]]:
    """Give what makes machines of one cluster, as ``Instance`` does; end them all."""
    made: list[Instance] = []

    def make(
        name: str,
        *,
        zone_number: int = 2,
        zone: str = "us-east-1a",
        group: str = "",
        settings: Sequence[str] = (),
    ) -> Instance:
        made.append(
            Instance(
                name,
                directory,
                endpoint=endpoint,
                table=table,
                zone_number=zone_number,
                zone=zone,
                group=group,
                settings=settings,
            )
        )
        return made[-1]

    try:
        yield make
    finally:
        for instance in made:
            instance.close()

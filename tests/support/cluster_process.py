"""Three nodes under one parent, as ``tidelog up --nodes 3`` runs them."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.ports import free_ports
from tools.server_process import children_running

NODE_COUNT = 3
SECONDS_MAX = 40.0
CLUSTER_PROGRAM = """
import sys
from pathlib import Path
from tidelog_node.local_cluster.cluster_settings import ClusterSettings
from tidelog_node.local_cluster.supervisor import run_cluster
settings = ClusterSettings(data_dir=Path(sys.argv[1]), port=int(sys.argv[2]), node_count=3)
sys.exit(run_cluster(settings, announce=lambda line: print(line, flush=True)))
"""


class Cluster:
    """The parent process and where its nodes listen."""

    def __init__(self, data_dir: Path) -> None:
        self.port = free_ports(NODE_COUNT)
        self.log_path = data_dir.with_suffix(".log")
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CLUSTER_PROGRAM, str(data_dir), str(self.port)],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS_MAX)
        self.line = self.process.stdout.readline().decode() if ready else ""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def node_pids(self) -> list[int]:
        return self.pids_of("tidelog_node")

    def pids_of(self, module: str) -> list[int]:
        """Return the children that run the module."""
        return children_running(self.process.pid, module)


@contextmanager
def running_cluster(data_dir: Path) -> Iterator[Cluster]:
    """Give a cluster for the length of the block."""
    running = Cluster(data_dir)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(SECONDS_MAX)
        assert running.process.stdout is not None
        running.process.stdout.close()

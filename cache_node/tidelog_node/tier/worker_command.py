"""The command line and environment of a worker of this node."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog_core.config import NodeConfig
from tidelog_core.log_format import TEXT

from tidelog_node.processes.worker_version import version_argument
from tidelog_node.tier.protocol import NICENESS

if TYPE_CHECKING:
    from tidelog_node.tier.lent_memory import LentMemory

# By default glibc returns the memory of every range to the system and faults it in again page by
# page: a tenth of the cost of a cold read. With these thresholds it is kept. Source: mallopt(3).
# Few arenas: by default each of the dozen threads keeps its own peak of memory.
_ALLOCATOR = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """The command line and environment of a node's worker."""

    socket: Path
    objects: str
    cache_dir: Path
    node_config: NodeConfig
    environment: Mapping[str, str] | None = None  # None: this process's
    log_format: str = TEXT
    niceness: int = NICENESS
    wal_bytes: int = 0  # of built objects of chains that the worker keeps
    memory: LentMemory | None = None  # that the worker shares

    def arguments(self) -> list[str]:
        """Return the command line."""
        config, memory = self.node_config, self.memory
        shared = (-1, 0) if memory is None else (memory.descriptor, memory.size_bytes)
        return [
            sys.executable,
            "-m",
            "tidelog_node.tier.worker_process",
            version_argument(),
            f"--socket={self.socket}",
            f"--objects={self.objects}",
            f"--cache-dir={self.cache_dir}",
            f"--cache-bytes={config.remote_cache_bytes}",
            f"--fetch-concurrency={config.remote_fetch_concurrency}",
            f"--upload-concurrency={config.remote_upload_concurrency}",
            f"--upload-bytes-per-second={config.remote_log_manager_copy_max_bytes_per_second}",
            f"--multipart-threshold={config.tier_multipart_threshold}",
            f"--log-format={self.log_format}",
            f"--niceness={self.niceness}",
            f"--wal-bytes={self.wal_bytes}",
            f"--memory-descriptor={shared[0]}",
            f"--memory-bytes={shared[1]}",
            "--until-stdin-ends",
        ]

    def descriptors(self) -> tuple[int, ...]:
        """Return the open files that the worker inherits."""
        return () if self.memory is None else (self.memory.descriptor,)

    def environment_variables(self) -> Mapping[str, str]:
        """Return the environment."""
        return _ALLOCATOR | dict(os.environ if self.environment is None else self.environment)

"""Observes a running node from outside: processes, files, metadata."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.soak.shape import TAIL, TAIL_PARTITIONS, TAIL_RECORD_BYTES, TOPICS

Row = dict[str, float]
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_NUMBER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+")  # also ids
_NAME_DIGITS = 20  # of the base offset in a segment's file and object names


@dataclass(frozen=True, slots=True)
class Watched:
    """A node and its files."""

    pid: int
    data_dir: Path

    def sample(self) -> Row:
        """Return one row of figures. Sizes are in 10^6 bytes, times in seconds.

        Raises ``RuntimeError`` if the node or its worker has ended.
        """
        try:
            row = _process(self.pid, "node")
            worker = self.worker_pid()
            if worker is not None:
                row |= _process(worker, "worker")
        except (ProcessLookupError, FileNotFoundError) as error:
            raise RuntimeError("the node has ended, or its worker") from error
        return row | self._disk() | self._metadata() | _machine()

    def worker_pid(self) -> int | None:
        """Return the tier worker's process id, ``None`` while there is none."""
        for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue  # It ended just now.
            if b"tidelog_node.tier.worker" in command:
                return int(child)
        return None

    def descriptor_kinds(self) -> Counter[str]:
        """Return the number of the node's descriptors by target, with digits removed."""
        kinds: Counter[str] = Counter()
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                kinds[_NUMBER.sub("N", str(entry.readlink()))] += 1
            except OSError:
                continue  # Closed since.
        return kinds

    def log_bytes(self) -> int:
        """Return the bytes of ``tail`` on the node's disk."""
        folders = [self.data_dir / f"{TAIL}-{number}" for number in range(TAIL_PARTITIONS)]
        return sum(size for folder in folders for _, size in _files(folder))

    def tiered_bytes(self) -> int:
        """Return the bytes of ``tail`` that were ever tiered, with deleted ones."""
        newest: dict[Path, int] = {}
        for path, _ in _files(self.data_dir / "objects"):
            if path.suffix == ".index" and path.parents[1].name.startswith(f"{TAIL}-"):
                base_offset = int(path.name[:_NAME_DIGITS])
                newest[path.parent] = max(newest.get(path.parent, 0), base_offset)
        return sum(newest.values()) * TAIL_RECORD_BYTES

    def _disk(self) -> Row:
        log_bytes = local = 0
        for topic, (partitions, _) in TOPICS.items():
            for number in range(partitions):
                for path, size in _files(self.data_dir / f"{topic}-{number}"):
                    log_bytes += size
                    local += path.suffix == ".log"
        objects = list(_files(self.data_dir / "objects"))
        object_bytes = sum(size for _, size in objects)
        all_bytes = sum(size for _, size in _files(self.data_dir))
        return {
            "local segments": local,
            "tiered segments": sum(path.suffix == ".index" for path, _ in objects),
            "log MB": log_bytes / 1e6,
            "objects MB": object_bytes / 1e6,
            "disk MB": all_bytes / 1e6,
        }

    def _metadata(self) -> Row:
        path = self.data_dir / "metadata.db"
        return {
            "sqlite MB": path.stat().st_size / 1e6,
            "sqlite wal MB": path.with_name("metadata.db-wal").stat().st_size / 1e6,
        }


def _process(pid: int, name: str) -> Row:
    root = Path(f"/proc/{pid}")
    memory = {
        line.split()[0].rstrip(":"): int(line.split()[1]) * 1024
        for line in (root / "smaps_rollup").read_text().splitlines()[1:]
    }
    status = dict(
        line.split(":", 1) for line in (root / "status").read_text().splitlines() if ":" in line
    )
    # Ended children count with the node: compaction runs in child processes.
    fields = (root / "stat").read_text().rpartition(")")[2].split()
    return {
        f"{name} RSS MB": memory["Rss"] / 1e6,
        f"{name} PSS MB": memory["Pss"] / 1e6,
        f"{name} USS MB": (memory["Private_Clean"] + memory["Private_Dirty"]) / 1e6,
        f"{name} descriptors": sum(1 for _ in (root / "fd").iterdir()),
        f"{name} threads": int(status["Threads"]),
        f"{name} CPU s": sum(map(int, fields[11:15])) / _TICKS_PER_SECOND,
        f"{name} queued s": _queued_seconds(root),
    }


def _queued_seconds(root: Path) -> float:
    """Return how long the process's current threads have waited for a core."""
    queued_ns = 0
    for thread in (root / "task").iterdir():
        with suppress(FileNotFoundError):  # It ended just now.
            queued_ns += int((thread / "schedstat").read_text().split()[1])
    return queued_ns / 1e9


def _machine() -> Row:
    """Return the CPU time of all processes, the time stolen by the host, and disk waits."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    user, nice, system, _, io_wait, irq, soft_irq, stolen = fields[:8]
    return {
        "machine CPU s": (user + nice + system + irq + soft_irq) / _TICKS_PER_SECOND,
        "stolen CPU s": stolen / _TICKS_PER_SECOND,
        "disk wait s": io_wait / _TICKS_PER_SECOND,
    }


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield every file below the folder and its size, except files deleted since."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                yield path, path.stat().st_size
            except FileNotFoundError:
                continue

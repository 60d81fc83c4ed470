"""The file in the data directory that identifies the process that used it last.

    <data dir>/run     incarnation and boot id of the newest process here

A process that holds the directory's lock knows that the earlier process is gone: the incarnation
identifies that one's lease. The boot id shows whether the machine has restarted since: then records
that were not flushed are lost, although the earlier process had reported them to its leaders.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

RUN_FILE = "run"
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
UNSETTLED = "unsettled"  # instead of a boot id until a loss of records is settled


@dataclass(frozen=True, slots=True)
class RunMark:
    """One process's mark."""

    incarnation: UUID
    boot_id: str  # empty if the system has none; or UNSETTLED


def current_boot_id() -> str:
    """Return an id that changes with every start of the machine."""
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""


def read_run_mark(data_dir: Path) -> RunMark | None:
    """Return the mark of the last process, ``None`` if there is no readable one."""
    try:
        words = (data_dir / RUN_FILE).read_text().split()
        return RunMark(UUID(words[1]), words[3] if len(words) > 3 else "")
    except (OSError, ValueError, IndexError):
        return None


def write_run_mark(data_dir: Path, mark: RunMark) -> None:
    """Write this process's mark. Durable on return."""
    path = data_dir / RUN_FILE
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w") as file:
        file.write(f"incarnation {mark.incarnation} boot {mark.boot_id}\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    descriptor = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def may_have_lost_records(mark: RunMark | None, *, was_clean: bool, boot_id: str) -> bool:
    """Whether the logs may lack records that an earlier process had reported to its leaders.

    A system without a boot id counts as restarted.
    """
    if mark is None or mark.boot_id == UNSETTLED:
        return True
    return not was_clean and (not boot_id or mark.boot_id != boot_id)

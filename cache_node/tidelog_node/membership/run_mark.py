"""The file in the data directory that identifies the process that used it last.

    <data dir>/run     incarnation and boot id of the newest process here

The incarnation tells whose lease an earlier process of this directory held: whoever holds
the directory's lock knows that process to be gone. The boot id tells whether the machine
has gone down since: what was not flushed then is lost, although the process before had
told its leaders of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

RUN_FILE = "run"
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
UNSETTLED = "unsettled"  # in a boot id's place while a loss of records is still dealt with


@dataclass(frozen=True, slots=True)
class RunMark:
    """One process's mark."""

    incarnation: UUID
    boot_id: str  # empty where the system does not tell; or UNSETTLED


def current_boot_id() -> str:
    """Return what is another one after every start of the machine."""
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""


def read_run_mark(data_dir: Path) -> RunMark | None:
    """Return the mark of the last process, ``None`` where there is none that can be read."""
    try:
        words = (data_dir / RUN_FILE).read_text().split()
        return RunMark(UUID(words[1]), words[3] if len(words) > 3 else "")
    except (OSError, ValueError, IndexError):
        return None


def write_run_mark(data_dir: Path, mark: RunMark) -> None:
    """Leave this process's mark. Durable on return."""
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
    """Whether the logs may lack records that an earlier process had told its leaders of.

    Where the system does not tell whether it has gone down, it is taken to have.
    """
    if mark is None or mark.boot_id == UNSETTLED:
        return True
    return not was_clean and (not boot_id or mark.boot_id != boot_id)

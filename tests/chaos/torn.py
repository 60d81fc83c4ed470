"""What a power cut leaves of a log: everything flushed, and some of the rest.

Only for the logs of a process that is dead. What lies past the recovery point was never
promised to be on the disk: it may be cut short, or be zeros where the file system had
made room but written nothing.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from tidelog_core.errors import TidelogError
from tidelog_core.log.checkpoint import read_checkpoint
from tidelog_core.log.paths import LOG_SUFFIX, RECOVERY_POINT_FILE, parse_segment_name
from tidelog_core.records.batch import iter_headers
from tidelog_node.membership.run_mark import RunMark, read_run_mark, write_run_mark

ZERO_SIZE_BYTES_MAX = 1 << 16
BOOT_BEFORE = "before-the-power-cut"


def tear(directory: Path, chance: random.Random) -> int:
    """Damage the unflushed end of the log's last segment; return how many bytes it cost."""
    rows = read_checkpoint(directory / RECOVERY_POINT_FILE)
    recovery_point = rows[0][0] if rows else 0
    segments = sorted(
        path for path in directory.glob(f"*{LOG_SUFFIX}") if parse_segment_name(path.name)
    )
    if not segments:
        return 0
    path = segments[-1]
    content = path.read_bytes()
    start = _unflushed_from(content, recovery_point)
    if start >= len(content):
        return 0
    cut = chance.randint(start, len(content) - 1)
    lost = len(content) - cut
    with path.open("r+b") as file:
        if chance.random() < 0.6:
            os.ftruncate(file.fileno(), cut)
        else:
            file.seek(cut)
            file.write(bytes(min(lost, ZERO_SIZE_BYTES_MAX)))
    return lost


def forget_boot(data_dir: Path) -> None:
    """Let the node find that the machine has gone down since: power cuts do that too."""
    mark = read_run_mark(data_dir)
    if mark is not None:
        write_run_mark(data_dir, RunMark(mark.incarnation, BOOT_BEFORE))


def _unflushed_from(content: bytes, recovery_point: int) -> int:
    """Return the position of the first batch at or past the recovery point."""
    end = 0
    try:
        for position, header in iter_headers(content):
            if header.base_offset >= recovery_point:
                return position
            end = position + header.size_bytes
    except TidelogError:
        pass  # A batch that the crash cut short already.
    return end

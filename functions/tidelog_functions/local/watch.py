"""Finds new index objects in a folder store, for which S3 would send events.

    <folder>/<cluster id>/<topic>-<topic id>/<partition>/<segment>.index

Polls, because that works on every file system: each round reads the folders' times, and
only changed folders. An object exists from the link of its name on, which also sets its
status-change time; so objects linked since the last poll are the new ones. An object may
be reported twice, and is missed if the clock is set back: as with S3, the receiver of the
events also has to run without them from time to time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from tidelog_core.tier.keys import INDEX_SUFFIX

# File times come from a coarser clock than ours: recent ones are checked again.
SETTLED_NS = 100_000_000
PARTITION_DEPTH = 3


class IndexWatch:
    """Finds new index objects below a folder."""

    def __init__(self, folder: Path) -> None:
        """Existing objects are not reported."""
        self._folder = folder
        self._polled_ns = time.time_ns()
        self._changed_ns: dict[str, int] = {}  # by partition folder: its time at the last reading

    def poll(self) -> list[str]:
        """Return the keys of the index objects written since the last poll, in no order."""
        since_ns, self._polled_ns = self._polled_ns - SETTLED_NS, time.time_ns()
        before, self._changed_ns = self._changed_ns, {}
        found: list[str] = []
        for path, changed_ns in _folders(str(self._folder), PARTITION_DEPTH):
            self._changed_ns[path] = changed_ns
            is_settled = changed_ns < since_ns
            if is_settled and before.get(path) == changed_ns:
                continue
            found += (os.path.relpath(name, self._folder) for name in _new_indexes(path, since_ns))
        return found


def _new_indexes(folder: str, since_ns: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(INDEX_SUFFIX) and entry.stat().st_ctime_ns >= since_ns:
                    yield entry.path
    except (FileNotFoundError, NotADirectoryError):
        return  # Retention has removed it since.


def _folders(folder: str, depth: int) -> Iterator[tuple[str, int]]:
    """Yield the folders at this depth, with the time of their last change."""
    try:
        with os.scandir(folder) as entries:
            below = [entry for entry in entries if entry.is_dir() and entry.name[0] != "."]
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in below:
        if depth > 1:
            yield from _folders(entry.path, depth - 1)
        else:
            try:
                yield entry.path, entry.stat().st_mtime_ns
            except FileNotFoundError:
                continue

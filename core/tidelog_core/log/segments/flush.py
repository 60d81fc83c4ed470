"""Makes a log durable in an order that is safe at every crash point.

The order is: batches, index files and snapshots of sealed segments, checkpoints about
them, names in the directory, recovery point. So everything below a stored recovery point
is durable.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from tidelog_core.log.checkpoint import OUT_OF_ROOM, Rows, sync_directory, write_checkpoint
from tidelog_core.log.segments.seal_file import SealWrite


@dataclass(slots=True)
class PendingFlush:
    """One flush. Begun by the log's thread, run by any thread.

    It has file descriptors of its own, so segments may be removed during the flush. ``run``
    closes them, or ``cancel`` if ``run`` has not begun.
    """

    recovery_point: int  # the recovery point after the flush
    recovery_point_file: Path
    descriptors: list[int]  # of the files to fsync, in order
    checkpoints: Sequence[tuple[Path, Rows]]
    seals: SealWrite | None  # None: ``sealed-segments`` is up to date
    directories: Sequence[Path]  # to fsync
    _lock: Lock = field(default_factory=Lock)
    _has_begun: bool = False  # to run: the descriptors are that thread's
    _is_cancelled: bool = False
    is_done: bool = False
    is_out_of_room: bool = False  # it failed for space or descriptors, with the batches on disk

    def run(self) -> None:
        """Make everything durable. Blocks. Raises ``OSError``; the recovery point stays then.

        Does nothing if it was cancelled before.
        """
        with self._lock:
            if self._is_cancelled:
                return
            self._has_begun = True
        try:
            for descriptor in self.descriptors:
                os.fsync(descriptor)
        finally:
            self._close()
        with self._lock:
            if self._is_cancelled:
                return
            try:
                self._write_checkpoints()
            except OSError as error:
                self.is_out_of_room = error.errno in OUT_OF_ROOM
                raise
            self.is_done = True

    def _write_checkpoints(self) -> None:
        for path, rows in self.checkpoints:
            write_checkpoint(path, rows, is_durable=False)
        if self.seals is not None:
            self.seals.run()
        for directory in self.directories:
            sync_directory(directory)
        write_checkpoint(self.recovery_point_file, [[self.recovery_point]])

    def cancel(self) -> None:
        """Leave the checkpoints alone from now on. Waits for a write that is under way.

        Truncation does this before it lowers the recovery point, which a flush that
        was begun before must not raise again.
        """
        with self._lock:
            self._is_cancelled = True
            if not self._has_begun:
                self._close()  # ``run`` may never be called.

    def _close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())

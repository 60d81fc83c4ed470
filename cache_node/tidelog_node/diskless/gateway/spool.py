"""Files that keep a gateway's slices until its chain has committed them.

The WAL worker builds objects from files, so that records do not go through the node's event loop.
A slice is of no log of this node. After a restart nobody needs what the files had: nothing of it
was acknowledged that is not in the bucket. So a node removes the folder when it starts, also if it
is no gateway any more.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from tidelog_core.errors import StorageError
from tidelog_core.records.header import Buffer

from tidelog_node.tier.wal_messages import FileRange

logger = logging.getLogger(__name__)

FILE_BYTES_MAX = 32 << 20


def remove_spool(folder: Path) -> None:
    """Remove what a process has left that was a gateway. Raises ``OSError``."""
    if folder.is_dir():
        shutil.rmtree(folder)


class _SpoolFile:
    """One file, and how many of its slices are needed."""

    __slots__ = ("needed_count", "path", "size_bytes")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self.needed_count = 0


class GatewaySpool:
    """Slices in files of one folder. For the node's event loop."""

    def __init__(self, folder: Path) -> None:
        """Remove what an earlier process has left. Raises ``OSError``."""
        self._folder = folder
        self._files: dict[str, _SpoolFile] = {}
        self._file: _SpoolFile | None = None
        self._descriptor = -1
        self._number = 0
        remove_spool(folder)
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, data: Buffer) -> FileRange:
        """Keep a slice; return where it is. Raises ``StorageError``."""
        try:
            file = self._file_for(len(data))
            start = file.size_bytes
            written = os.pwrite(self._descriptor, data, start)
        except OSError as error:
            raise StorageError(f"{self._folder} cannot be written: {error}") from error
        if written != len(data):
            raise StorageError(f"the disk of {self._folder} is full")
        file.size_bytes += written
        file.needed_count += 1
        return FileRange(str(file.path), start, start + written)

    def release(self, place: FileRange) -> None:
        """Forget a slice; once for each."""
        file = self._files.get(place.path)
        if file is None:
            return
        file.needed_count -= 1
        if not file.needed_count and file is not self._file:
            self._remove(file)

    def close(self) -> None:
        """Remove all files."""
        self._end_file()
        for file in tuple(self._files.values()):
            self._remove(file)

    def _file_for(self, size_bytes: int) -> _SpoolFile:
        file = self._file
        if file is not None and file.size_bytes + size_bytes <= FILE_BYTES_MAX:
            return file
        self._end_file()
        self._number += 1
        path = self._folder / f"{self._number:020d}.slices"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        file = self._file = self._files[str(path)] = _SpoolFile(path)
        return file

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        os.close(self._descriptor)
        if not file.needed_count:
            self._remove(file)

    def _remove(self, file: _SpoolFile) -> None:
        self._files.pop(str(file.path), None)
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            # The callers end batches or note commits, which is done whatever becomes of a file.
            logger.warning(
                "file of a gateway's slices not removed, it stays until the node starts again",
                extra={"path": str(file.path), "reason": str(error)},
            )

"""Bounds the open segment files of all logs that share the limit.

There may be more logs than a process may have descriptors. Every opened file is registered
here. Above the limit, the least recently used files (roughly) are closed, and opened again
on use. A file that is being sent stays open until the send is done.

A file with unflushed bytes is pinned: if its last descriptor were closed and a later
write-back failed, the error would be lost. If only pinned files remain, no other file can
be pinned until some are flushed.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from threading import Lock
from typing import Protocol

# Shares of the limit. Above the first, pinned files should be flushed, down to the second.
CROWDED_SHARE, CALM_SHARE = 0.75, 0.5


class OpenFile(Protocol):
    """An object with an open file; ``LogSegment``."""

    was_used: bool  # since ``OpenFiles`` last checked

    def let_go(self) -> None:
        """Close the file; it is opened again on use."""


class OpenFiles:
    """The objects with open files. Safe for several threads."""

    def __init__(self, limit: int) -> None:
        """``limit`` is how many files may be open."""
        self._limit = limit
        self._idle: OrderedDict[OpenFile, None] = OrderedDict()  # may be closed, oldest first
        self._pinned: set[OpenFile] = set()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._idle) + len(self._pinned)

    @property
    def crowded_count(self) -> int:
        """The number of pinned files to flush soon, to make room for others."""
        count = len(self._pinned)
        return count - int(self._limit * CALM_SHARE) if count > self._limit * CROWDED_SHARE else 0

    def opened(self, file: OpenFile) -> None:
        """Note a file that was just opened for reading."""
        with self._lock:
            if file not in self._pinned:
                self._idle[file] = None
                self._shrink()

    def pin(self, file: OpenFile) -> None:
        """Note a file that is about to be written to, open or not. Raises ``OSError``.

        The error is ``EMFILE`` if the limit does not allow another pinned file now.
        """
        with self._lock:
            if file in self._pinned:
                return
            if len(self._pinned) >= self._limit:
                raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)} (log.open.files.max)")
            self._idle.pop(file, None)
            self._pinned.add(file)
            self._shrink()

    def unpin(self, file: OpenFile) -> None:
        """Note that all bytes of a file are flushed."""
        with self._lock:
            if file in self._pinned:
                self._pinned.discard(file)
                self._idle[file] = None

    def closed(self, file: OpenFile) -> None:
        """Forget a file that its owner has closed. Idempotent."""
        with self._lock:
            self._idle.pop(file, None)
            self._pinned.discard(file)

    def _shrink(self) -> None:
        while self._idle and len(self) > self._limit:
            file = next(iter(self._idle))
            if file.was_used:
                # A second chance: cheaper than an exact order, which every use would change.
                file.was_used = False
                self._idle.move_to_end(file)
            else:
                del self._idle[file]
                file.let_go()

"""Checks whether bytes of a file are in the page cache, and reads them on another thread.

``sendfile`` of what is on the disk alone keeps its caller waiting, and on the event loop's
thread every other client of the node with it.
"""

from __future__ import annotations

import os
import sys

from tidelog_core.model import ReadableFile


def is_in_memory(file: ReadableFile, position: int, size_bytes: int) -> bool:
    """Return whether the first and the last byte are, for one at least.

    What lies between them is, too, but for rare cases: files are read and forgotten in runs.
    Also ``True`` where the system or the file system cannot tell. To be asked may make the
    system begin to read.
    """
    if sys.platform != "linux":
        return True
    probe = [bytearray(1)]
    try:
        os.preadv(file.fileno(), probe, position, os.RWF_NOWAIT)
        os.preadv(file.fileno(), probe, position + size_bytes - 1, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def read_in(file: ReadableFile, position: int, size_bytes: int) -> None:
    """Get the bytes into memory, and have the system begin with the next ones; copy none.

    Raises ``OSError``. To be called where waiting for the disk keeps nobody else waiting, and
    of what is not in memory, so on Linux alone: others cannot send to the null device.
    """
    descriptor, end = file.fileno(), position + size_bytes
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        while position < end:
            count = os.sendfile(nowhere, descriptor, position, end - position)
            if count == 0:
                return  # The file is shorter than it was: whoever sends it will see that.
            position += count
    finally:
        os.close(nowhere)
    os.posix_fadvise(descriptor, end, size_bytes, os.POSIX_FADV_WILLNEED)

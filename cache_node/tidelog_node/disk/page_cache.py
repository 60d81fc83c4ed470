"""Checks whether bytes of a file are in the page cache, and reads them on another thread.

``sendfile`` of bytes that are not in the page cache waits for the disk. On the event loop's thread
every other client of the node would wait too.
"""

from __future__ import annotations

import os
import sys

from tidelog_core.model import ReadableFile


def is_in_memory(file: ReadableFile, position: int, size_bytes: int) -> bool:
    """Return whether the first and the last byte are in the page cache; there is at least one.

    The bytes between them are too, except in rare cases: the system reads and evicts files in
    runs. Also ``True`` if the system or the file system cannot tell. The call may make the
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
    """Read the bytes into the page cache, and ask the system to begin with the next ones.

    Copies none of them. Call it on a thread of its own, because it waits for the disk, and only
    on Linux: other systems cannot send to the null device. Raises ``OSError``.
    """
    descriptor, end = file.fileno(), position + size_bytes
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        while position < end:
            count = os.sendfile(nowhere, descriptor, position, end - position)
            if count == 0:
                return  # The file is shorter than it was; sending it will fail with that.
            position += count
    finally:
        os.close(nowhere)
    os.posix_fadvise(descriptor, end, size_bytes, os.POSIX_FADV_WILLNEED)

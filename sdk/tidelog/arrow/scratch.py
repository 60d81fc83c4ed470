"""Memory for decompressed records, which each thread uses again for the next Arrow batch."""

from __future__ import annotations

import threading

from tidelog_core.records.codecs import CompressionType, decompress_view
from tidelog_core.records.decompress_into import decompress_into

SIZE_BYTES = 4 * 1024 * 1024  # at first
KEPT_SIZE_BYTES_MAX = 8 * 1024 * 1024  # of a thread


class Scratch:
    """Memory that grows when it has to."""

    def __init__(self, size_bytes: int = SIZE_BYTES) -> None:
        self.room = memoryview(bytearray(size_bytes))

    def decompress(self, codec: CompressionType, data: memoryview, start: int) -> int:
        """Write the data decompressed from there on, and return its size.

        What was written before stays. Raises as ``decompress`` does.
        """
        size = decompress_into(codec, data, self.room[start:])
        if size is not None:
            return size
        found = decompress_view(codec, data)
        end = start + len(found)
        if end > len(self.room):
            larger = memoryview(bytearray(max(end, 2 * len(self.room))))
            larger[:start] = self.room[:start]
            self.room = larger
        self.room[start:end] = found
        return len(found)


class _OfThread(threading.local):
    scratch: Scratch | None = None


_of_thread = _OfThread()


def thread_scratch() -> Scratch:
    """Return the thread's memory. Its content is for the caller until another one asks."""
    found = _of_thread.scratch
    if found is None:
        found = _of_thread.scratch = Scratch()
    return found


def give_back_large() -> None:
    """Let go of the thread's memory if a large batch has made it grow."""
    found = _of_thread.scratch
    if found is not None and len(found.room) > KEPT_SIZE_BYTES_MAX:
        _of_thread.scratch = None

"""Memory that is used again once nothing refers to it.

A new page costs more than to copy its bytes: the system has to find it and to clear it. So memory
is lent as a view, and is free when no view of it is left. Arrow's columns may have views too:
memory that a program keeps with them is forgotten here, and other memory takes its place.

It asks for no huge pages: a hypervisor takes back free memory of their size first. What a program
kept in them cost up to four times the system's time, and reading cost no less.
"""

from __future__ import annotations

import mmap
import sys
import threading
from contextlib import suppress
from typing import TypeAlias

BLOCKS_MAX = 16
LARGE_UNIT_BYTES = 2 * 1024 * 1024  # So answers of about the same size fit.
# Two polls of Arrow batches, of which the program has one, and what is filled.
THREAD_BYTES_MAX = 36 * 1024 * 1024
_MAPPED_BYTES_MIN = 1024 * 1024  # Smaller memory is a bytearray.
_UNIT_BYTES = 64 * 1024
_LARGER_MAX = 2  # how many times as large as asked for memory may be

_Block: TypeAlias = bytearray | mmap.mmap


class ReusedMemory:
    """Memory of one thread, or of one event loop."""

    def __init__(self, kept_bytes_max: int) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._kept: list[_Block] = []  # The one that was lent last is the last.

    @property
    def kept_bytes(self) -> int:
        """Return the bytes that are kept, free or lent."""
        return sum(map(len, self._kept))

    def take(self, size_bytes: int) -> memoryview:
        """Return room for so many bytes, or some more; its content is anything."""
        large = max(_LARGER_MAX * size_bytes, _UNIT_BYTES)  # More would be kept by a small view.
        numbers = [n for n, one in enumerate(self._kept) if size_bytes <= len(one) <= large]
        numbers.sort(key=lambda number: len(self._kept[number]))
        for number in numbers:
            if _is_free(self._kept[number]):
                self._kept.append(self._kept.pop(number))
                return memoryview(self._kept[-1])
        made = _new_block(size_bytes)
        if len(made) <= self._kept_bytes_max:
            self._kept.append(made)
            while self.kept_bytes > self._kept_bytes_max or len(self._kept) > BLOCKS_MAX:
                del self._kept[0]
        return memoryview(made)

    def clear(self) -> None:
        """Keep nothing. What is lent lives until its last view is gone."""
        self._kept.clear()


class _OfThread(threading.local):
    memory: ReusedMemory | None = None


_of_thread = _OfThread()


def thread_memory() -> ReusedMemory:
    """Return the memory of the thread, for what it makes of fetched bytes.

    A client gives it back with that of its answers.
    """
    found = _of_thread.memory
    if found is None:
        found = _of_thread.memory = ReusedMemory(THREAD_BYTES_MAX)
    return found


def _new_block(size_bytes: int) -> _Block:
    if sys.platform == "linux" and size_bytes >= _MAPPED_BYTES_MIN:
        unit = LARGE_UNIT_BYTES if size_bytes > LARGE_UNIT_BYTES else _UNIT_BYTES
        with suppress(OSError):  # The process has too many mappings.
            return mmap.mmap(
                -1, _rounded(size_bytes, unit), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        return bytearray(size_bytes)
    return bytearray(_rounded(size_bytes, _UNIT_BYTES))


def _rounded(size_bytes: int, unit: int) -> int:
    return max(-(-size_bytes // unit), 1) * unit


def _is_free(block: _Block) -> bool:
    """Whether there is no view of the block: only then its size may change."""
    try:
        if isinstance(block, bytearray):
            block.append(0)
            block.pop()
        else:
            block.resize(len(block))
    except BufferError:
        return False
    return True

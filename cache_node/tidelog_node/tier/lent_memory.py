"""Memory of a fixed size that is lent piece by piece, and that a node shares with its worker.

New memory costs more than to copy into it: the kernel clears each of its pages, and maps it, when
it is first written. So the ranges of objects that followers read lie where earlier ones did. The
lowest free place is lent, so what is never needed is never touched, and takes nothing.

The memory is a file without a name (``memfd_create``), which a child process can inherit.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import sys
from collections import deque

PAGE_BYTES = mmap.PAGESIZE  # places begin and end with pages


class LentMemory:
    """The memory, and which of it is free. For the tasks of one event loop."""

    def __init__(self, size_bytes: int, *, is_shared: bool) -> None:
        """With ``is_shared`` a child that gets the descriptor can map it.

        Raises ``OSError`` where that cannot be had.
        """
        self.size_bytes = size_bytes
        self.descriptor = _unnamed_file() if is_shared else -1
        try:
            if is_shared:
                os.ftruncate(self.descriptor, size_bytes)
            self._view = memoryview(mmap.mmap(self.descriptor, size_bytes))
        except BaseException:
            self.close()
            raise
        self._free = [(0, size_bytes)]  # ``[start, end)``, in order, none next to another
        # Those that wait, in order, with the sizes that they want.
        self._waiting: deque[tuple[int, asyncio.Future[Loan]]] = deque()

    def lend(self, size_bytes: int) -> Loan | None:
        """Lend so many bytes; ``None`` if there is no such place, or others wait for one."""
        return None if self._waiting else self._lent(size_bytes)

    async def lend_in_turn(self, size_bytes: int) -> Loan:
        """Lend so many bytes, at most all; wait for them behind those who came before.

        Who waits here while it has a loan may wait for ever.
        """
        assert size_bytes <= self.size_bytes
        loan = self.lend(size_bytes)
        if loan is not None:
            return loan
        turn: asyncio.Future[Loan] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                turn.result().give_back()
            else:
                self._serve()  # Those behind it may want less.
            raise

    def take_back(self, start: int, end: int) -> None:
        """Take bytes ``[start, end)`` back, which were lent."""
        joined: list[tuple[int, int]] = []
        for piece in sorted([*self._free, (start, end)]):
            if joined and joined[-1][1] == piece[0]:
                joined[-1] = joined[-1][0], piece[1]
            else:
                joined.append(piece)
        self._free = joined
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            size_bytes, turn = self._waiting[0]
            if not turn.done():  # else it was cancelled
                loan = self._lent(size_bytes)
                if loan is None:
                    return
                turn.set_result(loan)
            self._waiting.popleft()

    def _lent(self, size_bytes: int) -> Loan | None:
        # A place without a page would keep free ones apart that are next to each other.
        taken = max(1, -(-size_bytes // PAGE_BYTES)) * PAGE_BYTES
        for at, (start, end) in enumerate(self._free):
            if end - start >= taken:
                self._free[at : at + 1] = [(start + taken, end)] if end - start > taken else []
                return Loan(self, start, start + taken, self._view[start : start + size_bytes])
        return None

    def close(self) -> None:
        """Close the file. What is mapped stays so while it is referred to."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Loan:
    """A part of the memory, for its borrower alone until it is given back."""

    def __init__(self, memory: LentMemory, start: int, end: int, view: memoryview) -> None:
        self.view = view
        self.position = start  # of its first byte in the memory
        self._memory = memory
        self._end = end
        self._is_back = False

    def give_back(self) -> None:
        """End the loan. Idempotent.

        Nobody may read or write there after that, neither here nor in the worker.
        """
        if not self._is_back:
            self._is_back = True
            self.view.release()
            self._memory.take_back(self.position, self._end)


def map_shared(descriptor: int, size_bytes: int) -> memoryview:
    """Return the memory of the process that has passed the descriptor on. Raises ``OSError``."""
    return memoryview(mmap.mmap(descriptor, size_bytes))


def _unnamed_file() -> int:
    if sys.platform != "linux":
        raise OSError("this system has no memfd_create")
    return os.memfd_create("tidelog", os.MFD_CLOEXEC)

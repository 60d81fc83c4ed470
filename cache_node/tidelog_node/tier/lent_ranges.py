"""Reads ranges of objects into memory that is used again, for readers that are soon done with them.

A range that came over the worker's socket would be copied six times on its way, four times into
new memory. Here it is written once, where its reader finds it.

A loan ends when its reader releases it. If the reader was cancelled it ends with the request: until
then the worker, or a thread, may write there. The requests of a worker that has lost its connection
have ended although it may still write for a moment. That is safe too: no other request gets to a
worker before that process has ended.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

from tidelog_core.errors import ObjectNotFound
from tidelog_core.objects.folder import read_object_into
from tidelog_core.objects.store import ObjectStore

from tidelog_node.tier.client import TierClient
from tidelog_node.tier.lent_memory import LentMemory, Loan
from tidelog_node.tier.protocol import StoreRequest

READS_AT_ONCE_MAX = 4  # of a folder


class LentRange:
    """Bytes of an object, until they are released."""

    def __init__(self, data: memoryview, loan: Loan | None = None) -> None:
        self.data = data
        self._loan = loan

    def release(self) -> None:
        """End the loan; nobody may read the bytes after that. Idempotent."""
        self.data.release()
        if self._loan is not None:
            self._loan.give_back()

    def take(self) -> bytes | memoryview:
        """End the loan, and return the bytes; the caller may keep them."""
        if self._loan is None:
            return self.data
        try:
            return bytes(self.data)
        finally:
            self.release()


class RangeLender(Protocol):
    """Reads ranges of objects for a short time."""

    async def lend(self, key: str, start: int, end: int) -> LentRange:
        """Return bytes ``[start, end)``, writable, fewer only at the end of the object.

        The caller releases them. Where there is no room they are in memory of their own. Raises as
        ``ObjectStore.get_range``.
        """

    async def lend_in_turn(self, key: str, start: int, end: int) -> LentRange:
        """Lend as ``lend``, and wait for room. For callers that have no other loan."""


class FolderLender:
    """Lends ranges of the objects in a folder: threads read them, without the worker.

    Each is a small file. A message to the worker and back would cost several times its reading.

    A thread may hang with its file system, and nothing ends its read. So the threads have no other
    work, and a read for which none is free waits before it takes memory of its own.
    """

    def __init__(
        self, folder: Path, memory: LentMemory, executor: Executor, *, store: ObjectStore
    ) -> None:
        """``executor`` has ``READS_AT_ONCE_MAX`` threads.

        ``store`` is asked for objects that are not there. It knows whether the folder is still the
        one with the objects.
        """
        self._folder = folder
        self._memory = memory
        self._executor = executor
        self._store = store
        self._free = asyncio.Semaphore(READS_AT_ONCE_MAX)

    async def lend(self, key: str, start: int, end: int) -> LentRange:
        """Return the range as ``RangeLender``."""
        return await self._read(key, start, end, self._memory.lend(end - start))

    async def lend_in_turn(self, key: str, start: int, end: int) -> LentRange:
        """Return the range as ``RangeLender``."""
        return await self._read(key, start, end, await self._memory.lend_in_turn(end - start))

    async def _read(self, key: str, start: int, end: int, loan: Loan | None) -> LentRange:
        try:
            await self._free.acquire()
        except BaseException:
            if loan is not None:
                loan.give_back()
            raise
        view = memoryview(bytearray(end - start)) if loan is None else loan.view
        reading = asyncio.get_running_loop().run_in_executor(
            self._executor, read_object_into, self._folder, key, start, view
        )
        reading.add_done_callback(lambda _: self._free.release())
        try:
            return await _lent(reading, view, loan)
        except ObjectNotFound:
            return _kept(await self._store.get_range(key, start, end))


class WorkerLender:
    """Lends ranges that a worker reads into memory that it shares with this process."""

    def __init__(self, client: TierClient, memory: LentMemory | None) -> None:
        """The client's worker has got the memory. ``None``: this system cannot share any."""
        self._client = client
        self._memory = memory

    async def lend(self, key: str, start: int, end: int) -> LentRange:
        """Return the range as ``RangeLender``."""
        loan = None if self._memory is None else self._memory.lend(end - start)
        return await self._read(key, start, end, loan)

    async def lend_in_turn(self, key: str, start: int, end: int) -> LentRange:
        """Return the range as ``RangeLender``."""
        loan = None if self._memory is None else await self._memory.lend_in_turn(end - start)
        return await self._read(key, start, end, loan)

    async def _read(self, key: str, start: int, end: int, loan: Loan | None) -> LentRange:
        if loan is None:
            return _kept(await self._client.get_range(key, start, end))
        request = StoreRequest("get-range-into", (key, start, end, loan.position))
        reading = asyncio.create_task(self._size_of(request))
        return await _lent(reading, loan.view, loan)

    async def _size_of(self, request: StoreRequest) -> int:
        return int((await self._client.call(request))["found"])


def _kept(data: bytes | memoryview) -> LentRange:
    return LentRange(memoryview(bytearray(data)))


async def _lent(reading: asyncio.Future[int], view: memoryview, loan: Loan | None) -> LentRange:
    """Return what is read into the view. ``reading`` returns how many bytes that are."""
    try:
        size_bytes = await asyncio.shield(reading)
    except BaseException:
        _end_after(reading, loan)
        raise
    return LentRange(view[:size_bytes], loan)


def _end_after(reading: asyncio.Future[int], loan: Loan | None) -> None:
    """End the loan once nothing is read into it any more."""

    def end(reading: asyncio.Future[int]) -> None:
        if not reading.cancelled():
            reading.exception()  # Nobody else looks at it.
        if loan is not None:
            loan.give_back()

    if reading.done():
        end(reading)
    else:
        reading.add_done_callback(end)

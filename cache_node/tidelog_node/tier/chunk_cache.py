"""Caches ranges of tiered objects on local disk: a bounded LRU, one GET at a time per range.

    <cache folder>/<last part of the object's key>.<start>-<end>    the range's bytes
    <cache folder>/*.partial                                        being written
    <cache folder>/boot-id                                          the boot that wrote them

Files are not fsynced: a crash of the machine may leave holes in them, so a cache of another boot
is dropped. A crash of the process leaves only complete files and partial ones. An evicted file is
unlinked; a reader that has it open can still read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from tidelog_core.errors import CorruptObject, StorageError
from tidelog_core.objects.store import ObjectStore

from tidelog_node.tier.protocol import ByteRange

logger = logging.getLogger(__name__)

BOOT_ID_SOURCE = Path("/proc/sys/kernel/random/boot_id")
BOOT_ID_FILE = "boot-id"
PARTIAL_SUFFIX = ".partial"
AHEAD_BACKLOG_MAX = 256
WRITES_MAX = 4  # fetched ranges not yet written: with so many, no read-ahead starts
AHEAD_STALE_S = 30.0
GET_ATTEMPTS_MAX = 2  # of a range whose bytes are wrong: the fault may be in the transfer

_OUR_FILE = re.compile(r".+\.(log|index)\.\d+-\d+(\.partial)?")


class ChunkCache:
    """Fetches ranges of objects into files. For the tasks of one event loop.

    Concurrent requests for a range share one GET. At most ``fetch_concurrency`` GETs run at a time.
    Read-ahead takes half of them, and more while all GETs together are fewer than three quarters:
    a reader that is busy with what it got waits for none. Ranges read ahead and not requested yet
    take at most half of the cache. So read-ahead delays no reader of a range that is needed now,
    and readers do not evict the ranges that were read ahead for others.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: Path,
        *,
        size_bytes_max: int,
        fetch_concurrency: int,
        executor: Executor,
        check: Callable[[ByteRange, bytes | memoryview], None],
    ) -> None:
        """``check`` raises ``CorruptObject`` if the bytes of a range are wrong."""
        self._store = store
        self._check = check
        self._folder = folder
        self._size_bytes_max = size_bytes_max
        self._executor = executor
        self._slots = asyncio.Semaphore(fetch_concurrency)
        # Ranges in memory: more than GETs, so that a GET need not wait for another range's write.
        self._held = asyncio.Semaphore(fetch_concurrency + 2 * WRITES_MAX)
        self._ahead_gets_max = max(1, fetch_concurrency // 2)
        self._gets_with_ahead = max(1, 3 * fetch_concurrency // 4)
        self._gets: set[str] = set()  # ranges that are being fetched, or wait for their turn
        # Read-ahead that no reader waits for yet: being fetched, and being written.
        self._ahead_gets: set[str] = set()
        self._ahead_writes: set[str] = set()
        # Ranges read ahead, fetched or on the way, that no reader has requested yet: size, and the
        # loop's time at the start.
        self._ahead: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._ahead_bytes = 0
        # Read-ahead to start: how many ranges it is ahead of its reader, and the range.
        self._ahead_backlog: OrderedDict[str, tuple[int, ByteRange]] = OrderedDict()
        self._files: OrderedDict[str, int] = OrderedDict()  # name to size, least used first
        self._size_bytes = 0
        self._under_way: dict[str, asyncio.Task[Path]] = {}
        self.get_count = 0
        self.hit_count = 0
        self.miss_count = 0
        self._open()

    @property
    def size_bytes(self) -> int:
        """Bytes of the files in the cache, and of those being written."""
        return self._size_bytes

    async def fetch(self, wanted: ByteRange, ahead: tuple[ByteRange, ...] = ()) -> Path:
        """Return a file with exactly the range's bytes; fetch ``ahead`` in the background.

        ``ahead`` is ordered nearest first. Raises the store's errors, ``CorruptObject`` if the
        range's bytes are wrong, and ``StorageError`` if the disk fails.
        """
        name = _name(wanted)
        self._ahead_backlog.pop(name, None)
        self._forget_ahead(name)
        path = self._find(name)
        if path is not None:
            self.hit_count += 1
            self._fetch_ahead(ahead)
            return path
        self.miss_count += 1
        task = self._under_way.get(name)
        if task is None:
            task = self._start(name, wanted)
        self._fetch_ahead(ahead)
        return await asyncio.shield(task)

    def forget(self, keys: Collection[str]) -> None:
        """Remove the files of these objects, except those being fetched.

        A reader that has such a file open can still read it.
        """
        prefixes = tuple(f"{_object_name(key)}." for key in keys)
        for name in [name for name in self._files if name.startswith(prefixes)]:
            self._size_bytes -= self._files.pop(name)
            self._forget_ahead(name)
            (self._folder / name).unlink(missing_ok=True)

    async def close(self) -> None:
        """Cancel the running fetches."""
        self._ahead_backlog.clear()
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find(self, name: str) -> Path | None:
        if name not in self._files:
            return None
        path = self._folder / name
        if path.exists():  # Something else may have cleared the folder.
            self._files.move_to_end(name)
            return path
        self._size_bytes -= self._files.pop(name)
        return None

    # -- reading ahead --

    def _fetch_ahead(self, ranges: tuple[ByteRange, ...]) -> None:
        """Queue the ranges for read-ahead; drop the oldest queued ones beyond the limit."""
        for distance, wanted in enumerate(ranges):
            name = _name(wanted)
            if name not in self._files and name not in self._under_way:
                self._ahead_backlog[name] = (distance, wanted)
        while len(self._ahead_backlog) > AHEAD_BACKLOG_MAX:
            self._ahead_backlog.popitem(last=False)
        self._pump_ahead()

    def _pump_ahead(self) -> None:
        """Start read-ahead within its limits, of all readers' ranges the nearest first."""
        while (
            self._ahead_backlog
            and (
                len(self._ahead_gets) < self._ahead_gets_max
                or len(self._gets) < self._gets_with_ahead
            )
            and len(self._ahead_writes) < WRITES_MAX
        ):
            name = min(self._ahead_backlog, key=lambda wish: self._ahead_backlog[wish][0])
            _, wanted = self._ahead_backlog[name]
            size_bytes = wanted.end - wanted.start
            if not self._has_room_ahead(size_bytes):
                return
            del self._ahead_backlog[name]
            if name in self._files or name in self._under_way:
                continue
            self._ahead[name] = (size_bytes, asyncio.get_running_loop().time())
            self._ahead_bytes += size_bytes
            self._ahead_gets.add(name)
            self._start(name, wanted).add_done_callback(partial(self._end_ahead, name))

    def _has_room_ahead(self, size_bytes: int) -> bool:
        """Whether read-ahead of so many more bytes fits.

        A range unread for ``AHEAD_STALE_S`` does not count: its reader is assumed to be gone.
        """
        stale_since = asyncio.get_running_loop().time() - AHEAD_STALE_S
        while self._ahead and self._ahead_bytes + size_bytes > self._size_bytes_max // 2:
            oldest, (_, begun_at) = next(iter(self._ahead.items()))
            if begun_at > stale_since:
                return False
            self._forget_ahead(oldest)
        return True

    def _end_ahead(self, name: str, task: asyncio.Task[Path]) -> None:
        self._ahead_writes.discard(name)
        if task.cancelled() or task.exception() is not None:
            self._forget_ahead(name)
            if not task.cancelled():
                logger.info("read-ahead failed", extra={"reason": str(task.exception())})
        self._pump_ahead()

    def _forget_ahead(self, name: str) -> None:
        """Stop counting the range as read-ahead, if it is."""
        self._ahead_gets.discard(name)
        self._ahead_writes.discard(name)
        if name in self._ahead:
            self._ahead_bytes -= self._ahead.pop(name)[0]

    # -- filling --

    def _start(self, name: str, wanted: ByteRange) -> asyncio.Task[Path]:
        task = asyncio.create_task(self._fill(name, wanted))
        self._under_way[name] = task
        self._gets.add(name)

        def forget(done: asyncio.Task[Path]) -> None:
            del self._under_way[name]
            self._gets.discard(name)
            if not done.cancelled():
                done.exception()  # Every caller may have been cancelled.

        task.add_done_callback(forget)
        return task

    async def _fill(self, name: str, wanted: ByteRange) -> Path:
        async with self._held:
            for attempt in range(1, GET_ATTEMPTS_MAX + 1):
                async with self._slots:
                    self.get_count += 1
                    data = await self._store.get_range(wanted.key, wanted.start, wanted.end)
                self._gets.discard(name)
                if name in self._ahead_gets:
                    self._ahead_gets.remove(name)
                    self._ahead_writes.add(name)
                self._pump_ahead()
                try:
                    return await self._keep(name, wanted, data)
                except CorruptObject:
                    if attempt == GET_ATTEMPTS_MAX:
                        raise
        raise AssertionError("unreachable")

    async def _keep(self, name: str, wanted: ByteRange, data: bytes | memoryview) -> Path:
        """Check the bytes and write them, in a thread."""
        size_bytes = len(data)
        evicted = self._make_room(size_bytes)
        self._size_bytes += size_bytes
        is_kept = False

        def check_and_write() -> Path:
            for other in evicted:
                # If it has been fetched again, that file goes too; its next reader fetches it.
                (self._folder / other).unlink(missing_ok=True)
            self._check(wanted, data)
            return self._write(name, data)

        loop = asyncio.get_running_loop()
        try:
            path = await loop.run_in_executor(self._executor, check_and_write)
            is_kept = True
        except OSError as error:
            raise StorageError(f"the cache in {self._folder} cannot be written: {error}") from error
        finally:
            if not is_kept:
                self._size_bytes -= size_bytes
        self._files[name] = size_bytes
        return path

    def _write(self, name: str, data: bytes | memoryview) -> Path:
        partial_path = self._folder / (name + PARTIAL_SUFFIX)
        try:
            try:
                partial_path.write_bytes(data)
            except FileNotFoundError:  # Something else has removed the folder.
                self._folder.mkdir(parents=True, exist_ok=True)
                partial_path.write_bytes(data)
            return partial_path.replace(self._folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                partial_path.unlink()
            raise

    def _make_room(self, size_bytes: int) -> list[str]:
        """Evict files until there is room; return their names, for the caller to unlink.

        A file larger than the cache is admitted: its reader is about to open it.
        """
        evicted = []
        while self._files and self._size_bytes + size_bytes > self._size_bytes_max:
            name, freed = self._files.popitem(last=False)
            self._size_bytes -= freed
            self._forget_ahead(name)
            evicted.append(name)
        return evicted

    def _open(self) -> None:
        """Find the files of this boot. Without them, or a usable folder, the cache is empty.

        The worker has other work than reads, so nothing in the folder may end it.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._take_stock()
        except OSError as error:
            logger.error(
                "cache of tiered segments cannot be used, reads of them fail",
                extra={
                    "path": str(self._folder),
                    "reason": str(error),
                    "hint": "let the node's user write this folder, or remove it",
                },
            )

    def _take_stock(self) -> None:
        """List the folder's files, and remove those of another boot. Raises ``OSError``."""
        boot_id = _boot_id()
        marker = self._folder / BOOT_ID_FILE
        is_same_boot = boot_id is not None and _content(marker) == boot_id.encode()
        found: list[tuple[int, str, int]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if not _OUR_FILE.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                    continue  # Not a file of this cache: never remove it.
                if not is_same_boot or entry.name.endswith(PARTIAL_SUFFIX):
                    Path(entry.path).unlink(missing_ok=True)
                    continue
                status = entry.stat()
                found.append((status.st_mtime_ns, entry.name, status.st_size))
        for _, name, size_bytes in sorted(found):
            self._files[name] = size_bytes
            self._size_bytes += size_bytes
        for name in self._make_room(0):
            (self._folder / name).unlink(missing_ok=True)
        if not is_same_boot and boot_id is not None:
            marker.write_text(boot_id)


def _name(wanted: ByteRange) -> str:
    return f"{_object_name(wanted.key)}.{wanted.start}-{wanted.end}"


def _object_name(key: str) -> str:
    # The last part of the key contains the segment's id, which identifies the object.
    return key.rpartition("/")[2]


def _content(path: Path) -> bytes | None:
    """Return the file's bytes, ``None`` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _boot_id() -> str | None:
    try:
        return BOOT_ID_SOURCE.read_text().strip()
    except OSError:
        return None

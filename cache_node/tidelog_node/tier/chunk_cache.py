"""Caches ranges of tiered objects on local disk: a bounded LRU, each range fetched once.

    <cache folder>/<last part of the object's key>.<start>-<end>    the range's bytes
    <cache folder>/*.partial                                        being written
    <cache folder>/boot-id                                          the boot that wrote them

Files are not fsynced: after a crash of the machine they may be hollow, so a cache of
another boot is dropped. A crash of the process leaves only whole files and partial
ones. An evicted file is unlinked; who has it open goes on reading it.
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
WRITES_MAX = 4  # ranges that are here and not yet written, beside the GETs
AHEAD_STALE_S = 30.0
GET_ATTEMPTS_MAX = 2  # of a range that comes and is wrong: it may be the way here that is bad

_OUR_FILE = re.compile(r".+\.(log|index)\.\d+-\d+(\.partial)?")


class ChunkCache:
    """Brings ranges of objects into files. For the tasks of one event loop.

    However many ask for a range at once, one GET brings it. At most
    ``fetch_concurrency`` GETs run at once; those for ranges that nobody waits for yet take
    at most half of them, and what they have brought at most half of the cache. So reading
    ahead never keeps anyone waiting who needs a range now, and many readers do not push
    out what was brought for each other.
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
        """``check`` raises ``CorruptObject`` where the bytes of a range are not right."""
        self._store = store
        self._check = check
        self._folder = folder
        self._size_bytes_max = size_bytes_max
        self._executor = executor
        self._slots = asyncio.Semaphore(fetch_concurrency)
        # Ranges in memory: a GET need not wait until another one's bytes are written.
        self._held = asyncio.Semaphore(fetch_concurrency + 2 * WRITES_MAX)
        self._ahead_gets_max = max(1, fetch_concurrency // 2)
        # What nobody waits for, while it comes and while it is written.
        self._ahead_gets: set[str] = set()
        self._ahead_writes: set[str] = set()
        # Under way or here, and not asked for yet: size, and the loop's time when it was begun.
        self._ahead: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._ahead_bytes = 0
        # How far from what its reader needs now, and what.
        self._ahead_backlog: OrderedDict[str, tuple[int, ByteRange]] = OrderedDict()
        self._files: OrderedDict[str, int] = OrderedDict()  # name to size, least used first
        self._size_bytes = 0
        self._under_way: dict[str, asyncio.Task[Path]] = {}
        self.get_count = 0
        self.hit_count = 0
        self._open()

    @property
    def size_bytes(self) -> int:
        """Bytes of the files in the cache, and of those being written."""
        return self._size_bytes

    async def fetch(self, wanted: ByteRange, ahead: tuple[ByteRange, ...] = ()) -> Path:
        """Return a file with exactly the range's bytes; bring ``ahead`` when there is time.

        The nearest come first in ``ahead``. Raises what the store raises,
        ``CorruptObject`` where the range's bytes are not right, ``StorageError`` where
        the disk fails.
        """
        name = _name(wanted)
        self._ahead_backlog.pop(name, None)
        self._forget_ahead(name)
        path = self._find(name)
        if path is not None:
            self.hit_count += 1
            self._fetch_ahead(ahead)
            return path
        task = self._under_way.get(name)
        if task is None:
            task = self._start(name, wanted)
        self._fetch_ahead(ahead)
        return await asyncio.shield(task)

    def forget(self, keys: Collection[str]) -> None:
        """Remove the files of these objects; one that is just coming stays.

        Who has such a file open may go on reading it.
        """
        prefixes = tuple(f"{_object_name(key)}." for key in keys)
        for name in [name for name in self._files if name.startswith(prefixes)]:
            self._size_bytes -= self._files.pop(name)
            self._forget_ahead(name)
            (self._folder / name).unlink(missing_ok=True)

    async def close(self) -> None:
        """Stop what is under way."""
        self._ahead_backlog.clear()
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find(self, name: str) -> Path | None:
        if name not in self._files:
            return None
        path = self._folder / name
        if path.exists():  # Anyone may clear a cache folder.
            self._files.move_to_end(name)
            return path
        self._size_bytes -= self._files.pop(name)
        return None

    # -- reading ahead

    def _fetch_ahead(self, ranges: tuple[ByteRange, ...]) -> None:
        """Wish for the ranges; forget old wishes first where there are too many."""
        for distance, wanted in enumerate(ranges):
            name = _name(wanted)
            if name not in self._files and name not in self._under_way:
                self._ahead_backlog[name] = (distance, wanted)
        while len(self._ahead_backlog) > AHEAD_BACKLOG_MAX:
            self._ahead_backlog.popitem(last=False)
        self._pump_ahead()

    def _pump_ahead(self) -> None:
        """Start what may be started, of all readers' wishes the nearest first."""
        while (
            self._ahead_backlog
            and len(self._ahead_gets) < self._ahead_gets_max
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
        """Whether so much more may be brought; what waits for long has lost its reader."""
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
        """Note that the range is no longer one that nobody has asked for, if it was."""
        self._ahead_gets.discard(name)
        self._ahead_writes.discard(name)
        if name in self._ahead:
            self._ahead_bytes -= self._ahead.pop(name)[0]

    # -- filling

    def _start(self, name: str, wanted: ByteRange) -> asyncio.Task[Path]:
        task = asyncio.create_task(self._fill(name, wanted))
        self._under_way[name] = task

        def forget(done: asyncio.Task[Path]) -> None:
            del self._under_way[name]
            if not done.cancelled():
                done.exception()  # Everyone who asked may have gone away meanwhile.

        task.add_done_callback(forget)
        return task

    async def _fill(self, name: str, wanted: ByteRange) -> Path:
        async with self._held:
            for attempt in range(1, GET_ATTEMPTS_MAX + 1):
                async with self._slots:
                    self.get_count += 1
                    data = await self._store.get_range(wanted.key, wanted.start, wanted.end)
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
                # One that has come back meanwhile goes too, and is then brought once more.
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
            partial_path.write_bytes(data)
            return partial_path.replace(self._folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                partial_path.unlink()
            raise

    def _make_room(self, size_bytes: int) -> list[str]:
        """Forget files until there is room, and return their names: the caller removes them.

        A file larger than the cache gets in nevertheless: someone is about to open it.
        """
        evicted = []
        while self._files and self._size_bytes + size_bytes > self._size_bytes_max:
            name, freed = self._files.popitem(last=False)
            self._size_bytes -= freed
            self._forget_ahead(name)
            evicted.append(name)
        return evicted

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        boot_id = _boot_id()
        marker = self._folder / BOOT_ID_FILE
        is_same_boot = boot_id is not None and marker.exists() and marker.read_text() == boot_id
        found: list[tuple[int, str, int]] = []
        for entry in os.scandir(self._folder):
            if not _OUR_FILE.fullmatch(entry.name):
                continue  # Never touch what someone else has put here.
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
    # The last part of the key has the segment's id in it, which is enough.
    return key.rpartition("/")[2]


def _boot_id() -> str | None:
    try:
        return BOOT_ID_SOURCE.read_text().strip()
    except OSError:
        return None

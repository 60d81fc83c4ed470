"""Ranges of tiered objects on local disk: a bounded LRU, filled once per range.

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
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from tidelog_core.errors import CorruptObject, StorageError
from tidelog_core.objects.store import ObjectStore

from tidelog_node.tier.protocol import ByteRange

logger = logging.getLogger(__name__)

BOOT_ID_SOURCE = Path("/proc/sys/kernel/random/boot_id")
BOOT_ID_FILE = "boot-id"
PARTIAL_SUFFIX = ".partial"
AHEAD_BACKLOG_MAX = 256
GET_ATTEMPTS_MAX = 2  # of a range that comes and is wrong: it may be the way here that is bad

_OUR_FILE = re.compile(r".+\.(log|index)\.\d+-\d+(\.partial)?")


class ChunkCache:
    """Brings ranges of objects into files. For the tasks of one event loop.

    However many ask for a range at once, one GET brings it. At most
    ``fetch_concurrency`` GETs run at once; reading ahead takes at most half of them,
    so it never keeps anyone waiting who needs a range now.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: Path,
        *,
        size_bytes_max: int,
        fetch_concurrency: int,
        executor: Executor,
        check: Callable[[ByteRange, bytes], None],
    ) -> None:
        """``check`` raises ``CorruptObject`` where the bytes of a range are not right."""
        self._store = store
        self._check = check
        self._folder = folder
        self._size_bytes_max = size_bytes_max
        self._executor = executor
        self._slots = asyncio.Semaphore(fetch_concurrency)
        self._ahead_max = max(1, fetch_concurrency // 2)
        self._ahead_running = 0
        self._ahead_backlog: OrderedDict[str, ByteRange] = OrderedDict()
        self._files: OrderedDict[str, int] = OrderedDict()  # name to size, least used first
        self._size_bytes = 0
        self._under_way: dict[str, asyncio.Task[Path]] = {}
        self.get_count = 0
        self.hit_count = 0
        self._open()

    @property
    def size_bytes(self) -> int:
        """Bytes of the files in the cache."""
        return self._size_bytes

    async def fetch(self, wanted: ByteRange) -> Path:
        """Return a file with exactly the range's bytes.

        Raises what the store raises, ``CorruptObject`` where the range's bytes are not
        right, ``StorageError`` where the disk fails.
        """
        name = _name(wanted)
        if name in self._files:
            self._files.move_to_end(name)
            path = self._folder / name
            if path.exists():  # Anyone may clear a cache folder.
                self.hit_count += 1
                return path
            self._size_bytes -= self._files.pop(name)
        self._ahead_backlog.pop(name, None)
        task = self._under_way.get(name)
        if task is None:
            task = self._start(name, wanted)
        return await asyncio.shield(task)

    def fetch_ahead(self, ranges: tuple[ByteRange, ...]) -> None:
        """Bring the ranges when nothing more urgent is under way; forget old wishes first."""
        for wanted in ranges:
            name = _name(wanted)
            if name in self._files or name in self._under_way:
                continue
            self._ahead_backlog[name] = wanted
        while len(self._ahead_backlog) > AHEAD_BACKLOG_MAX:
            self._ahead_backlog.popitem(last=False)
        self._pump_ahead()

    async def close(self) -> None:
        """Stop what is under way."""
        self._ahead_backlog.clear()
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _pump_ahead(self) -> None:
        while self._ahead_backlog and self._ahead_running < self._ahead_max:
            name, wanted = self._ahead_backlog.popitem(last=False)
            if name in self._files or name in self._under_way:
                continue
            self._ahead_running += 1
            self._start(name, wanted).add_done_callback(self._end_ahead)

    def _end_ahead(self, task: asyncio.Task[Path]) -> None:
        self._ahead_running -= 1
        if not task.cancelled() and task.exception() is not None:
            logger.info("read-ahead failed", extra={"problem": str(task.exception())})
        self._pump_ahead()

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
        async with self._slots:
            data = await self._get_right(wanted)
            self._make_room(len(data))
            loop = asyncio.get_running_loop()
            try:
                path = await loop.run_in_executor(self._executor, self._write, name, data)
            except OSError as error:
                raise StorageError(
                    f"the cache in {self._folder} cannot be written: {error}"
                ) from error
            self._files[name] = len(data)
            self._size_bytes += len(data)
            self._make_room(0)
            return path

    async def _get_right(self, wanted: ByteRange) -> bytes:
        loop = asyncio.get_running_loop()
        for attempt in range(1, GET_ATTEMPTS_MAX + 1):
            self.get_count += 1
            data = await self._store.get_range(wanted.key, wanted.start, wanted.end)
            try:
                await loop.run_in_executor(self._executor, self._check, wanted, data)
            except CorruptObject:
                if attempt == GET_ATTEMPTS_MAX:
                    raise
            else:
                return data
        raise AssertionError("unreachable")

    def _write(self, name: str, data: bytes) -> Path:
        partial = self._folder / (name + PARTIAL_SUFFIX)
        try:
            partial.write_bytes(data)
            return partial.replace(self._folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise

    def _make_room(self, size_bytes: int) -> None:
        # The newest file stays, however large: someone is about to open it.
        keep_count = 0 if size_bytes else 1
        while (
            len(self._files) > keep_count and self._size_bytes + size_bytes > self._size_bytes_max
        ):
            name, evicted = self._files.popitem(last=False)
            self._size_bytes -= evicted
            (self._folder / name).unlink(missing_ok=True)

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
        self._make_room(0)
        if not is_same_boot and boot_id is not None:
            marker.write_text(boot_id)


def _name(wanted: ByteRange) -> str:
    # The last part of the key has the segment's id in it, which is enough.
    return f"{wanted.key.rpartition('/')[2]}.{wanted.start}-{wanted.end}"


def _boot_id() -> str | None:
    try:
        return BOOT_ID_SOURCE.read_text().strip()
    except OSError:
        return None

"""Watches whether the disk of the data directory accepts writes.

Theory of operation. A node whose disk is full or fails must not lead: other nodes may have
room. Every caller that gets a disk error reports it with ``DataDisk.note``, and ``DiskWatch``
checks the free space every second.

- *Full* is a disk with less free space than ``log.dir.reserve.bytes``, or one that has
  refused a write for lack of space. No partition is appended to then: the reserve is for the
  metadata store, checkpoints and the work that makes room. Appended bytes are counted between
  two checks, so that a burst does not use up the reserve.
- The trouble ends when twice the reserve is free and a probe, which writes, flushes and reads
  a small file, succeeds. If the disk soon becomes full again, the next check comes later each
  time, so that leaderships do not go back and forth.
- *Failed* is a disk on which the probe fails otherwise. The first error of a log asks for a
  probe at once; a disk that passes it has lost a file or two at most (``log.recovery``).

The lease publishes ``is_fit`` to the cluster: leaders do not wait for a follower on a node that
is not fit, and another replica is elected leader if there is one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from tidelog_core.back_off import back_off_seconds
from tidelog_core.config import NodeConfig
from tidelog_core.errors import StorageError
from tidelog_core.log.checkpoint import DISK_FULL, OUT_OF_ROOM, write_fully
from tidelog_core.subscribers import Subscribers
from tidelog_core.waiting import wait_and_clear

from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
RESERVE_SHARE_MAX = 20  # of the disk: a small one must not be full from the start
RELAPSE_SECONDS = 60.0  # trouble that is back within this time counts as the same
WAIT_SECONDS_MAX = 60.0  # before a disk that relapses is tried again
UNKNOWN_BYTES = 2**62
LOW_STEP_BYTES = 1_048_576  # appended between two checks when the reserve is near
PROBE_FILE = "probe.tmp"
PROBE_BYTES = 65_536

FULL, FAILED = "disk-full", "disk-failed"


class DataDisk:
    """The state of the disk. Only ``DiskWatch`` finds out that trouble is over."""

    __slots__ = ("changed", "has_failed", "is_full", "left_bytes", "low", "trouble")

    def __init__(self) -> None:
        self.is_full = False  # read on every append
        self.left_bytes = UNKNOWN_BYTES  # that may be appended before the next check
        self.has_failed = False
        self.low = Subscribers[[]]()  # the bytes left at the last check have been appended
        self.trouble = Subscribers[str]()  # with the error's text
        self.changed = Subscribers[[]]()  # ``is_fit`` may have changed

    @property
    def is_fit(self) -> bool:
        """Whether partitions may be led on this disk as well as on any other."""
        return not (self.is_full or self.has_failed)

    def note_low(self) -> None:
        """Request a check: the bytes left at the last check have been appended."""
        self.left_bytes = LOW_STEP_BYTES
        self.low.notify()

    def note(self, error: OSError | StorageError) -> bool:
        """Note an error of a file operation; return whether it means that the disk is full.

        Then the node as a whole says so, once, and the caller need not.
        """
        if error.errno in DISK_FULL:
            if not self.is_full:
                self.change(is_full=True, has_failed=self.has_failed)
                self.trouble.notify(str(error))
            return True
        if error.errno is not None and error.errno not in OUT_OF_ROOM:
            self.trouble.notify(str(error))
        return False

    def refusal(self) -> StorageError:
        """Return why nothing is appended while the disk is full."""
        return StorageError("the disk of this node is full", errno=errno.ENOSPC)

    def change(self, *, is_full: bool, has_failed: bool) -> None:
        """Set the state that was found."""
        before = (self.is_full, self.has_failed)
        self.is_full, self.has_failed = is_full, has_failed
        if before != (is_full, has_failed):
            self.changed.notify()


class _DiskState(NamedTuple):
    free_bytes: int
    total_bytes: int
    problem: OSError | None  # of the probe; None if it succeeded or was not made


class DiskWatch:
    """Watches one ``DataDisk``. ``run`` is one task."""

    def __init__(self, node: NodeContext, disk: DataDisk, *, path: Path) -> None:
        self._node = node
        self._disk = disk
        self._path = path
        self.health = node.health
        self._must_probe = False
        self._relapse_count = 0
        self._fit_since: float | None = -math.inf  # the loop's time; None: it is not fit
        self._not_before = 0.0  # the loop's time of the next check of a disk in trouble
        self._stir = asyncio.Event()
        disk.trouble.subscribe(self._on_trouble)
        disk.low.subscribe(self._read_free_space)
        disk.changed.subscribe(self._on_change)

    async def run(self) -> None:
        """Check the disk until cancelled."""
        while True:
            await wait_and_clear(self._stir, CHECK_SECONDS)
            await self.check()

    async def check(self) -> None:
        """Check once, and log changes."""
        loop, disk = asyncio.get_running_loop(), self._disk
        if not disk.is_fit and loop.time() < self._not_before:
            return
        probes = self._must_probe or not disk.is_fit
        self._must_probe = False
        found = await loop.run_in_executor(self._node.executor, _read_state, self._path, probes)
        if self._must_probe:
            return  # Trouble was reported since; this result is older.
        reserve, problem = self._reserve(found.total_bytes), found.problem
        has_failed = problem is not None and problem.errno not in OUT_OF_ROOM
        is_full = disk.is_full
        if not has_failed:
            wanted = 2 * reserve if is_full else reserve
            is_full = problem is not None or found.free_bytes < wanted
            disk.left_bytes = max(found.free_bytes - reserve, LOW_STEP_BYTES)
        self._report_full(is_full, _room(found.free_bytes, reserve))
        self._report_failed(has_failed, str(problem))
        disk.change(is_full=is_full, has_failed=has_failed)

    def _reserve(self, total_bytes: int) -> int:
        """Return the number of bytes that must stay free."""
        return reserve_bytes(self._node.config(), total_bytes)

    def _read_free_space(self) -> None:
        """Read the free space between two appends; that does not wait for the disk."""
        disk = self._disk
        try:
            usage = shutil.disk_usage(self._path)
        except OSError:
            self._stir.set()
            return
        reserve = self._reserve(usage.total)
        disk.left_bytes = max(usage.free - reserve, LOW_STEP_BYTES)
        if usage.free < reserve:
            self._report_full(True, _room(usage.free, reserve))
            disk.change(is_full=True, has_failed=disk.has_failed)

    def _on_trouble(self, said: str) -> None:
        """Probe the disk at the next check."""
        self._must_probe = True
        if self._disk.is_full:
            self._report_full(True, said)
        self._stir.set()

    def _on_change(self) -> None:
        """Delay the next check of a full disk, longer if it was fit only for a short time."""
        now = asyncio.get_running_loop().time()
        if self._disk.is_fit:
            self._fit_since = now
            return
        if self._fit_since is not None:
            is_relapse = now - self._fit_since < RELAPSE_SECONDS
            self._relapse_count = self._relapse_count + 1 if is_relapse else 0
            self._fit_since = None
        if self._disk.is_full:
            wait_s = back_off_seconds(
                self._relapse_count, first=CHECK_SECONDS, longest=WAIT_SECONDS_MAX
            )
            self._not_before = now + wait_s

    def _report_full(self, is_full: bool, reason: str) -> None:
        extra = {"path": str(self._path), "reason": reason}
        if is_full and self.health.report(FULL, reason):
            logger.warning(
                "disk is full, others lead where they can; the node resumes once there is room",
                extra=extra,
            )
        elif not is_full and self.health.clear(FULL):
            logger.warning("disk has room again", extra=extra)

    def _report_failed(self, has_failed: bool, reason: str) -> None:
        extra = {"path": str(self._path), "reason": reason}
        if has_failed and self.health.report(FAILED, reason):
            logger.error(
                "disk has failed, others lead where they can; it is tried again until it works:"
                " replace it if it does not",
                extra=extra,
            )
        elif not has_failed and self.health.clear(FAILED):
            logger.warning("disk works again", extra={"path": str(self._path)})


def reserve_bytes(config: NodeConfig, total_bytes: int) -> int:
    """Return the number of bytes that must stay free on a disk of this size."""
    return min(config.log_dir_reserve_bytes, total_bytes // RESERVE_SHARE_MAX)


def _room(free_bytes: int, reserve: int) -> str:
    return f"{free_bytes} bytes are free, {reserve} are reserved"


def _read_state(path: Path, probes: bool) -> _DiskState:
    try:
        usage = shutil.disk_usage(path)
        if probes:
            probe(path)
    except OSError as error:
        return _DiskState(0, 0, error)
    return _DiskState(usage.free, usage.total, None)


def probe(directory: Path) -> None:
    """Write, flush and read a file in the directory. Raises ``OSError``."""
    path = directory / PROBE_FILE
    content = os.urandom(PROBE_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_fully(descriptor, content, 0)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # Read from the disk.
        found = os.pread(descriptor, PROBE_BYTES, 0)
    finally:
        os.close(descriptor)
        path.unlink()
    if found != content:
        raise OSError(errno.EIO, "what was written is not what is read", str(path))

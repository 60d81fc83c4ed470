"""The lease of a table: a run says that it is at work, so that no other does the same work.

    <location>/_tidelog/lease.json
    {"format_version": 1, "run_id": …, "host": …, "process_id": …, "since_ms": …,
     "renewed_ms": …, "renewed_count": …, "is_over": false}

A lease saves work, nothing else: which of two runs has exported is decided by the table's commit.
So the file is written without a condition, runs that begin at the same moment may both hold the
lease, and a file that cannot be read at the first look is no lease.

The holder renews it every ``RENEW_SECONDS``, and says at its end that it is over. Clocks of two
machines are not compared: a run that finds another one's lease watches the file. If the lease
changes, its run is at work; if it stays the same for ``LIVE_SECONDS`` of the watching run's
monotonic clock, its run was killed, and the lease is nobody's. A run on the same machine sees at
once that the process is gone. ``HELD_SECONDS_MAX`` after the last ``take`` a lease is not renewed
any more, so that a run that hangs does not keep others out for ever.
"""

from __future__ import annotations

import json
import logging
import os
import posixpath
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self
from uuid import uuid4

from pyarrow import fs
from tidelog_core.clock import wall_clock_ms

from tidelog_spark.jobs.tables.export_table import TableBusy
from tidelog_spark.jobs.tables.table_access import named_permission
from tidelog_spark.jobs.tables.table_places import filesystem_of
from tidelog_spark.jobs.tables.table_state import STATE_FOLDER

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
NAME = "lease.json"
RENEW_SECONDS = 15.0
LIVE_SECONDS = 60.0
WATCH_SECONDS = 1.0  # between two looks at another run's lease
HELD_SECONDS_MAX = 6 * 3600.0  # longer than any commit of a schedule, and than most of Spark
LEASE_BYTES_MAX = 1 << 16
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class StoredLease:
    """The content of the file."""

    run_id: str
    host: str
    process_id: int
    since_ms: int
    renewed_ms: int  # for people, and for programs that compare clocks, as earlier ones did
    renewed_count: int  # changes with each renewal, whatever the holder's clock does
    is_over: bool = False

    def may_be_live(self) -> bool:
        """Return whether its run may be at work, as far as one look tells."""
        if self.is_over:
            return False
        return self.host != socket.gethostname() or _is_another_process(self.process_id)


class TableLease:
    """The lease of one table, for one run. It is over at the end of the block."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """``clock`` counts seconds, and ``wait`` lets some pass: while others are watched."""
        self._clock = clock
        self._wait = wait
        self._run_id = str(uuid4())
        self._since_ms = wall_clock_ms()
        self._renewed_count = 0
        self._writing = threading.Lock()
        self._url: str | None = None  # None: not taken
        self._held_until = 0.0  # monotonic
        self._end = threading.Event()
        self._renewing: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        if self._renewing is not None:
            self._renewing.join()
        if self._url is None:
            return
        try:
            if self._is_left_alone(self._url):
                self._write(self._url, is_over=True)
        except OSError as failure:
            # It passes by itself after a minute; the run's own result counts.
            logger.warning("lease of the table is left", extra={"reason": str(failure)})

    def take(self, location: str) -> bool:
        """Hold the lease of the table from now on; return whether it was not held before.

        To be called again before each commit. While another run may have the lease, this blocks
        until it is known: for a renewal, or for ``LIVE_SECONDS``. Raises ``TableBusy`` if it has,
        ``TableAccessDenied`` and ``OSError``.
        """
        url = f"{location}/{STATE_FOLDER}/{NAME}"
        other = read_lease(url)
        live = None if other is None else self._watched(url, other)
        if live is not None:
            raise TableBusy(
                f"another run is at work on {location} since {_utc(live.since_ms)}, process"
                f" {live.process_id} of {live.host}"
            )
        is_new = other is None or other.run_id != self._run_id
        self._url = url
        self._held_until = time.monotonic() + HELD_SECONDS_MAX
        with named_permission(location, "write"):
            self._write(url)
        if self._renewing is None or not self._renewing.is_alive():
            self._renewing = threading.Thread(
                target=self._renew, args=(url,), name="table-lease", daemon=True
            )
            self._renewing.start()
        return is_new

    def _renew(self, url: str) -> None:
        while not self._end.wait(RENEW_SECONDS):
            if time.monotonic() >= self._held_until:
                logger.warning("lease of the table is given up", extra={"url": url})
                return
            try:
                if not self._is_left_alone(url):
                    return  # ``take`` says so before the next commit.
                self._write(url)
            except OSError as error:
                logger.warning("lease of the table is not renewed", extra={"reason": str(error)})

    def _is_left_alone(self, url: str) -> bool:
        other = read_lease(url)
        return other is None or not self._may_keep_out(other)

    def _may_keep_out(self, other: StoredLease) -> bool:
        return other.run_id != self._run_id and other.may_be_live()

    def _watched(self, url: str, seen: StoredLease) -> StoredLease | None:
        """Return the lease of another run that is at work, ``None`` if there is none."""
        now: StoredLease | None = seen
        until = self._clock() + LIVE_SECONDS
        while now is not None and self._may_keep_out(now):
            if now != seen:
                return now
            if self._clock() >= until:
                return None
            self._wait(WATCH_SECONDS)
            # After the pause, so that a renewal counts however long the pause was. What cannot be
            # read now, as a file that is being written, is no reason to end the watch.
            now = read_lease(url, unreadable=now)
        return None

    def _write(self, url: str, *, is_over: bool = False) -> None:
        with self._writing:
            self._renewed_count += 1
            lease = StoredLease(
                self._run_id,
                socket.gethostname(),
                os.getpid(),
                self._since_ms,
                wall_clock_ms(),
                self._renewed_count,
                is_over,
            )
            _write_lease(url, lease)


def _write_lease(url: str, lease: StoredLease) -> None:
    text = json.dumps({"format_version": FORMAT_VERSION, **asdict(lease)})
    filesystem, path = filesystem_of(url)
    is_local = isinstance(filesystem, fs.LocalFileSystem)
    # A bucket shows an object once it is whole. A file is empty at first, and that is no lease.
    written = f"{path}.{lease.run_id}" if is_local else path
    if is_local:
        filesystem.create_dir(posixpath.dirname(path))
    with filesystem.open_output_stream(written) as stream:
        stream.write(text.encode())
    if is_local:
        filesystem.move(written, path)


def read_lease(url: str, *, unreadable: StoredLease | None = None) -> StoredLease | None:
    """Return the lease of the file, ``None`` if there is no file.

    Of a file that cannot be read, ``unreadable`` is returned.
    """
    filesystem, path = filesystem_of(url)
    try:
        with filesystem.open_input_stream(path) as stream:
            found = json.loads(stream.read(LEASE_BYTES_MAX))
        if found["format_version"] != FORMAT_VERSION:
            return unreadable
        lease = StoredLease(
            str(found["run_id"]),
            str(found["host"]),
            int(found["process_id"]),
            int(found["since_ms"]),
            int(found["renewed_ms"]),
            int(found.get("renewed_count", 0)),  # Earlier programs have none.
            found["is_over"] is True,
        )
        _utc(lease.since_ms)
    except FileNotFoundError:
        return None
    except _UNREADABLE as error:
        logger.warning("lease of the table cannot be read", extra={"reason": str(error)})
        return unreadable
    return lease


def _utc(time_ms: int) -> str:
    """Return the time as text. Raises ``ValueError``, ``OverflowError`` or ``OSError``."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat("T", "seconds")


def _is_another_process(process_id: int) -> bool:
    """Return whether a process of this machine has the id, and is not this one.

    A container that was started again has the same name, and its program the same id.
    """
    if process_id <= 0 or process_id == os.getpid():
        return False
    try:
        os.kill(process_id, 0)
    except PermissionError:
        return True  # Another user's.
    except (ProcessLookupError, OverflowError):
        return False
    return True

"""A process that has to say something from time to time.

One that falls silent stands still. It is sent SIGUSR1, by which ``faulthandler`` writes down
where every thread is without the interpreter's lock, and killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType

from tools.places import ROOT

LINE_SIZE_BYTES_MAX = 1 << 24
TELLS_SECONDS = 1.0  # to write down where it stands still
STARTS_SECONDS_MAX = 60.0  # to its first word, on a busy machine
ENDS_SECONDS_MAX = 10.0  # after its last word
TRACE_CHARACTERS = 4000


class StandsStill(Exception):
    """Something does not go on; the text says where."""


class WatchedProcess:
    """``async with``: the process runs, and is killed in the end if it still does."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        silent_s_max: float,
        has_children: bool = False,
    ) -> None:
        """With ``has_children`` all that it has started is killed with it."""
        self._command = command
        self._log_path = log_path
        self._silent_s_max = silent_s_max
        self._has_children = has_children
        self._log_start = 0
        self._process: Process | None = None

    async def __aenter__(self) -> WatchedProcess:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                cwd=ROOT,
                limit=LINE_SIZE_BYTES_MAX,
                start_new_session=self._has_children,
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._running
        if self._has_children:
            with contextlib.suppress(ProcessLookupError):  # None is left.
                os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            process.kill()
        await process.communicate(b"")  # Closes the pipes.

    async def tell(self, data: bytes) -> None:
        """Write to the process; what comes after its end is lost."""
        stdin = self._running.stdin
        assert stdin is not None
        stdin.write(data)
        try:
            await stdin.drain()
        except ConnectionError:
            return

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield what the process says, to its end. Raises ``StandsStill``."""
        stdout = self._running.stdout
        assert stdout is not None
        patience_s = max(self._silent_s_max, STARTS_SECONDS_MAX)
        while True:
            try:
                line = await asyncio.wait_for(stdout.readline(), patience_s)
            except TimeoutError:
                raise StandsStill(await self._ask_where()) from None
            if not line:
                return
            yield line
            patience_s = self._silent_s_max

    async def status(self) -> int:
        """Return the exit status of a process that has said its last. Raises ``StandsStill``."""
        try:
            return await asyncio.wait_for(self._running.wait(), ENDS_SECONDS_MAX)
        except TimeoutError:
            raise StandsStill(await self._ask_where()) from None

    @property
    def log(self) -> str:
        """The end of what the process has written to its log."""
        with self._log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace").strip()[-TRACE_CHARACTERS:]

    @property
    def _running(self) -> Process:
        assert self._process is not None, "it has not been started"
        return self._process

    async def _ask_where(self) -> str:
        self._running.send_signal(signal.SIGUSR1)
        await asyncio.sleep(TELLS_SECONDS)
        return self.log

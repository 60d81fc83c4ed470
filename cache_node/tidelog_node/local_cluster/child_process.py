"""Keeps one process of ``tidelog up`` running: starts it again, stops it, kills it if it hangs.

The process watches its end of a pipe, its standard input, and stops when the pipe is closed. So it
also stops if the parent is killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from tidelog_node.settings import HTTP_ON

logger = logging.getLogger(__name__)

STOP_SECONDS_MAX = 45.0  # closing its logs may take 25
RESTART_SECONDS_FIRST, RESTART_SECONDS_MAX = 1.0, 30.0
STABLE_SECONDS = 60.0  # after this run time the delay starts at the first value again
LINE_BYTES_MAX = 65_536


class ChildProcess:
    """The successive processes of one node, of the functions, or of the console."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        ends_cluster: bool,
        on_ready: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``ends_cluster``: if a process ends before the first was ready, do not restart it.

        ``on_ready`` gets the first line of each process.
        """
        self.has_been_ready = asyncio.Event()
        self.first_line = ""  # of the newest process that was ready
        self._name = name
        self._command = command
        self._ends_cluster = ends_cluster
        self._on_ready = on_ready
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._is_changing = False  # the process is to end, and another one begins

    @property
    def http_address(self) -> str:
        """The address in the first line, "" if it has none."""
        return self.first_line.partition(HTTP_ON)[2]

    async def run(self) -> None:
        """Restart the process until it is stopped or ends the cluster."""
        delay_seconds = RESTART_SECONDS_FIRST
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            started = loop.time()
            status = await self._run_once()
            if self._stopping.is_set():
                return
            if self._is_changing:
                self._is_changing = False
                continue
            if self._ends_cluster and not self.has_been_ready.is_set():
                logger.error(
                    "process ended before it was ready, not started again",
                    extra={"process_name": self._name, "status": status},
                )
                return
            if loop.time() - started > STABLE_SECONDS:
                delay_seconds = RESTART_SECONDS_FIRST
            logger.error(
                "process ended, it is started again",
                extra={"process_name": self._name, "status": status, "delay_s": delay_seconds},
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_seconds):
                    await self._stopping.wait()
            delay_seconds = min(delay_seconds * 2, RESTART_SECONDS_MAX)

    def stop(self) -> None:
        """Have the process shut down; ``run`` returns when it has ended."""
        self._stopping.set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def start_again(self, command: Sequence[str]) -> None:
        """End the process, and run this command instead."""
        self._command = command
        if self._process is not None and self._process.stdin is not None:
            self._is_changing = True
            self._process.stdin.close()

    def leave(self) -> None:
        """Have a node hand its partitions over, then shut down; ``run`` returns when it has."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()

    async def _run_once(self) -> int:
        """Run one process to its end and return its exit status."""
        # In its own session, so that Ctrl-C reaches only the parent, which stops the nodes.
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,  # its end is the signal to stop
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            start_new_session=True,
        )
        if self._stopping.is_set():
            self.stop()
        assert process.stdout is not None
        watching = asyncio.create_task(self._watch(process.stdout))
        ending = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([ending, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await asyncio.wait([ending], timeout=STOP_SECONDS_MAX)
        if not ending.done():
            logger.error("process does not stop, killed", extra={"process_name": self._name})
            process.kill()
        stopping.cancel()
        await asyncio.gather(ending, watching)
        await asyncio.gather(stopping, return_exceptions=True)
        self._process = None
        return ending.result()

    async def _watch(self, stdout: asyncio.StreamReader) -> None:
        """Set ``has_been_ready`` at the first line, and discard all further output."""
        line = await stdout.readline()
        if line:
            self.first_line = line.decode().strip()
            self.has_been_ready.set()
            self._on_ready(self.first_line)
        while await stdout.read(LINE_BYTES_MAX):
            pass

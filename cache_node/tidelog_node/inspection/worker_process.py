"""A worker process: started when it is needed, asked one thing at a time, ended when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys

from tidelog_core.errors import ErrorCode, TidelogError

from tidelog_node.inspection.messages import SchemaBegan
from tidelog_node.processes.piped_messages import receive_message, send_bytes
from tidelog_node.processes.worker_version import OtherVersion, VersionWatch, version_argument

logger = logging.getLogger(__name__)

ENDING_SECONDS_MAX = 10.0  # from the end of its output to that of the process
ATTEMPTS_MAX = 2  # the process may end after idling just when a job comes


class NotInspected(TidelogError):
    """The batch could not be inspected just now; a retry of the same request may succeed."""

    code = ErrorCode.request_timed_out


class WorkerDied(Exception):
    """The process ended while it worked with a schema."""

    def __init__(self, schema_id: int, exit_status: int) -> None:
        """``exit_status`` is minus the signal that ended it."""
        super().__init__(f"the process ended with status {exit_status}")
        self.schema_id = schema_id
        self.exit_status = exit_status


class WorkerProcess:
    """Runs a module as a process. The caller asks again only after an answer."""

    def __init__(self, module: str, *arguments: str, versions: VersionWatch) -> None:
        """The module gets the node's version and the arguments."""
        self._module, self._arguments = module, arguments
        self._versions = versions
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, message: bytes, data: memoryview, *, seconds_max: float) -> object:
        """Return the answer. If the caller is cancelled, the process is killed.

        Raises ``NotInspected``, and ``WorkerDied`` if it died of a schema.
        """
        problem: Exception = EOFError()
        for _ in range(ATTEMPTS_MAX):
            try:
                process = await self._started()
            except (OSError, OtherVersion) as error:
                problem = error
                break
            exchange = _Exchange(process)
            try:
                async with asyncio.timeout(seconds_max):
                    await exchange.run(message, data)
            except TimeoutError as error:
                problem = error
                break
            except (EOFError, ConnectionError) as error:
                problem = error
                # To kill a process that has ended would take its exit status from asyncio.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ENDING_SECONDS_MAX):
                        await process.wait()
            finally:
                if not exchange.is_through:
                    await self.end()
            if exchange.is_through:
                self._versions.answered()
                return exchange.answer
            try:
                self._versions.ended(process.returncode)
            except OtherVersion as error:
                problem = error
                break
            if exchange.schema_id is not None:
                assert process.returncode is not None
                raise WorkerDied(exchange.schema_id, process.returncode) from None
        if isinstance(problem, OtherVersion):  # The node has said so.
            raise NotInspected(str(problem))
        logger.warning("batch not inspected", extra={"reason": repr(problem)})
        if isinstance(problem, TimeoutError):
            raise NotInspected(f"the batch takes more than {seconds_max:.0f} s to inspect")
        raise NotInspected(f"the process that inspects batches failed: {problem!r}")

    async def end(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is not None:
            self._process = None
        if self._process is None:
            self._versions.require_start()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                version_argument(),
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        return self._process


class _Exchange:
    """One job and its answer."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.is_through = False
        self.answer: object = None
        self.schema_id: int | None = None  # that the process has begun to work with

    async def run(self, message: bytes, data: memoryview) -> None:
        """Send the job, and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(message)
        await send_bytes(self._process.stdin, data)
        answer = await receive_message(self._process.stdout)
        while isinstance(answer, SchemaBegan):
            self.schema_id = answer.schema_id
            answer = await receive_message(self._process.stdout)
        self.answer, self.is_through = answer, True

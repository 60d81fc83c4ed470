"""Runs the process that rewrites segments, and swaps in the segments that it wrote."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator
from concurrent.futures import Executor

from tidelog_core.compaction.sealed_files import CleanedGroup
from tidelog_core.errors import StorageError
from tidelog_core.log.cleaned_segments import CleanedSegment
from tidelog_core.log.cleaning import CleaningSource
from tidelog_core.log.local_log import LocalLog

from tidelog_node.compaction.messages import RewriteEnd, RewriterJob
from tidelog_node.processes.piped_messages import encode_message, receive_message
from tidelog_node.processes.worker_version import VersionWatch, version_argument

LINGER_SECONDS_MAX = 10.0  # after its last message


async def rewrite(
    job: RewriterJob, versions: VersionWatch
) -> AsyncGenerator[CleanedGroup | RewriteEnd, None]:
    """Yield the messages of the process, which has ended when the generator is closed or ends.

    The caller must close the generator (``contextlib.aclosing``). Raises the process's errors
    (``CorruptRecordBatch``, ``OSError``), ``StorageError`` if it ends without a last message, and
    ``OtherVersion``.
    """
    versions.require_start()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tidelog_node.compaction.rewriter",
        version_argument(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    has_ended = False
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):  # Its last message has the cause.
            process.stdin.write(encode_message(job))
            await process.stdin.drain()
        while True:
            message = await _read(process, versions)
            versions.answered()
            if isinstance(message, Exception):
                raise message
            assert isinstance(message, CleanedGroup | RewriteEnd)
            has_ended = isinstance(message, RewriteEnd)
            yield message
            if has_ended:
                return
    finally:
        await _end(process, may_linger=has_ended)


async def _end(process: asyncio.subprocess.Process, *, may_linger: bool) -> None:
    """Wait until the process has ended; kill it unless it is about to end by itself."""
    if may_linger:
        # If it ends just before a signal, asyncio loses its exit status and logs a warning.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS_MAX):
                await process.wait()
                return
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def put_in_place(
    log: LocalLog, source: CleaningSource, cleaned: CleanedSegment, executor: Executor
) -> None:
    """Replace segments with a compacted one, durably; the executor waits for the disk.

    The loop is not blocked. An operation that needs the swap to be complete completes it first:
    ``tidelog_core.log.cleaned_segments`` names those operations. Raises as ``begin_replacing``.
    """
    loop = asyncio.get_running_loop()
    swap = log.begin_replacing(source, cleaned)
    while not swap.is_done:
        await loop.run_in_executor(executor, swap.run)
        log.go_on_replacing(swap)


async def _read(process: asyncio.subprocess.Process, versions: VersionWatch) -> object:
    assert process.stdout is not None
    try:
        return await receive_message(process.stdout)
    except EOFError:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS_MAX):
                await process.wait()
        versions.ended(process.returncode)
        raise StorageError("the process that rewrites ended unexpectedly") from None

"""Starts the process that rewrites segments, reads its results and ends it.

And puts what it has written in place.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator
from concurrent.futures import Executor

from tidelog_core.compaction.sealed_files import CleanedGroup
from tidelog_core.errors import StorageError
from tidelog_core.log.cleaned import CleanedSegment
from tidelog_core.log.cleaning import CleaningSource
from tidelog_core.log.local_log import LocalLog

from tidelog_node.compaction.messages import RewriteEnd, RewriterJob
from tidelog_node.piped_messages import encode_message, receive_message

LINGER_SECONDS_MAX = 10.0  # after its last word


async def rewrite(job: RewriterJob) -> AsyncGenerator[CleanedGroup | RewriteEnd, None]:
    """Yield what the process says; it is gone when the iterator is closed or ends.

    To be closed by ``contextlib.aclosing``. Raises what the process met with
    (``CorruptRecordBatch``, ``OSError``), ``StorageError`` if it ended without a word.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tidelog_node.compaction.rewriter",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    has_ended = False
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):  # What it wrote before tells more.
            process.stdin.write(encode_message(job))
            await process.stdin.drain()
        while True:
            message = await _read(process.stdout)
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
    """Wait until the process is gone; kill it unless it is about to end by itself."""
    if may_linger:
        # A signal to a process that ends just then makes asyncio lose its status, and say so.
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
    """Replace segments as ``LocalLog.replace_segments`` does; the executor waits for the disk.

    The loop goes on meanwhile. Whatever has to have the swap behind it waits for it and does the
    rest of it: ``tidelog_core.log.cleaned`` says what that is. Raises as it does.
    """
    loop = asyncio.get_running_loop()
    swap = log.begin_replacing(source, cleaned)
    while not swap.is_done:
        await loop.run_in_executor(executor, swap.run)
        log.go_on_replacing(swap)


async def _read(source: asyncio.StreamReader) -> object:
    try:
        return await receive_message(source)
    except EOFError:
        raise StorageError("the process that rewrites ended unexpectedly") from None

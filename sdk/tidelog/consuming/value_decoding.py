"""Decodes polled values in a thread, for one poll at a time.

A decoder is for one thread, and a thread cannot be ended. So a poll that is cancelled has its
thread stop after the batch at hand, and the next poll waits for that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from tidelog.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.arrow.values.schema_values import SchemaDecoder

    # The decoded batches, and those that are left.
    Decoded: TypeAlias = tuple[list[pa.RecordBatch], Sequence[pa.RecordBatch]]


def check_decoder(decode: object) -> None:
    """Raise ``InvalidRequest`` for anything but a ``SchemaDecoder``."""
    from tidelog.arrow.values.schema_values import SchemaDecoder  # Few programs have one.

    if not isinstance(decode, SchemaDecoder):
        raise InvalidRequest(
            f"decode must be a SchemaDecoder, such as SchemaDecoder(url, subject), is {decode!r}"
        )


class ValueDecoding:
    """The thread of one consumer's decoder."""

    def __init__(self) -> None:
        self._running: asyncio.Future[Decoded] | None = None

    async def decode(
        self, batches: Sequence[pa.RecordBatch], decoder: SchemaDecoder, *, size_bytes_max: int
    ) -> Decoded:
        """Return what ``decode_values`` does. Raises as it does."""
        from tidelog.consuming.arrow_polling import decode_values

        await self.wait()
        is_stopped = threading.Event()
        running = asyncio.get_running_loop().run_in_executor(
            None,
            partial(
                decode_values,
                batches,
                decoder,
                size_bytes_max=size_bytes_max,
                is_stopped=is_stopped.is_set,
            ),
        )
        self._running = running
        try:
            return await asyncio.shield(running)
        finally:
            is_stopped.set()
            if running.done():  # Its batches are not to be kept.
                self._running = None

    async def wait(self) -> None:
        """Return once no thread decodes."""
        while self._running is not None and not self._running.done():
            await asyncio.wait([self._running])
        if self._running is not None and not self._running.cancelled():
            self._running.exception()  # The poll that was cancelled does not ask for it.
        self._running = None

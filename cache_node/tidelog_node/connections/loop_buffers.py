"""The shared buffers, limits and threads of one loop's connections."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tidelog_node.fairness.request_memory import SHORT_FRAME_BYTES_MAX, RequestMemory

SCRATCH_BYTES = 131_072
QUEUED_CONTROL_BYTES_MAX = 1_048_576  # of control requests that wait for earlier ones
DISK_THREADS = 4  # to read slices from the disk


class LoopBuffers:
    """The buffers, limits and threads of one loop."""

    __slots__ = (
        "_scratch",
        "disk",
        "memory",
        "queued_control_bytes_max",
        "queued_requests_max",
        "request_bytes_max",
        "scratch",
    )

    def __init__(
        self,
        *,
        request_bytes_max: int,
        queued_requests_max: int,
        queued_request_bytes_max: int,
        frame_seconds_max: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.scratch = self._scratch  # to receive into; shorter while memory is short
        self.disk = ThreadPoolExecutor(DISK_THREADS, "tidelog-disk")
        self.request_bytes_max = request_bytes_max
        self.queued_requests_max = queued_requests_max
        self.queued_control_bytes_max = QUEUED_CONTROL_BYTES_MAX
        self.memory = RequestMemory(
            queued_request_bytes_max,
            frame_seconds_max=frame_seconds_max,
            loop=loop,
            on_short=self._on_short,
        )

    def _on_short(self, is_short: bool) -> None:
        self.scratch = self._scratch[:SHORT_FRAME_BYTES_MAX] if is_short else self._scratch
        self.queued_control_bytes_max = 0 if is_short else QUEUED_CONTROL_BYTES_MAX

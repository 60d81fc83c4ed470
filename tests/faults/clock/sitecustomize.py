"""Gives the process it is imported into a wall clock that jumps when it is told to.

Python imports ``sitecustomize`` before anything else where it finds one on its path. The
file named by ``TIDELOG_CHAOS_CLOCK`` has the jump, nanoseconds as a little-endian int64.
Monotonic clocks are left alone: those of a real machine do not jump either.
"""

import mmap
import os
import struct
import time


def _install(path: str) -> None:
    with open(path, "rb") as file:  # noqa: PTH123 - as few imports as can be
        view = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    real_time_ns = time.time_ns

    def time_ns() -> int:
        jump: int = struct.unpack_from("<q", view)[0]
        return real_time_ns() + jump

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if "TIDELOG_CHAOS_CLOCK" in os.environ:
    _install(os.environ["TIDELOG_CHAOS_CLOCK"])

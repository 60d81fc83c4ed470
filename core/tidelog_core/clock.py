"""The clocks of this machine: the wall clock, and a monotonic one."""

from __future__ import annotations

import time
from collections.abc import Callable

SteadyClock = Callable[[], float]
"""Returns milliseconds from some fixed moment. Never jumps back."""

# Continues while the machine is suspended, unlike the monotonic clock. On systems without it,
# machines are not suspended.
_STEADY_CLOCK_ID: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_clock_ms() -> int:
    """Return the Unix time in milliseconds, by which records are stamped and retained."""
    return time.time_ns() // 1_000_000


def steady_clock_ms() -> float:
    """Return the milliseconds since the machine was started, time suspended included.

    Leases are measured on it: they must also expire while the machine is suspended.
    """
    return time.clock_gettime(_STEADY_CLOCK_ID) * 1000


def monotonic_ms() -> int:
    """Return the milliseconds of ``time.monotonic``, the clock of asyncio's loops."""
    return int(time.monotonic() * 1000)

"""The clock that leases are measured on."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns milliseconds from some fixed moment. Never jumps back."""

# Goes on while the machine is suspended, unlike the monotonic clock, which a lease must
# not be measured on there. Where there is no such clock, machines are not suspended.
_CLOCK_ID: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock_ms() -> float:
    """Return the milliseconds since the machine was started, time suspended included."""
    return time.clock_gettime(_CLOCK_ID) * 1000

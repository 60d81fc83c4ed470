"""The clock that timestamps and retention go by."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Return the Unix time in milliseconds."""
    return time.time_ns() // 1_000_000

"""The clock that leases are measured on."""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.clock import steady_clock_ms

Clock = Callable[[], float]
"""Returns milliseconds from some fixed moment. Never jumps back."""

# A lease must also expire while the machine is suspended.
lease_clock_ms: Clock = steady_clock_ms

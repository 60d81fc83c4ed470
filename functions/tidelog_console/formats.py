"""How numbers and times read on a page. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

NONE = "–"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count(value: float | None) -> str:
    """Return a number with thin spaces between thousands."""
    return NONE if value is None else f"{value:,.0f}".replace(",", "\u202f")


def size(value: float | None) -> str:
    """Return a size in bytes for people."""
    if value is None or value < 0:
        return NONE
    unit = 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return (
        f"{value:.0f} {_UNITS[unit]}"
        if unit == 0 or value >= 100
        else f"{value:.1f} {_UNITS[unit]}"
    )


def seconds(value: float | None) -> str:
    """Return a duration for people."""
    if value is None:
        return NONE
    if value < 60:
        return f"{value:.1f} s" if 0 < value < 10 else f"{value:.0f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    if value < 172_800:
        return f"{value / 3600:.1f} h"
    return f"{value / 86_400:.1f} d"


def moment(value_ms: float | None) -> str:
    """Return a Unix time in milliseconds as UTC."""
    if value_ms is None or value_ms < 0:
        return NONE
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(value_ms / 1000)) + " UTC"
    except (OverflowError, ValueError, OSError):
        return NONE


def dollars(value: float | None) -> str:
    """Return an amount of money: small ones with three digits that count."""
    if value is None:
        return NONE
    if value == 0 or value >= 100:
        return f"${value:,.0f}"
    if value >= 1:
        return f"${value:.2f}"
    digits = 2 - math.floor(math.log10(value))
    return f"${value:.{digits}f}" if digits <= 8 else "under $0.000001"


def amount(value: float) -> str:
    """Return a number of units, which may be a fraction."""
    return count(value) if value >= 100 or value == int(value) else f"{value:.3g}"


FILTERS: Mapping[str, Callable[..., Any]] = {
    "count": count,
    "size": size,
    "seconds": seconds,
    "moment": moment,
    "dollars": dollars,
    "amount": amount,
}

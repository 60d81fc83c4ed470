"""The offset at which a group begins to read a partition without a committed offset.

    earliest | latest | by_duration:<ISO 8601 duration, PnDTnHnMn.nS>

Source: KIP-932 (``share.auto.offset.reset``), and ``java.time.Duration.parse``, which Kafka
reads the duration with: days are 24 hours, letters may be small, every part has its own sign.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_BY_DURATION = "by_duration:"
_DIGITS_MAX = 15  # of one part; a longer one is beyond every possible time
_DURATION = re.compile(
    rf"(?P<sign>[-+]?)P(?:(?P<days>[-+]?[0-9]{{1,{_DIGITS_MAX}}})D)?"
    rf"(?:T(?=[-+0-9])(?:(?P<hours>[-+]?[0-9]{{1,{_DIGITS_MAX}}})H)?"
    rf"(?:(?P<minutes>[-+]?[0-9]{{1,{_DIGITS_MAX}}})M)?"
    rf"(?:(?P<seconds>[-+]?[0-9]{{1,{_DIGITS_MAX}}})(?:[.,](?P<fraction>[0-9]{{0,9}}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """The offset to begin with: the log's first, its end, or of some time before now."""

    strategy: Literal["earliest", "latest", "by_duration"]
    duration_ms: int = 0  # before now; of ``by_duration`` only, and never negative


def parse_offset_reset(text: str) -> OffsetReset:
    """Parse ``text``. Raises ``ValueError`` that lists the allowed values."""
    match text:
        case "earliest":
            return OffsetReset("earliest")
        case "latest":
            return OffsetReset("latest")
    if text.startswith(_BY_DURATION):
        duration_ms = _duration_ms(text.removeprefix(_BY_DURATION))
        if duration_ms is not None and duration_ms >= 0:
            return OffsetReset("by_duration", duration_ms)
    raise ValueError("must be earliest, latest or by_duration:<PnDTnHnMn.nS>")


def _duration_ms(text: str) -> int | None:
    """Return the duration, cut to milliseconds, or ``None`` where ``text`` is none."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found[name] for name in _MS):
        return None
    total_ms = sum(int(found[name] or 0) * ms for name, ms in _MS.items())
    fraction_ms = int((found["fraction"] or "").ljust(3, "0")[:3])
    total_ms += -fraction_ms if (found["seconds"] or "").startswith("-") else fraction_ms
    return -total_ms if found["sign"] == "-" else total_ms

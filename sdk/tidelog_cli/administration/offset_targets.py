"""Targets of ``reset-offsets``, and the offsets they select. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from tidelog_cli.failures import UsageError

TargetKind = Literal["earliest", "latest", "current", "offset", "time", "shift"]


@dataclass(frozen=True, slots=True)
class Target:
    """A target; ``number`` is the offset, the time in ms or the shift."""

    kind: TargetKind
    number: int = 0


def new_offset(
    target: Target, *, committed: int | None, start: int, end: int, found: int | None
) -> int | None:
    """Return the offset to commit, within ``[start, end]``.

    ``found`` is the offset of the first record at or after the target's time; None selects
    the end. Returns None if the target depends on a committed offset and ``committed`` is
    None.
    """
    match target.kind:
        case "earliest":
            wanted: int | None = start
        case "latest":
            wanted = end
        case "offset":
            wanted = target.number
        case "time":
            wanted = end if found is None else found
        case "current":
            wanted = committed
        case "shift":
            wanted = None if committed is None else committed + target.number
    return None if wanted is None else min(max(wanted, start), end)


def parse_time(text: str) -> int:
    """Return a Unix time in ms, parsed from digits or from a date and time (UTC by default).

    Raises ``UsageError``.
    """
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--to-timestamp {text!r} must be ms since 1970, or a time like 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise UsageError(f"--to-timestamp {text!r} is before 1970")
    return milliseconds

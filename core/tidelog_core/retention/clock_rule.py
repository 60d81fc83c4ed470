"""Decides whether a clock may expire records. Pure: the times of all clocks are passed in.

Retention by time removes records because one wall clock says that they are old. A clock that is
days ahead would remove acknowledged records too early, in the bucket too. So it is compared with
other clocks, and expires nothing while it is ahead of them by more than a bound. A clock that is
behind, or ahead by less, only moves retention by that much.

It is compared with these clocks:

- *witnesses*: other clocks whose time was received recently. Since then they are assumed to run
  at the rate of the steady clock. A witness suspends expiry if our clock is too far ahead of it.
- An *independent* witness is a clock that others maintain: the metadata store's on
  AWS, the bucket's. Its time decides, both ways.
- The others are the clocks of other nodes and file systems. They may be wrong in the same
  way as ours: two nodes of one machine share a clock. So they can suspend expiry but not
  allow it. While one of them is behind, it is unknown which of the two is wrong, and
  records are kept; the reason names that clock, and an operator has to correct it.
- Without an independent witness, the *steady clock* shows jumps of the wall clock while the
  process runs. A jump may also be a correction, or a virtual machine that was stopped: so it
  suspends expiry only for a time (``settle_ms``), in which an operator can correct the clock.

The newest record is no witness. Producers choose timestamps, and in a topic without writes the
newest record is days behind a right clock.

So, if every clock but ours is right to within a part of the bound: while any of them is heard,
a clock that is ahead by more than the bound decides nothing; and a right clock decides at once,
or, where there is no independent witness, ``settle_ms`` after it was set right at the latest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

# The steady clock may have stopped with a virtual machine, so a witness does not count for ever.
WITNESS_AGE_MS_MAX = 3_600_000


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The time of our two clocks at one moment, milliseconds."""

    wall_ms: int  # Unix time
    steady_ms: float  # from some fixed moment, never set


@dataclass(frozen=True, slots=True)
class Witness:
    """The time of another clock, and of our steady clock when it was heard."""

    name: str  # as shown to operators
    wall_ms: int
    heard_steady_ms: float
    is_independent: bool = False


@dataclass(frozen=True, slots=True)
class ClockBounds:
    """How far a clock may be ahead, and the time after a jump, in milliseconds."""

    ahead_max_ms: int
    settle_ms: int


@dataclass(frozen=True, slots=True)
class Doubt:
    """The reason why the clock may not decide."""

    ahead_ms: int
    ahead_of: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result, and the state for judging the next reading."""

    doubt: Doubt | None  # None: the clock may decide
    trusted: ClockReading
    jumped_steady_ms: float | None  # when a jump was first seen; None: no jump


OWN_STEADY_CLOCK = "what it was before it jumped"


def first_judgement(reading: ClockReading) -> Judgement:
    """Return the judgement at the start of a process, without doubts."""
    return Judgement(None, reading, None)


def judge_clock(
    now: ClockReading, witnesses: Iterable[Witness], before: Judgement, bounds: ClockBounds
) -> Judgement:
    """Return whether the clock may decide, by the witnesses and the judgement before."""
    heard = [w for w in witnesses if now.steady_ms - w.heard_steady_ms <= WITNESS_AGE_MS_MAX]
    independent = [witness for witness in heard if witness.is_independent]
    doubts = [
        Doubt(ahead_ms, witness.name)
        for witness in independent or heard
        if (ahead_ms := _ahead_ms(now, witness.wall_ms, witness.heard_steady_ms))
        > bounds.ahead_max_ms
    ]
    if doubts:
        worst = max(doubts, key=lambda doubt: doubt.ahead_ms)
        return dataclasses.replace(before, doubt=worst)
    if independent:
        return first_judgement(now)
    ahead_ms = _ahead_ms(now, before.trusted.wall_ms, before.trusted.steady_ms)
    if ahead_ms <= bounds.ahead_max_ms:
        return first_judgement(now)
    since = now.steady_ms if before.jumped_steady_ms is None else before.jumped_steady_ms
    if now.steady_ms - since >= bounds.settle_ms:
        return first_judgement(now)
    return Judgement(Doubt(ahead_ms, OWN_STEADY_CLOCK), before.trusted, since)


def _ahead_ms(now: ClockReading, wall_ms: int, steady_ms: float) -> int:
    """Return how far our clock is ahead of one that showed ``wall_ms`` at ``steady_ms``."""
    return round(now.wall_ms - wall_ms - (now.steady_ms - steady_ms))

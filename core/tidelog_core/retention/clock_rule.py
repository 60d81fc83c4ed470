"""Whether a clock may decide what is too old. Pure: it is told what clocks say.

Retention by time removes records for good because one wall clock says that they are old. A
clock that runs ahead by days would take acknowledged records with it, those in the bucket
included, so it is compared with what else is known of the time, and decides nothing while it
is further ahead of that than a bound. To be behind, or ahead by less, only moves retention by
as much.

What is known, and what it is good for:

- *witnesses*, other clocks that were heard not long ago. Since then they are taken to have
  gone on as fast as the steady clock. One that our clock is too far ahead of holds it back.
- An *independent* witness is a clock that somebody else keeps right: the metadata store's on
  AWS, the bucket's. What it says settles the matter, both ways.
- The others are other nodes' clocks and those of file systems. They may be wrong in the same
  way as ours: two nodes of one machine share a clock. So they can hold it back, and cannot
  vouch for it. While one of them is behind, nobody can tell which of the two is wrong, and
  records are kept: the reason that is given names it, and its clock is to be set right.
- Without a word from an independent one, the *steady clock* tells of a jump of ours while the
  process runs. That may also be a clock that is set right at last, or a virtual machine that
  was stopped: so it holds retention back for a time only (``settle_ms``), in which somebody
  can put the clock right again.

The newest record is no witness. Producers choose timestamps, and in a topic that nobody
writes to any more a right clock leaves the newest record days behind.

So, if every clock but ours is right to within a part of the bound: while any of them is heard,
a clock that is ahead by more than the bound decides nothing; and a right clock decides at once,
or, where there is no independent witness, ``settle_ms`` after it was set right at the latest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

# A steady clock that stood still with a virtual machine must not speak for a witness for ever.
WITNESS_AGE_MS_MAX = 3_600_000


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What our two clocks said at one moment, milliseconds."""

    wall_ms: int  # Unix time
    steady_ms: float  # from some fixed moment, never set


@dataclass(frozen=True, slots=True)
class Witness:
    """What another clock said, and when by our steady clock it was heard."""

    name: str  # as people are told
    wall_ms: int
    heard_steady_ms: float
    is_independent: bool = False


@dataclass(frozen=True, slots=True)
class ClockBounds:
    """How far the clock may be ahead, and how long a jump is doubted, milliseconds."""

    ahead_max_ms: int
    settle_ms: int


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why the clock may not decide."""

    ahead_ms: int
    ahead_of: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found, and what to judge the next reading by."""

    doubt: Doubt | None  # None: the clock may decide
    trusted: ClockReading
    jumped_steady_ms: float | None  # when a jump was first seen; None: there is none


OWN_STEADY_CLOCK = "what it was before it jumped"


def first_judgement(reading: ClockReading) -> Judgement:
    """Return what there is to know when a process begins: nothing speaks against the clock."""
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
    """Return how far our clock is ahead of one that said ``wall_ms`` at ``steady_ms``."""
    return round(now.wall_ms - wall_ms - (now.steady_ms - steady_ms))

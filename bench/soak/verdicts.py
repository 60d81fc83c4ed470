"""Decides whether a series is flat, by the same numbers for every run.

The trend is the Theil-Sen slope, the median of the slopes of all pairs of samples: outliers among
a fifth of the samples hardly change it. The growth by the trend over the judged time must not be
more than

    allowed an hour x hours x median  +  noise

where noise is the greater of a floor, below which the figure has no meaning, and the median
distance of the samples from the trend: less growth cannot be distinguished from noise. A fall is
reported and is no failure.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SAMPLES_MIN = 10
SLOPE_SAMPLES_MAX = 400  # the number of pairs grows with the square


@dataclass(frozen=True, slots=True)
class Limit:
    """The allowed growth of a figure."""

    figure: str
    part_of_median_an_hour: float
    noise_floor: float  # in the figure's unit
    at_most: float | None = None  # of every sample


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one figure."""

    name: str
    is_good: bool
    found: str


def theil_sen(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the median slope of all pairs; the times must rise."""
    return statistics.median(
        (values[later] - values[earlier]) / (times[later] - times[earlier])
        for earlier in range(len(times))
        for later in range(earlier + 1, len(times))
    )


def judge(limit: Limit, seconds: Sequence[float], values: Sequence[float]) -> Verdict:
    """Return the verdict whether the series grows no more than the limit allows."""
    if len(values) < SAMPLES_MIN:
        return Verdict(limit.figure, False, f"{len(values)} samples, {SAMPLES_MIN} are needed")
    step = 1 + len(values) // SLOPE_SAMPLES_MAX
    slope = theil_sen(seconds[::step], values[::step])
    median, duration = statistics.median(values), seconds[-1] - seconds[0]
    middle = statistics.median(
        value - slope * second for second, value in zip(seconds, values, strict=True)
    )
    noise = statistics.median(
        abs(value - slope * second - middle) for second, value in zip(seconds, values, strict=True)
    )
    growth = slope * duration
    allowed = limit.part_of_median_an_hour * duration / 3600 * median
    allowed += max(noise, limit.noise_floor)
    found = f"median {median:.4g}, {growth:+.3g} in {duration / 60:.1f} min, allowed {allowed:.3g}"
    is_good = growth <= allowed
    if limit.at_most is not None:
        found += f"; at most {max(values):.4g} of {limit.at_most:.4g}"
        is_good = is_good and max(values) <= limit.at_most
    return Verdict(limit.figure, is_good, found)

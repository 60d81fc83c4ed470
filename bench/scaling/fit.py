"""Fits a cost to a count: a straight line, and the deviation of its end. Pure.

A line, and not a power law: every cost here has a base that has nothing to do with the
count (imports, timers, the request itself), which hides the exponent of what grows on it; and
what one more thing may cost can be argued, an exponent cannot. Steps are ten times apart, so
residuals count relative to the cost, else the largest step would be all that is fitted.

Two slopes are held against the bound: that of the line through all steps, and that of
the last two, which is what one more costs where there are many. A cost that grows faster
than its count fails by the second. The exponent of what exceeds the base is printed beside
them: 1 is a line, 2 a square.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[int, float]
"""A count, and the cost beside it."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The difference allowed between two equal measurements: an amount, or a share of the cost."""

    amount: float
    share: float

    def of(self, cost: float) -> float:
        """Return what a figure of this size may be off."""
        return max(self.amount, self.share * abs(cost))


@dataclass(frozen=True, slots=True)
class Fit:
    """The line ``base + slope * count``, and the end of what it goes through."""

    base: float
    slope: float
    last_slope: float  # between the last two steps
    exponent: float | None  # of what exceeds the first step's cost; None: noise hides it


def fit(points: Sequence[Point], noise: Noise) -> Fit:
    """Return the line through the points, of which there are one or more, by ascending count."""
    weights = [1 / (noise.amount + noise.of(cost)) ** 2 for _, cost in points]
    total = sum(weights)
    middle_count = sum(w * n for w, (n, _) in zip(weights, points, strict=True)) / total
    middle_cost = sum(w * cost for w, (_, cost) in zip(weights, points, strict=True)) / total
    spread = sum(w * (n - middle_count) ** 2 for w, (n, _) in zip(weights, points, strict=True))
    slope = 0.0
    if spread:
        slope = (
            sum(
                w * (n - middle_count) * (cost - middle_cost)
                for w, (n, cost) in zip(weights, points, strict=True)
            )
            / spread
        )
    return Fit(
        base=middle_cost - slope * middle_count,
        slope=slope,
        last_slope=_secant(*points[-2:]) if len(points) > 1 else 0.0,
        exponent=_exponent(points, noise),
    )


def is_too_steep(points: Sequence[Point], noise: Noise, *, slope_max: float) -> bool:
    """Return whether either slope is above what it may be by more than noise explains."""
    if len(points) < 2:
        return False
    found = fit(points, noise)
    (first, first_cost), (before, before_cost), (last, last_cost) = (
        points[0],
        points[-2],
        points[-1],
    )
    # The bound leaves room for the cost itself, of which noise is a share.
    noise_all = noise.of(max(first_cost, last_cost))
    noise_end = noise.of(max(before_cost, last_cost))
    return found.slope > slope_max + noise_all / (
        last - first
    ) or found.last_slope > slope_max + noise_end / (last - before)


def _secant(first: Point, second: Point) -> float:
    return (second[1] - first[1]) / (second[0] - first[0])


def _exponent(points: Sequence[Point], noise: Noise) -> float | None:
    first_cost = points[0][1]
    risen = [
        (count, cost - first_cost)
        for count, cost in points[1:]
        if cost - first_cost > noise.of(first_cost)
    ]
    if len(risen) < 2:
        return None
    (before, cost_before), (last, cost_last) = risen[-2:]
    return math.log(cost_last / cost_before) / math.log(last / before)

"""Fits a cost to a count: a straight line, and the deviation of its end. Pure.

A line is fitted, not a power law: every cost has a base that does not depend on the count
(imports, timers, the request itself), which hides the exponent of the growing part. A bound for
the cost of one more can be justified, a bound for an exponent cannot. Steps are ten times apart,
so residuals are relative to the cost; otherwise only the largest step would determine the line.

Two slopes are compared with the bound: the slope of the line through all steps, and the slope
between the last two, which is the cost of one more among many. A cost that grows faster than its
count fails by the second. The exponent of the part above the base is printed beside them: 1 is a
line, 2 a square.
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
        """Return the allowed error of a figure of this size."""
        return max(self.amount, self.share * abs(cost))


@dataclass(frozen=True, slots=True)
class Fit:
    """The line ``base + slope * count``, and the slope at its end."""

    base: float
    slope: float
    last_slope: float  # between the last two steps
    exponent: float | None  # of the part above the first step's cost; None: noise hides it


def fit(points: Sequence[Point], noise: Noise) -> Fit:
    """Return the line through one or more points, in ascending order of counts."""
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
    """Return whether either slope exceeds the bound by more than the noise."""
    if len(points) < 2:
        return False
    found = fit(points, noise)
    (first, first_cost), (before, before_cost), (last, last_cost) = (
        points[0],
        points[-2],
        points[-1],
    )
    # The noise is a share of the cost.
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

"""Writes the figures of all steps as a table with slopes, bounds and verdicts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.scaling.dimension import JUDGED, Dimension, Measure
from bench.scaling.fit import fit, is_too_steep

Figures = Mapping[Measure, float]
PER = 1_000  # units for which slopes are printed


@dataclass(frozen=True, slots=True)
class Row:
    """One measure of a dimension at all steps with a figure."""

    measure: Measure
    points: Sequence[tuple[int, float]]
    slope: float | None  # per unit; None: of one point
    last_slope: float | None  # between the last two steps
    slope_max: float | None  # per unit; None: not judged
    exponent: float | None
    is_good: bool
    why: str

    @property
    def verdict(self) -> str:
        """Return the outcome."""
        if self.slope_max is None or self.slope is None:
            return ""
        return "held" if self.is_good else "TOO STEEP"


def rows(dimension: Dimension, seen: Mapping[int, Figures]) -> list[Row]:
    """Return a row for each measure with figures, in the order of ``Measure``."""
    found = []
    for measure in Measure:
        points = [(n, figures[measure]) for n, figures in seen.items() if measure in figures]
        if points and any(value for _, value in points):
            found.append(_row(dimension, measure, points))
    return found


def _row(dimension: Dimension, measure: Measure, points: Sequence[tuple[int, float]]) -> Row:
    noise = JUDGED.get(measure)
    if noise is None or len(points) < 2:
        return Row(measure, points, None, None, None, None, is_good=True, why="")
    growth = dimension.may_grow.get(measure)
    slope_max, why = (growth.per_unit, growth.why) if growth else (0.0, "")
    if measure is Measure.WORK_CPU:
        slope_max *= points[0][1]
    found = fit(points, noise)
    return Row(
        measure,
        points,
        found.slope,
        found.last_slope,
        slope_max,
        found.exponent,
        is_good=not is_too_steep(points, noise, slope_max=slope_max),
        why=why,
    )


def page(dimension: Dimension, seen: Mapping[int, Figures], *, beside: str = "") -> str:
    """Return the dimension's table in Markdown; ``beside`` names a broker other than Tidelog."""
    found = rows(dimension, seen)
    title = f"## {dimension.name}{', ' + beside if beside else ''}"
    lines = [title, "", f"One more is {dimension.what}.", ""]
    counts = [f"{count:,}" for count in seen]
    head = ["", *counts, f"slope per {PER:,}", "of the last two", "may be", "exponent", ""]
    lines += [_line(head), _line(["---", *["---:"] * (len(head) - 2), "---"])]
    for row in found:
        values = dict(row.points)
        cells = [_number(values[count]) if count in values else "" for count in seen]
        slopes = [_slope(row.slope), _slope(row.last_slope), _slope(row.slope_max)]
        exponent = "" if row.exponent is None else f"{row.exponent:.1f}"
        verdict = "" if beside else row.verdict
        lines.append(_line([row.measure.value, *cells, *slopes, exponent, verdict]))
    reasons = [f"- {row.measure.value}: {row.why}" for row in found if row.why]
    rest = "What is not named here may not grow." if reasons else "None of these may grow."
    return "\n".join([*lines, "", *reasons, *([""] if reasons else []), rest, ""])


def comparison(
    dimension: Dimension, before: Mapping[int, Figures], after: Mapping[int, Figures]
) -> str:
    """Return the steps of both runs, as «before → after», in Markdown."""
    counts = [count for count in after if count in before]
    head = [dimension.name, *(f"{count:,}" for count in counts), f"slope per {PER:,}", "may be"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    earlier = {row.measure: row for row in rows(dimension, before)}
    for row in rows(dimension, after):
        if row.measure not in earlier:
            continue
        old, new = dict(earlier[row.measure].points), dict(row.points)
        cells = [f"{_number(old[count])} → {_number(new[count])}" for count in counts]
        slopes = [_slope(earlier[row.measure].slope), _slope(row.slope)]
        slope = " → ".join(slopes) if all(slopes) else ""
        lines.append(_line([row.measure.value, *cells, slope, _slope(row.slope_max)]))
    return "\n".join([*lines, ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _slope(value: float | None) -> str:
    return "" if value is None else _number(value * PER)


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.005 else "0"

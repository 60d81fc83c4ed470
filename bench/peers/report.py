"""Writes a run's figures as CSV and as a page of tables."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.peers.figures import BARE, Figure, Key, Spread, problems, spreads
from bench.peers.goals import Judged, judge

_COLUMNS = ("tidelog", "kafka", "tansu", BARE)


def write_csv(figures: Iterable[Figure], path: Path) -> None:
    """Write a line for each figure of each round."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("workload", "case", "peer", "round", "metric", "value", "problem"))
        for one in figures:
            value = "" if one.value is None else f"{one.value:.6g}"
            where = (one.workload, one.case, one.peer, one.round_index)
            writer.writerow((*where, one.metric, value, one.problem))


def page(figures: Sequence[Figure], facts: Sequence[str], plots: Sequence[str]) -> str:
    """Return the report in Markdown; ``facts`` describe the run and its machine."""
    medians = spreads(figures)
    parts = ["# Tidelog beside its peers", "\n".join(f"- {fact}" for fact in facts)]
    parts += ["## Goals", goal_table(judge(medians))]
    if failed := problems(figures):
        parts += ["## What failed", "\n".join(_failures(failed))]
    for workload in dict.fromkeys(key[0] for key in medians):
        parts += [f"## {workload.capitalize()}", _table(workload, medians)]
    parts += [f"![{name}]({name})" for name in plots]
    return "\n\n".join(parts) + "\n"


def goal_table(judged: Sequence[Judged]) -> str:
    """Return a table of the goals and the run's values."""
    lines = ["| goal | wanted | seen | |", "|---|---|---|---|"]
    for one in judged:
        sign = "≥" if one.goal.is_at_least else "≤"
        seen = "" if one.value is None else _number(one.value)
        wanted = f"{sign} {_number(one.goal.bound)}"
        lines.append(f"| {one.goal.text} | {wanted} | {seen} | {one.verdict} |")
    return "\n".join(lines)


def _failures(failed: Mapping[tuple[str, str, str], str]) -> list[str]:
    return [
        f"- {workload}, {case}, {peer}: failed: {problem}"
        for (workload, case, peer), problem in failed.items()
    ]


def _table(workload: str, medians: Mapping[Key, Spread]) -> str:
    lines = [
        "| case | metric | Tidelog | Kafka | Tansu | bare loop | of Kafka's | of Tansu's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = dict.fromkeys(key[1:3] for key in medians if key[0] == workload)
    for case, metric in rows:
        found = [medians.get((workload, case, metric, peer)) for peer in _COLUMNS]
        cells = [_cell(spread) for spread in found]
        ratios = [_ratio(found[0], other) for other in found[1:3]]
        lines.append("| " + " | ".join((case, metric, *cells, *ratios)) + " |")
    return "\n".join(lines)


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return ""
    if spread.lowest == spread.highest:
        return _number(spread.median)
    return f"{_number(spread.median)} ({_number(spread.lowest)}–{_number(spread.highest)})"


def _ratio(own: Spread | None, other: Spread | None) -> str:
    return f"{own.median / other.median:.2f}" if own and other and other.median else ""


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"

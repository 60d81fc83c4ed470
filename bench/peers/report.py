"""Writes a run's figures as CSV and as a page of tables."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.peers.figures import BARE, Figure, Key, Spread, problems, spreads
from bench.peers.goals import Goal, Judged, judge

_PEERS = {"tidelog": "Tidelog", "kafka": "Kafka", "tansu": "Tansu"}


def write_csv(figures: Iterable[Figure], path: Path) -> None:
    """Write a line for each figure of each round."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("workload", "case", "peer", "round", "metric", "value", "problem"))
        for one in figures:
            value = "" if one.value is None else f"{one.value:.6g}"
            where = (one.workload, one.case, one.peer, one.round_index)
            writer.writerow((*where, one.metric, value, one.problem))


def page(
    figures: Sequence[Figure],
    facts: Sequence[str],
    plots: Sequence[str] = (),
    *,
    title: str = "Tidelog beside its peers",
    goals: Sequence[Goal] | None = None,
    peers: Mapping[str, str] = _PEERS,
) -> str:
    """Return the report in Markdown; ``facts`` describe the run and its machine.

    ``peers`` are the columns, by the peers' names, Tidelog first.
    """
    medians = spreads(figures)
    parts = [f"# {title}", "\n".join(f"- {fact}" for fact in facts)]
    if goals is None or goals:
        parts += ["## Goals", goal_table(judge(medians, goals))]
    if failed := problems(figures):
        parts += ["## What failed", "\n".join(_failures(failed))]
    for workload in dict.fromkeys(key[0] for key in medians):
        parts += [f"## {workload.capitalize()}", _table(workload, medians, peers)]
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


def _table(workload: str, medians: Mapping[Key, Spread], peers: Mapping[str, str]) -> str:
    others = list(peers.values())[1:]
    has_bare = any(key[3] == BARE for key in medians)
    names = ["case", "metric", *peers.values(), *["bare loop"] * has_bare]
    names += [f"of {name}'s" for name in others]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    columns = [*peers, *[BARE] * has_bare]
    rows = dict.fromkeys(key[1:3] for key in medians if key[0] == workload)
    for case, metric in rows:
        found = [medians.get((workload, case, metric, peer)) for peer in columns]
        cells = [_cell(spread) for spread in found]
        ratios = [_ratio(found[0], other) for other in found[1 : len(peers)]]
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

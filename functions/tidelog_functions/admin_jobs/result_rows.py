"""The partitions that a job's result names: no more than the job's item has room for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

ROWS_MAX = 1_000  # partitions of a result; with more, only those where something was found
ROWS_CHARACTERS_MAX = 200_000  # of them as JSON; the receipt has all partitions


def bounded_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary with a bounded number of partitions."""
    rows = summary["partitions"]
    if len(rows) > ROWS_MAX:
        rows = [one for one in rows if one["problems"] or one["replaced_segments"]][:ROWS_MAX]
        rows = [{**one, "problems": one["problems"][:1]} for one in rows]
    shown = fitting_rows(rows, lambda row: bool(row["problems"] or row["replaced_segments"]))
    return {**summary, "partitions": shown, "partition_count": len(summary["partitions"])}


def fitting_rows(
    rows: list[dict[str, Any]], says_something: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Return the rows if they fit into an item, else the first that ``says_something`` takes."""
    if len(json.dumps(rows)) <= ROWS_CHARACTERS_MAX:
        return rows
    left, kept = ROWS_CHARACTERS_MAX, list[dict[str, Any]]()
    for row in filter(says_something, rows):
        left -= len(json.dumps(row))
        if left < 0:
            break
        kept.append(row)
    return kept

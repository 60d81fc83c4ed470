"""Output of commands: tables and JSON on stdout, notes and progress on stderr.

stdout contains only results, so it can be piped. A table is aligned text, one line per
row; ``--json`` prints one JSON document instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

D = TypeVar("D")

UNKNOWN = "-"

Advance = Callable[[int], None]
"""Adds an amount to a progress bar."""


def print_json(document: object) -> None:
    """Print one JSON document."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def counted(number: int, noun: str) -> str:
    """Return the number and the noun, in the plural unless the number is 1."""
    return f"{number} {noun}{'s' * (number != 1)}"


def print_rows(
    rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, is_json: bool
) -> None:
    """Print the rows as JSON, or as a table of each row's first values."""
    if is_json:
        print_json(rows)
    else:
        print_table(columns, [list(row.values())[: len(columns)] for row in rows])


def print_documents(documents: Sequence[D], show: Callable[[D], None], *, is_json: bool) -> None:
    """Print the documents as JSON, or each with ``show``, separated by empty lines."""
    if is_json:
        print_json(documents)
        return
    for number, document in enumerate(documents):
        if number:
            print()
        show(document)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns under their names; numbers are right-aligned."""
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [
        max([len(name), *(len(row[column]) for row in texts)])
        for column, name in enumerate(columns)
    ]
    numeric = [
        bool(rows) and all(isinstance(row[column], int | None) for row in rows)
        for column in range(len(columns))
    ]
    for row in [[name.upper() for name in columns], *texts]:
        cells = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(row, widths, numeric, strict=True)
        ]
        print("  ".join(cells).rstrip())


def note(text: str) -> None:
    """Print a note on stderr."""
    print(f"tidelog: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, *, total: int | None, unit: str = "bytes") -> Iterator[Advance]:
    """Show a bar on stderr while the block runs, if stderr is a terminal.

    ``total`` is None if the amount is not known. A unit other than ``bytes`` is printed
    unscaled.
    """
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}")]
    columns += [BarColumn(), *_amount_columns(unit, total)]
    if total is not None:
        columns.append(TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda amount: bar.advance(task, amount)


def show_reading(object_count: int) -> AbstractContextManager[Advance]:
    """Show a bar while a bucket is read."""
    return progress("reading", total=object_count, unit="objects")


def _amount_columns(unit: str, total: int | None) -> list[Any]:
    from rich.progress import DownloadColumn, TextColumn, TransferSpeedColumn

    if unit == "bytes":
        return [DownloadColumn(), TransferSpeedColumn()]
    if total is None:
        return [TextColumn("{task.completed:.0f} " + unit)]
    return [TextColumn("{task.completed:.0f}/{task.total:.0f} " + unit)]


def _ignore(_amount: int) -> None:
    pass


def _cell(value: object) -> str:
    return UNKNOWN if value is None or value == "" else str(value)

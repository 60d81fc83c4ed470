"""An export in a process of its own that gets a signal: ``python -m tests.spark.jobs.export.export_driver``.

    FORMAT FOLDER STEP SIGNAL METADATA OBJECTS

STEP is ``files`` (the first files are written, others are not), ``before-commit`` or ``after-commit``;
the process sends itself the signal there. Without a STEP (``-``) the export runs to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from tidelog_spark.jobs.export.exporting import ExportRequest, export
from tidelog_spark.jobs.task_runner import LocalTasks

from tests.spark.jobs.erased_exports import TARGETS

T = TypeVar("T")
R = TypeVar("R")


class _StoppingTable:
    def __init__(self, table: object, step: str, stop: Callable[[], None]) -> None:
        self._table, self._step, self._stop = table, step, stop

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)

    def commit(self, *arguments: object, **named: object) -> None:
        if self._step == "before-commit":
            self._stop()
        self._table.commit(*arguments, **named)  # type: ignore[attr-defined]
        if self._step == "after-commit":
            self._stop()


class _StoppingTasks(LocalTasks):
    def __init__(self, step: str, stop: Callable[[], None]) -> None:
        self._step, self._stop = step, stop

    def run(self, tasks: Sequence[T], work: Callable[[Iterable[T]], Iterator[R]]) -> list[R]:
        found = []
        for one in work(tasks):
            found.append(one)
            if self._step == "files":
                self._stop()
        return found


def main() -> None:
    """Run the export."""
    name, folder, step, number, metadata, objects = sys.argv[1:]
    target = TARGETS[name](Path(folder))

    def stop() -> None:
        os.kill(os.getpid(), signal.Signals[number])

    request = ExportRequest(metadata=metadata, objects=objects, topics=("t",))
    table = _StoppingTable(target.table(), step, stop)
    export(_StoppingTasks(step, stop), request, table)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()

"""Runs an export's tasks: in Spark's Python workers, or in this process.

A task is pure Python on both sides, so an export of a few segments needs neither Java nor a
Spark session. A Spark session spreads a large one over its executors.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from tidelog_core.errors import TidelogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_MAX = 10_000  # of one Spark job; more share tasks

T = TypeVar("T")
R = TypeVar("R")


class TaskRunner(Protocol):
    """Runs tasks, each at least once."""

    def run(self, tasks: Sequence[T], work: Callable[[Iterable[T]], Iterator[R]]) -> list[R]:
        """Return the results of all tasks. ``work`` gets some of them, and may be repeated."""


class SparkTasks:
    """Tasks in a Spark session. Both ``work`` and the tasks are pickled."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, tasks: Sequence[T], work: Callable[[Iterable[T]], Iterator[R]]) -> list[R]:
        """Return the results of all tasks."""
        if not tasks:
            return []
        context = self._spark.sparkContext
        found: list[R | _Failed] = (
            context.parallelize(tasks, min(len(tasks), TASKS_MAX))
            .mapPartitions(partial(_carrying, work=work))
            .collect()
        )
        for one in found:
            if isinstance(one, _Failed):
                raise one.error
        return [one for one in found if not isinstance(one, _Failed)]


@dataclass(frozen=True, slots=True)
class _Failed:
    """A task's failure that another attempt would have too."""

    error: TidelogError


def _carrying(
    tasks: Iterable[T], work: Callable[[Iterable[T]], Iterator[R]]
) -> Iterator[R | _Failed]:
    """Yield the results, and an error that is not retriable as the last one.

    Spark would repeat such a task, and tell its driver only the text of a traceback.
    """
    try:
        yield from work(tasks)
    except TidelogError as error:
        if error.retriable or not _is_portable(error):
            raise
        yield _Failed(error)


def _is_portable(error: TidelogError) -> bool:
    """Return whether the error is the same after pickling."""
    try:
        return str(pickle.loads(pickle.dumps(error))) == str(error)
    except TypeError:  # Its constructor takes something else than its text.
        return False


class LocalTasks:
    """Tasks one after the other, in this process."""

    def run(self, tasks: Sequence[T], work: Callable[[Iterable[T]], Iterator[R]]) -> list[R]:
        """Return the results of all tasks."""
        return list(work(tasks))

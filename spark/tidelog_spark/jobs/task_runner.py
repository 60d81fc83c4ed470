"""Runs an export's tasks: in Spark's Python workers, or in this process.

A task is pure Python on both sides, so an export of a few segments needs neither Java nor a
Spark session. A Spark session spreads a large one over its executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

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
        found: list[R] = (
            context.parallelize(tasks, min(len(tasks), TASKS_MAX)).mapPartitions(work).collect()
        )
        return found


class LocalTasks:
    """Tasks one after the other, in this process."""

    def run(self, tasks: Sequence[T], work: Callable[[Iterable[T]], Iterator[R]]) -> list[R]:
        """Return the results of all tasks."""
        return list(work(tasks))

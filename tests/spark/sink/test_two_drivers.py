"""Two drivers on one checkpoint, by seeded schedules: every row is in the topic once.

Each takes a step at a time: it writes a task, or commits. One that fails, or is killed between the
sink's commit and Spark's own, starts again where the checkpoint is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tidelog_spark.sink.decision import WrittenTask
from tidelog_spark.sink.errors import BatchSuperseded, TransactionsEnded

from tests.spark.sink.driven_query import Query
from tests.support.node_process import NodeProcess

BATCHES, TASKS, ROWS = 4, 2, 4  # rows of a batch
TURNS_MAX = 30


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that the tests of this file share."""
    folder: Path = tmp_path_factory.mktemp("two-drivers")
    with NodeProcess(folder / "node") as node:
        yield node.address


class Checkpoint:
    """What Spark stores of a query: the next batch."""

    def __init__(self) -> None:
        self.next_batch = 0
        self.run_count = 0


class Driver:
    """A program that runs the query, and is started again when it ends early."""

    def __init__(self, query: Query, checkpoint: Checkpoint, chance: Random) -> None:
        self._query, self._checkpoint, self._chance = query, checkpoint, chance
        self._start()

    def _start(self) -> None:
        self._checkpoint.run_count += 1
        self._run = self._query.in_run(f"run-{self._checkpoint.run_count}")
        self._begin(self._checkpoint.next_batch)

    def _begin(self, batch: int) -> None:
        self.batch, self._task_count = batch, 0
        self._written: list[WrittenTask] = []

    @property
    def is_done(self) -> bool:
        """Whether it has committed all batches, as far as it knows."""
        return self.batch == BATCHES

    def step(self) -> None:
        """Write the next task, or commit the batch if all are written."""
        if self.is_done:
            return
        try:
            if self._task_count < TASKS:
                self._write(self._task_count)
            else:
                self._commit()
        except (BatchSuperseded, TransactionsEnded):
            if self._chance.random() < 0.8:  # Else it is killed.
                self._run.abort(self.batch, self._written)
            self._start()

    def _write(self, task: int) -> None:
        rows = range(self.batch * ROWS, (self.batch + 1) * ROWS)
        found = self._run.task(self.batch, rows[task::TASKS], task=task)
        self._task_count += 1
        self._written += [] if found is None else [found]

    def _commit(self) -> None:
        self._run.commit(self.batch, self._written, count=TASKS)
        if self._chance.random() < 0.15:
            self._start()
            return
        self._checkpoint.next_batch = max(self._checkpoint.next_batch, self.batch + 1)
        self._begin(self.batch + 1)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_two_drivers_do_every_row_is_there_once(address: str, seed: int) -> None:
    print(f"seed {seed}")
    chance = Random(seed)
    query, checkpoint = Query(address), Checkpoint()
    drivers = [Driver(query, checkpoint, chance) for _ in range(2)]
    for _ in range(TURNS_MAX):
        driver = chance.choice(drivers)
        for _ in range(chance.choice((1, 1, 2, 3))):
            driver.step()
    last = Driver(query, checkpoint, chance)
    while not last.is_done:
        last.step()
    for driver in drivers:  # They come back late.
        for _ in range(TASKS + 1):
            driver.step()
    assert query.values() == list(range(BATCHES * ROWS))

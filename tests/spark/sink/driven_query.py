"""A stream's sink without Spark, for tests that decide where its drivers and tasks die."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from uuid import uuid4

import pyarrow as pa
from tidelog_spark.sink.clients import SinkNames, open_producer
from tidelog_spark.sink.commit import abort_batch, commit_batch
from tidelog_spark.sink.decision import Decision, WrittenTask, record
from tidelog_spark.sink.options import SinkOptions, parse_sink_options
from tidelog_spark.sink.runs import DecidingRun, QueryRun
from tidelog_spark.sink.task import write_stream_task

from tests.spark.sink.sinks import make_topic, values


class Query:
    """A stream's sink, driven by hand: what Spark would call, and where it might die."""

    def __init__(self, address: str, **options: str) -> None:
        self.address = address
        self.topic = make_topic(address)
        given = {"kafka.bootstrap.servers": address, "topic": self.topic}
        self.options: SinkOptions = parse_sink_options({**given, **options})
        self.names = SinkNames(str(uuid4()))
        self.run = QueryRun(self.names, "run-1")

    def in_run(self, run_id: str) -> Query:
        """Return the same query in another run, as of another driver."""
        other = copy.copy(self)
        other.run = QueryRun(self.names, run_id)
        return other

    def task(
        self, batch: int, numbers: Sequence[int], *, task: int = 0, attempt: int = 0
    ) -> WrittenTask | None:
        rows = pa.RecordBatch.from_pydict({"value": [str(n).encode() for n in numbers]})
        return write_stream_task(
            self.options, self.run, [rows], batch_id=batch, task=task, attempt=attempt
        )

    def tasks(self, batch: int, numbers: Sequence[int], *, count: int = 3) -> list[WrittenTask]:
        """Run all tasks of a batch; return what they leave to commit."""
        done = [self.task(batch, numbers[task::count], task=task) for task in range(count)]
        return [written for written in done if written is not None]

    def commit(self, batch: int, written: Sequence[WrittenTask], *, count: int = 3) -> None:
        asyncio.run(commit_batch(self.options, self.run, batch, written, task_count=count))

    def abort(self, batch: int, written: Sequence[WrittenTask]) -> None:
        asyncio.run(abort_batch(self.options, self.run, batch, written))

    def decide(self, batch: int, written: Sequence[WrittenTask], *, count: int = 3) -> None:
        """Do what a driver does up to the decision, and die."""
        tasks = {task.task: task for task in written}
        decision = Decision(batch, count, tasks, DecidingRun(self.run.run_id, "dead", 1))

        async def main() -> None:
            async with open_producer(
                self.options, transactional_id=self.names.deciding_id
            ) as decider:
                await record(decision, self.names, decider)

        asyncio.run(main())

    def complete(self, written: Sequence[WrittenTask], *, is_commit: bool = True) -> None:
        async def main() -> None:
            async with open_producer(self.options) as producer:
                for task in written:
                    await producer.complete(task.prepared, is_commit=is_commit)

        asyncio.run(main())

    def values(self) -> list[int]:
        """Return what readers of committed data see, once nothing is open."""
        return values(self.address, self.topic)

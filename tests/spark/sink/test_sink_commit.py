"""Micro-batches through every way to die: their rows are there once, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from socket import gethostname

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidelog import GroupMetadata, OffsetAndMetadata
from tidelog.errors import ProducerFenced
from tidelog.producing.arrow_batches import GATHERED_SIZE_BYTES
from tidelog_spark.sink import decision as decision_module
from tidelog_spark.sink.clients import open_producer
from tidelog_spark.sink.decision import (
    MARKED,
    Decision,
    WrittenTask,
    read_settled,
    record,
)
from tidelog_spark.sink.errors import (
    BatchIncomplete,
    BatchSuperseded,
    TransactionsEnded,
)
from tidelog_spark.sink.task import RowWriter, write_stream_task, write_whole_task
from tidelog_spark.sink.writers import RowsWritten, TidelogWriter

from tests.spark.sink.driven_query import Query
from tests.spark.sink.sinks import open_transactions
from tests.support.node_process import NodeProcess
from tests.support.transactional import kafka
from tests.support.waiting import eventually
from tools.places import ToolAbsent

LEFT_OUT = "tasks of this writeId had been written before, their rows are not written again"
CONFIG = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that the tests of this file share."""
    folder: Path = tmp_path_factory.mktemp("sink-commit")
    with NodeProcess(folder / "node", config=CONFIG) as node:
        yield node.address


def leave_decision_open(query: Query, batch: int, written: Sequence[WrittenTask]) -> None:
    """Die while a decision is made: its transaction is open, and holds the offset."""
    decision = Decision(batch, len(written), {task.task: task for task in written})

    async def main() -> None:
        decider = open_producer(query.options, transactional_id=query.names.deciding_id)
        await decider.start()
        transaction = await decider.transaction().__aenter__()
        await transaction.send_offsets(
            {MARKED: OffsetAndMetadata(batch + 1, metadata=decision.texts()[0])},
            GroupMetadata(query.names.group_id),
        )
        await transaction.prepare()  # so that closing does not abort it
        await decider.close()

    asyncio.run(main())


def test_batches_are_committed_one_after_the_other(address):
    query = Query(address)
    for batch in range(3):
        query.commit(batch, query.tasks(batch, range(batch * 10, batch * 10 + 10)))
    assert query.values() == list(range(30))


def test_a_batch_that_was_committed_is_not_written_again(address):
    """The driver died between the sink's commit and that of the checkpoint."""
    query = Query(address)
    query.commit(0, query.tasks(0, range(10)))
    for count in (3, 5, 1):
        again = query.tasks(0, range(10), count=count)
        assert again == []
        query.commit(0, again, count=count)
    query.commit(1, query.tasks(1, range(10, 20)))
    assert query.values() == list(range(20))


@pytest.mark.parametrize("count", [3, 2, 7])
def test_a_batch_that_was_not_decided_is_written_anew_in_whatever_tasks(address, count):
    query = Query(address)
    query.tasks(0, range(10))
    query.commit(0, query.tasks(0, range(10), count=count), count=count)
    assert query.values() == list(range(10))
    assert open_transactions(address) == []


@pytest.mark.parametrize("completed", [0, 1, 3])
@pytest.mark.parametrize("count", [3, 2, 7])
def test_a_batch_that_was_decided_is_completed_by_the_next_driver(address, completed, count):
    query = Query(address)
    written = query.tasks(0, range(10))
    query.decide(0, written)
    query.complete(written[:completed])
    again = query.tasks(0, range(10), count=count)
    assert again == []
    query.commit(0, again, count=count)
    assert query.values() == list(range(10))


def test_a_decision_that_was_never_made_is_settled_by_the_next_tasks(address):
    query = Query(address)
    leave_decision_open(query, 0, query.tasks(0, range(10)))
    query.commit(0, query.tasks(0, range(10), count=2), count=2)
    assert query.values() == list(range(10))


def test_a_driver_that_comes_back_late_does_no_harm(address):
    query = Query(address)
    late, old = query.tasks(0, range(10)), query.in_run("run-0")
    query.commit(0, query.tasks(0, range(10), count=2), count=2)
    with pytest.raises(BatchSuperseded, match=f"query, run run-1 on {gethostname()}, is at 0"):
        old.commit(0, late)
    old.abort(0, late)
    assert query.values() == list(range(10))
    query.commit(1, query.tasks(1, range(10, 20)))
    with pytest.raises(BatchSuperseded, match=f"query, run run-1 on {gethostname()}, is at 1"):
        old.commit(0, late)
    with pytest.raises(BatchSuperseded):
        old.task(0, [7])
    old.abort(0, late)
    assert query.values() == list(range(20))


def test_a_driver_that_comes_late_does_not_fence_the_one_at_work(address):
    """The one at work is about to decide its next batch."""
    query = Query(address)
    late = query.tasks(0, range(10))
    query.commit(0, query.tasks(0, range(10), count=2), count=2)
    query.commit(1, query.tasks(1, range(10, 20)))
    written = query.tasks(2, range(20, 30))
    decision = Decision(2, 3, {task.task: task for task in written})

    async def main() -> None:
        async with open_producer(
            query.options, transactional_id=query.names.deciding_id
        ) as decider:
            with pytest.raises(BatchSuperseded, match=r"run run-1 on .*, is at 1"):
                await asyncio.to_thread(query.commit, 0, late)
            await asyncio.to_thread(query.abort, 0, late)
            await record(decision, query.names, decider)

    asyncio.run(main())
    query.commit(2, query.tasks(2, range(20, 30)))
    assert query.values() == list(range(30))


def test_a_failed_driver_leaves_a_batch_to_the_run_that_has_begun_it_again(address):
    query = Query(address)
    failed = query.in_run("run-0").tasks(0, range(10))
    again = [query.task(0, range(5), task=0), query.task(0, range(5, 10), task=1)]

    async def main() -> None:
        async with open_producer(
            query.options, transactional_id=query.names.deciding_id
        ) as decider:
            await asyncio.to_thread(query.in_run("run-0").abort, 0, failed)
            written = {task.task: task for task in again if task is not None}
            await record(Decision(0, 2, written), query.names, decider)

    asyncio.run(main())
    assert query.tasks(0, range(10), count=2) == []
    query.commit(0, [], count=2)
    assert query.values() == list(range(10))
    assert open_transactions(address) == []


@pytest.mark.parametrize("winner", ["a", "b"])
def test_of_two_drivers_on_one_batch_the_first_that_decides_wins(address, winner):
    """Each has begun some of the tasks after the other one."""
    query = Query(address)
    runs = {name: query.in_run(f"run-{name}") for name in "ab"}
    written = {
        (name, task): runs[name].task(0, range(task, 10, 2), task=task)
        for name, task in (("a", 0), ("b", 0), ("b", 1), ("a", 1))
    }
    own = {name: [one for (run, _), one in written.items() if run == name and one] for name in "ab"}
    loser = "b" if winner == "a" else "a"
    runs[winner].commit(0, own[winner], count=2)
    told = f"run of the query, run run-{winner} on {gethostname()}, is at 0. Two must not"
    with pytest.raises(BatchSuperseded, match=told):
        runs[loser].commit(0, own[loser], count=2)
    runs[loser].abort(0, own[loser])
    assert query.values() == list(range(10))
    assert open_transactions(address) == []
    # Started again, it finds the batch written.
    again = query.in_run("run-c")
    assert again.tasks(0, range(10)) == []
    again.commit(0, [])
    again.commit(1, again.tasks(1, range(10, 20)))
    assert query.values() == list(range(20))


def test_a_driver_that_writes_the_batch_before_that_of_another_run_doubles_nothing(address):
    """The other run goes on: its transactional ids must not look as if its rows were lost."""
    query = Query(address)
    ahead, behind = query.in_run("run-a"), query.in_run("run-b")
    before = behind.task(0, range(0, 10, 2), task=0)
    ahead.commit(0, ahead.tasks(0, range(10)))
    second = ahead.tasks(1, range(10, 20))
    after = behind.tasks(0, range(10))
    assert after == []
    assert before is not None
    with pytest.raises(BatchSuperseded, match=r"run run-a on .*, is at 0"):
        behind.commit(0, [before])
    ahead.commit(1, second)
    ahead.commit(2, ahead.tasks(2, []))
    ahead.commit(3, ahead.tasks(3, range(20, 30)))
    assert query.values() == list(range(30))
    assert open_transactions(address) == []


def test_a_driver_whose_tasks_fail_ends_nothing_of_another_run(address):
    query = Query(address)
    failed, other = query.in_run("run-a"), query.in_run("run-b")
    first = failed.task(0, range(5), task=0)
    written = other.tasks(0, range(10))
    failed.task(0, range(5, 10), task=1)  # Its executor is lost.
    assert first is not None
    failed.abort(0, [first])
    assert len(open_transactions(address)) == len(written)
    other.commit(0, written)
    assert query.values() == list(range(10))
    assert open_transactions(address) == []


def test_a_task_that_another_run_has_ended_says_so(address):
    query = Query(address, **{"kafka.compression.type": "lz4"})
    slow, other = query.in_run("run-a"), query.in_run("run-b")

    def rows() -> Iterator[pa.RecordBatch]:
        value = b"1" * 100_000
        # Enough for the first batches to be sent.
        yield pa.RecordBatch.from_pydict({"value": [value] * (GATHERED_SIZE_BYTES // 100_000 + 1)})
        eventually(lambda: open_transactions(address) != [], "its transaction has begun")
        other.commit(0, other.tasks(0, range(10)))
        yield pa.RecordBatch.from_pydict({"value": [value]})

    with pytest.raises(BatchSuperseded, match=r"run run-b on .*, is at 0"):
        write_stream_task(query.options, slow.run, rows(), batch_id=0, task=0, attempt=0)
    assert slow.task(0, range(10), attempt=1) is None  # Spark tries it again.
    assert query.values() == list(range(10))


def test_a_driver_whose_tasks_were_fenced_off_decides_nothing(address):
    query = Query(address)
    late = query.tasks(0, range(10))
    begun = query.task(0, range(5), task=1)
    with pytest.raises(TransactionsEnded, match=r"the transactions of tasks \[1\] have ended"):
        query.commit(0, late)
    query.abort(0, late)
    assert begun is not None
    query.abort(0, [begun])
    assert query.values() == []
    query.commit(0, query.tasks(0, range(10)))
    assert query.values() == list(range(10))


def test_a_batch_that_takes_longer_than_its_transactions_is_not_committed(address):
    query = Query(address, **{"kafka.transaction.timeout.ms": "300"})
    written = query.tasks(0, range(10))
    assert query.values() == []  # Waits until all are timed out.
    with pytest.raises(TransactionsEnded, match=r"kafka\.transaction\.timeout\.ms"):
        query.commit(0, written)
    assert query.values() == []


def test_rows_that_time_out_behind_the_decision_are_written_again(address):
    """No driver came for so long that the coordinator aborted a part of a decided batch."""
    query = Query(address)
    written = query.tasks(0, range(10))
    query.decide(0, written)
    query.complete(written[:1])
    query.complete(written[1:2], is_commit=False)
    with pytest.raises(BatchIncomplete, match=r"rows of tasks \[1\] of micro-batch 0"):
        query.commit(0, [])
    with pytest.raises(BatchIncomplete):  # Other tasks may have other rows.
        query.commit(0, query.tasks(0, range(10), count=2), count=2)
    again = query.tasks(0, range(10))
    assert [task.task for task in again] == [1]
    query.commit(0, again)
    assert query.values() == list(range(10))
    assert query.tasks(0, range(10)) == []


def test_attempts_run_side_by_side_and_one_counts(address):
    query = Query(address)
    query.task(0, range(10), attempt=0)
    chosen = query.task(0, range(10), attempt=1)
    query.task(0, range(10), attempt=2)
    assert chosen is not None
    query.commit(0, [chosen], count=1)
    assert query.values() == list(range(10))
    assert open_transactions(address) == []


def test_an_aborted_batch_leaves_nothing_unless_it_was_decided(address):
    query = Query(address)
    query.abort(0, query.tasks(0, range(10)))
    assert query.values() == []
    written = query.tasks(0, range(10))
    query.decide(0, written)
    query.abort(0, written)
    query.commit(0, query.tasks(0, range(10)))
    assert query.values() == list(range(10))


def test_a_batch_without_rows_commits_nothing(address):
    query = Query(address)
    assert query.tasks(0, []) == []
    query.commit(0, [])
    query.commit(1, query.tasks(1, range(2)))  # One of three tasks has none.
    assert query.values() == [0, 1]


deaths = st.lists(
    st.tuples(
        st.sampled_from(["in tasks", "before decision", "after decision", "while completing"]),
        st.integers(1, 4),
    ),
    max_size=3,
)


@settings(
    deadline=None,
    max_examples=4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batches=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), deaths), max_size=3))
def test_whatever_dies_where_every_row_is_there_once(address, batches):
    query = Query(address)
    expected: list[int] = []
    for batch, (size, count, ends) in enumerate(batches):
        rows = range(batch * 10, batch * 10 + size)
        for end, tasks in ends:
            if end == "in tasks":
                query.tasks(batch, rows[: size // 2], count=tasks)
                continue
            written = query.tasks(batch, rows, count=tasks)
            if end == "before decision" or not written:
                continue
            query.decide(batch, written, count=tasks)
            query.complete(written[: len(written) // 2] if end == "while completing" else [])
        query.commit(batch, query.tasks(batch, rows, count=count), count=count)
        expected += rows
    assert query.values() == expected


@pytest.mark.slow
def test_apache_kafka_is_written_to_in_the_same_way(tmp_path):
    try:
        with kafka(tmp_path / "kafka") as broker:
            query = Query(broker.address, **{"kafka.transaction.timeout.ms": "60000"})
            query.commit(0, query.tasks(0, range(10)))
            query.tasks(1, range(10, 20))  # not decided
            leave_decision_open(query, 1, query.tasks(1, range(10, 20)))
            written = query.tasks(1, range(10, 20), count=2)
            query.decide(1, written, count=2)
            query.complete(written[:1])
            assert query.tasks(1, range(10, 20)) == []
            query.commit(1, [])
            assert [whole(query, range(20, 30)) for _ in range(2)] == [10, 10]
            assert query.values() == list(range(30))
            assert open_transactions(broker.address) == []
    except ToolAbsent as absent:
        pytest.skip(str(absent))


# -- tasks of a batch write --


def whole(query: Query, numbers: Sequence[int], *, task: int = 0) -> int:
    rows = pa.RecordBatch.from_pydict({"value": [str(n).encode() for n in numbers]})
    return write_whole_task(query.options, query.names, task, [rows]).row_count


def test_a_task_that_has_committed_is_not_written_again(address):
    query = Query(address)
    assert [whole(query, range(10)) for _ in range(3)] == [10, 10, 10]
    assert whole(query, range(10, 15), task=1) == 5
    assert whole(query, [], task=2) == 0
    assert query.values() == list(range(15))


def test_a_write_with_the_id_of_an_earlier_one_says_what_it_leaves_out(address, caplog):
    """Else a program that gives each of its micro-batches one id would lose them without a word."""
    query = Query(address, writeId="orders")
    rows = pa.RecordBatch.from_pydict({"value": [b"1"]})
    writer = TidelogWriter(query.options)
    for count in range(2):
        done = write_whole_task(query.options, query.names, 0, [rows])
        assert done == (1, bool(count))
        writer.commit([RowsWritten(*done)])
        assert [one.message for one in caplog.records].count(LEFT_OUT) == count
    TidelogWriter(replace(query.options, write_id=None)).commit([RowsWritten(*done)])
    assert [one.message for one in caplog.records].count(LEFT_OUT) == 1


@contextmanager
def dying_attempt(query: Query, numbers: Sequence[int]) -> Iterator[None]:
    """An attempt that is about to commit: its rows are written, its transaction is open."""
    rows = pa.RecordBatch.from_pydict({"value": [str(n).encode() for n in numbers]})
    name = query.names.whole_task_id(0)
    with RowWriter(query.options, name, 0) as writer, writer.transaction():
        writer.write([rows])
        yield


def test_a_later_attempt_fences_off_one_that_is_still_about(address):
    query = Query(address)
    with (
        pytest.raises(ProducerFenced, match="another producer has begun"),
        dying_attempt(query, range(10)),
    ):
        assert whole(query, range(10)) == 10
    assert query.values() == list(range(10))
    assert whole(query, range(10)) == 10
    assert query.values() == list(range(10))


# -- the record of a decision --


def test_a_decision_that_takes_several_texts_is_read_back(address, monkeypatch):
    monkeypatch.setattr(decision_module, "TEXT_SIZE_MAX", 60)
    query = Query(address)
    written = query.tasks(0, range(10))
    query.decide(0, written)
    assert query.tasks(0, range(10)) == []
    query.commit(0, [])
    assert query.values() == list(range(10))


def test_a_decision_is_read_from_nodes_that_answer_late(address, monkeypatch):
    """The first look ends before any answer can have come."""
    query = Query(address)
    query.decide(0, query.tasks(0, range(10)))
    monkeypatch.setattr(decision_module, "UNSTABLE_TIMEOUT_MS", 1)
    decision = asyncio.run(read_settled(query.options, query.names))
    assert decision is not None
    assert decision.batch_id == 0


@pytest.mark.slow
def test_an_open_decision_on_nodes_that_answer_late_is_settled(address, monkeypatch):
    query = Query(address, **{"kafka.max.block.ms": "30000"})
    leave_decision_open(query, 0, query.tasks(0, range(10)))
    monkeypatch.setattr(decision_module, "UNSTABLE_TIMEOUT_MS", 1)
    assert asyncio.run(read_settled(query.options, query.names)) is None

"""Writes whose nodes cannot be reached: they say so at once, wait for a restart, and no longer."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from tidelog.errors import ConnectionFailed
from tidelog_spark.options import first_node
from tidelog_spark.sink import writers
from tidelog_spark.sink.clients import SinkNames
from tidelog_spark.sink.options import SinkOptions, parse_sink_options
from tidelog_spark.sink.runs import QueryRun
from tidelog_spark.sink.task import write_stream_task, write_whole_task
from tidelog_spark.sink.writers import TaskDone, TidelogStreamWriter, TidelogWriter

from tests.spark.sink.sinks import make_topic, values
from tests.support.addresses import listening
from tests.support.node_process import NodeProcess
from tests.support.waiting import SECONDS_MAX

WAITS = "no node answers yet, will retry"
HOUR_MS = 3_600_000
ROWS = pa.RecordBatch.from_pydict({"value": [b"1", b"2"]})


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> SinkOptions:
    """The options of a write to a port at which nothing listens; a request may take an hour."""
    monkeypatch.setattr(first_node, "FIRST_NODE_MS", 200)
    monkeypatch.setattr(writers, "REPEATED_MS", 200)
    with listening() as address:
        pass
    return options(f"127.0.0.1:{address.address[1]!s}")


def options(address: str, topic: str = "t") -> SinkOptions:
    hour = {"kafka.request.timeout.ms": f"{HOUR_MS}", "kafka.delivery.timeout.ms": f"{HOUR_MS}"}
    return parse_sink_options({"kafka.bootstrap.servers": address, "topic": topic, **hour})


def whole(given: SinkOptions, attempt: int = 0) -> int:
    names = SinkNames(str(uuid.uuid4()))
    return write_whole_task(given, names, 0, [ROWS], attempt=attempt).row_count


def streamed(given: SinkOptions, attempt: int = 0) -> object:
    query = QueryRun(SinkNames(str(uuid.uuid4())), "run-1")
    return write_stream_task(given, query, [ROWS], batch_id=0, task=0, attempt=attempt)


@pytest.mark.parametrize("write", [whole, streamed])
def test_a_task_waits_once_for_nodes_that_refuse_connections_and_says_so(
    refused: SinkOptions, caplog: pytest.LogCaptureFixture, write: Callable[[SinkOptions], object]
) -> None:
    with pytest.raises(ConnectionFailed, match="no node answers at 127"):
        write(refused)
    assert [record.message for record in caplog.records].count(WAITS) == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("write", [whole, streamed])
def test_a_task_that_spark_repeats_waits_less_long(
    refused: SinkOptions,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[SinkOptions, int], object],
) -> None:
    monkeypatch.setattr(first_node, "FIRST_NODE_MS", HOUR_MS)
    monkeypatch.setattr(first_node, "REPEATED_MS", 200)
    with pytest.raises(ConnectionFailed, match="no node answers at 127"):
        write(refused, 1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_stream", [False, True])
def test_the_end_of_a_failed_write_does_not_fail_where_nodes_refuse_connections(
    refused: SinkOptions, caplog: pytest.LogCaptureFixture, is_stream: bool
) -> None:
    if is_stream:
        # Spark ends a micro-batch of which some tasks are done, and others are not.
        done = TaskDone(str(uuid.uuid4()), "run-1", None)
        TidelogStreamWriter(refused).abort([done, None], 0)
    else:
        TidelogWriter(refused).abort([])
    assert caplog.records[-1].message == "transactions were left to time out"


@contextmanager
def logged(message: str, then: Callable[[], object]) -> Iterator[None]:
    """Call a function in a thread once a message is logged."""
    is_logged = threading.Event()

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == message:
                is_logged.set()

    def wait() -> None:
        assert is_logged.wait(SECONDS_MAX)
        then()

    handler, thread = Noting(), threading.Thread(target=wait)
    logging.getLogger("tidelog").addHandler(handler)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        logging.getLogger("tidelog").removeHandler(handler)


@pytest.mark.slow
@pytest.mark.parametrize("write", [whole, streamed])
def test_a_task_goes_on_when_the_node_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[SinkOptions], object]
) -> None:
    # A busy machine takes longer to start a node than a task waits.
    monkeypatch.setattr(first_node, "FIRST_NODE_MS", 1000 * SECONDS_MAX)
    with NodeProcess(tmp_path / "node") as node:
        given = options(node.address, make_topic(node.address))
        node.stop()
        with logged(WAITS, node.start):
            assert write(given)
        if write is whole:
            assert values(node.address, given.batches.topic or "") == [1, 2]

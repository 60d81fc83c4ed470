"""Streams whose Python process comes too late for Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from tidelog_core.records.batch import Record, build_batch
from tidelog_spark.streaming.stream_start import LATE_PROCESS, start_stream

from tests.support.tiered_cluster import TieredCluster


class Query:
    """What ``start_stream`` sees of Spark's query: statuses one after the other, or an end."""

    def __init__(self, *messages: str, failure: str | None = None) -> None:
        self.messages = [*messages]
        self.failure = failure

    def awaitTermination(self, timeout: float) -> bool:
        if len(self.messages) > 1:
            return False
        if self.failure is not None:
            raise StreamingQueryException(self.failure)
        return not self.messages

    @property
    def status(self) -> dict[str, str]:
        return {"message": self.messages.pop(0)}


LATE = f"Job aborted: SparkException: {LATE_PROCESS}."


def started(*queries: Query, attempts_max: int = 10) -> tuple[Query, int]:
    """Return the query that ``start_stream`` returns, and how many it started."""
    left = [*queries]
    query = start_stream(lambda: left.pop(0), attempts_max=attempts_max)
    return query, len(queries) - len(left)


def test_a_query_whose_process_was_late_is_started_again(caplog) -> None:
    late = [Query("Initializing sources", failure=LATE) for _ in range(2)]
    good = Query("Initializing StreamExecution", "Initializing sources", "Getting offsets", "")
    assert started(*late, good, Query()) == (good, 3)
    assert [record.__dict__["attempt"] for record in caplog.records] == [1, 2]


def test_a_query_with_another_failure_is_returned_as_it_is() -> None:
    failed = Query("Initializing sources", failure="CorruptObject: …")
    assert started(failed, Query()) == (failed, 1)


def test_a_query_that_has_ended_is_returned() -> None:
    ended = Query()
    assert started(ended, Query()) == (ended, 1)


def test_attempts_are_bounded() -> None:
    late = [Query(failure=LATE) for _ in range(4)]
    query, count = started(*late, attempts_max=3)
    assert (query, count) == (late[2], 3)


# Spark waits for ten seconds. The process has connected by then, but not imported pyspark.
SLOW_IMPORTS = """
import os, time
if "PYTHON_WORKER_FACTORY_PORT" in os.environ:
    time.sleep(12)
"""
# Once, the process begins too late itself.
LATE_ONCE = """#!/bin/sh
if [ -n "$PYTHON_WORKER_FACTORY_PORT" ] && mkdir {marker} 2>/dev/null; then sleep 12; fi
exec {python} "$@"
"""
DRIVER = """
import json, sys
import tidelog_spark
from tools.local_spark import local_session
options, folder, python, is_retried = json.loads(sys.argv[1])
spark = local_session("tidelog-late", settings={"spark.local.dir": folder + "/local"})
spark.sparkContext.pythonExec = python
tidelog_spark.register(spark)
table = spark.readStream.format("tidelog").options(**options).load()
writer = table.writeStream.format("parquet").trigger(availableNow=True)
writer = writer.option("checkpointLocation", folder + "/checkpoint")
def start():
    return writer.start(folder + "/table")
query = tidelog_spark.start_stream(start) if is_retried else start()
try:
    query.awaitTermination()
    print("rows", spark.read.parquet(folder + "/table").count())
except Exception as error:
    print("failed", "failed to connect back" in str(error))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("slow", "is_retried", "found"),
    [
        ("imports", False, "rows 20"),
        ("python", False, "failed True"),
        ("python", True, "rows 20"),
    ],
    ids=["imports", "python", "python-retried"],
)
def test_a_stream_survives_a_process_that_starts_slowly(
    tmp_path: Path, slow: str, is_retried: bool, found: str
) -> None:
    cluster = TieredCluster(tmp_path / "tiered")
    cluster.create_topic("t", partition_count=1)
    cluster.add_segment("t", [build_batch([Record(0, 1, None, b"%d" % i) for i in range(20)])])
    places = [*filter(None, sys.path)]
    python = sys.executable
    if slow == "imports":
        (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORTS)
        places.insert(0, str(tmp_path))
    else:
        script = tmp_path / "python"
        script.write_text(LATE_ONCE.format(marker=tmp_path / "marker", python=sys.executable))
        script.chmod(0o755)
        python = str(script)
    options = {**cluster.options, "subscribe": "t", "startingOffsets": "earliest"}
    given = json.dumps([options, str(tmp_path), python, is_retried])
    driver = subprocess.run(
        [sys.executable, "-c", DRIVER, given],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=500,
    )
    assert found in driver.stdout

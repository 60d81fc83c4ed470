"""A Spark driver is killed in the middle of its streams, and started again, and again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tidelog_core.records.batch import Record, build_batch

from tests.support.tiered_cluster import TieredCluster

STARTS_MAX = 12
DEADLINE_SECONDS = 300.0  # of a whole Spark, on a busy machine
ROWS = 2000


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_row_is_there_once_after_a_driver_was_killed_again_and_again(tmp_path, spark):
    cluster = TieredCluster(tmp_path / "tiered")
    cluster.create_topic("t", partition_count=2)
    for partition in range(2):
        for base in range(0, ROWS, 500):
            batches = [
                build_batch(
                    [Record(0, 1, None, b"%d" % i) for i in range(start, start + 100)],
                    base_offset=start,
                )
                for start in range(base, base + 500, 100)
            ]
            cluster.add_segment("t", batches, partition=partition)
    options = {
        **cluster.options,
        "subscribe": "t",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "600",
    }
    killed = 0
    for start in range(STARTS_MAX):
        # Each time a batch or two further than the last.
        if run_driver(options, tmp_path, kill_after=None if start >= 3 else 2):
            break
        killed += 1
    assert killed >= 2, "nothing was killed"
    expected = [(partition, offset) for partition in range(2) for offset in range(ROWS)]
    # Only what Spark's own log of the table names counts.
    table = spark.read.parquet(str(tmp_path / "table")).select("partition", "offset")
    assert sorted(map(tuple, table.collect())) == expected
    seen: dict[int, list[list[int]]] = {}
    for line in (tmp_path / "journal").read_text().splitlines():
        number, rows = json.loads(line)
        assert seen.setdefault(number, rows) == rows, f"batch {number} came with other rows"
    assert sorted(tuple(row) for rows in seen.values() for row in rows) == expected
    assert pq.ParquetDataset(str(tmp_path / "table")).schema.names[0] == "key"


def run_driver(options: dict[str, str], folder: Path, *, kill_after: int | None) -> bool:
    """Run a driver; kill it once the streams have begun so many batches. Return whether it ended."""
    command = [
        sys.executable,
        "-m",
        "tests.spark.streaming.stream_driver",
        json.dumps(options),
        str(folder),
    ]
    before = begun(folder)
    with (folder / "driver.log").open("ab") as log:
        # In a process group of its own: the Java process and the workers die with it.
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while driver.poll() is None:
            assert time.monotonic() < deadline, (folder / "driver.log").read_text()[-3000:]
            if kill_after is not None and begun(folder) >= before + kill_after:
                return False
            time.sleep(0.02)
        assert driver.returncode == 0, (folder / "driver.log").read_text()[-3000:]
        return True
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def begun(folder: Path) -> int:
    """How many batches both streams have written down so far."""
    return len(list(folder.glob("*-checkpoint/offsets/[0-9]*")))

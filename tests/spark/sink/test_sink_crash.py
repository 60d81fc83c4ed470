"""Workers and drivers that are killed: every row is in the topic once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import BinaryIO

import pytest
from tidelog import Admin
from tidelog_spark.sink.clients import SinkNames
from tidelog_spark.sink.decision import MARKED

from tests.spark.sink.sink_driver import ROW_COUNT
from tests.spark.sink.sinks import make_topic, open_transactions, values
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools.java_options import QUICK_JAVA
from tools.local_spark import spark_home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FILE_COUNT = 3
ROWS_A_FILE = 100
SECONDS_MAX = 400.0


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that the tests of this file share."""
    folder: Path = tmp_path_factory.mktemp("sink-crash")
    with NodeProcess(folder / "node") as node:
        yield node.address


def driver(*arguments: str, errors: BinaryIO | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.spark.sink.sink_driver", *arguments]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    # A group of its own: Spark's JVM dies with the driver.
    return subprocess.Popen(command, env=environment, start_new_session=True, stderr=errors)


def run(*arguments: str) -> None:
    process = driver(*arguments)
    try:
        assert process.wait(SECONDS_MAX) == 0
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def add_files(folder: Path) -> list[int]:
    (folder / "in").mkdir()
    for number in range(FILE_COUNT):
        rows = range(number * ROWS_A_FILE, (number + 1) * ROWS_A_FILE)
        (folder / "in" / f"{number}.txt").write_text("".join(f"{row}\n" for row in rows))
    return list(range(FILE_COUNT * ROWS_A_FILE))


def test_workers_that_are_killed_leave_every_row_of_a_write_once(address, tmp_path):
    topic = make_topic(address)
    run("write", address, topic, str(tmp_path))
    assert values(address, topic) == list(range(ROW_COUNT))
    assert open_transactions(address) == []


def test_workers_that_are_killed_leave_every_row_of_a_stream_once(address, tmp_path):
    topic = make_topic(address)
    rows = add_files(tmp_path)
    run("dying-stream", address, topic, str(tmp_path))
    assert values(address, topic) == rows
    assert open_transactions(address) == []


def test_a_driver_that_is_killed_between_the_sinks_commit_and_its_own_repeats_nothing(
    address, tmp_path
):
    topic = make_topic(address)
    rows = add_files(tmp_path)
    for batch in (0, 1):
        kill_when_held(batch, address, topic, tmp_path)
        assert not (tmp_path / "checkpoint" / "commits" / str(batch)).exists()
        found = values(address, topic)
        assert len(found) == len({*found}) == (batch + 1) * ROWS_A_FILE
    run("stream", address, topic, str(tmp_path))
    assert values(address, topic) == rows
    assert open_transactions(address) == []


@pytest.mark.parametrize(("winner", "loser"), [("old", "new"), ("new", "old")])
def test_of_two_drivers_on_one_batch_one_goes_on_and_the_other_names_it(
    address, tmp_path, winner, loser
):
    """The old driver has written its first micro-batch when the new one starts."""
    topic = make_topic(address)
    rows = add_files(tmp_path)
    errors = tmp_path / "errors"
    drivers = {}
    with errors.open("wb") as file:
        try:
            for name in ("old", "new"):
                arguments = (address, topic, str(tmp_path), name)
                drivers[name] = driver("waiting-stream", *arguments, errors=file)
                await_file(tmp_path / f"{name}.written", drivers[name])
            (tmp_path / f"{winner}.go").touch()
            assert drivers[winner].wait(SECONDS_MAX) == 0
            (tmp_path / f"{loser}.go").touch()
            assert drivers[loser].wait(SECONDS_MAX) == 1
        finally:
            for process in drivers.values():
                kill(process)
    run_id = (tmp_path / f"{winner}.run").read_text()
    told = f"another run of the query, run {run_id} on {gethostname()}, is at {FILE_COUNT - 1}. Two"
    assert told in errors.read_text()
    assert values(address, topic) == rows
    assert open_transactions(address) == []
    run("stream", address, topic, str(tmp_path))
    assert values(address, topic) == rows


def await_file(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Return when the file is there. The process that makes it must not end before."""
    eventually(
        lambda: path.exists() or process.poll() is not None, f"{path.name} is there", SECONDS_MAX
    )
    assert process.poll() is None, "the query has ended"


def kill_when_held(batch: int, address: str, topic: str, folder: Path) -> None:
    """Run the query until the sink has committed the batch, which Spark never hears of."""
    process = driver("holding-stream", address, topic, str(folder), str(batch))
    try:
        await_file(folder / f"held-{batch}", process)
    finally:
        kill(process)


def environment() -> dict[str, str]:
    """Return the environment of a command that starts a Spark of its own, quickly."""
    java = "--driver-java-options '" + " ".join(QUICK_JAVA) + "'"
    return {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_SUBMIT_ARGS": f"{java} --conf spark.ui.enabled=false pyspark-shell",
    }


def test_a_backfill_is_a_command(address, tmp_path):
    topic = make_topic(address)
    (tmp_path / "rows.json").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(50)))
    command = [sys.executable, "-m", "tidelog_cli"]
    command += [
        "job",
        "backfill",
        topic,
        "--bootstrap",
        address,
        "--path",
        str(tmp_path / "rows.json"),
        "--format",
        "json",
    ]
    command += ["--value", "n", "--key", "n % 5", "--tasks", "2", "--json"]
    for found in (0, 2):
        done = subprocess.run(
            command, check=True, capture_output=True, timeout=SECONDS_MAX, env=environment()
        )
        report = json.loads(done.stdout)
        assert report["row_count"] == 50
        assert report["tasks_found_written"] == found
    assert values(address, topic) == list(range(50))
    for arguments, status, told in (
        (["--value", "nothing"], 2, b"nothing"),
        (["--partition", "7"], 1, b"the topic has partitions 0 to 2"),
        (["--partition", "'a'"], 2, b"column 'partition' is string; it must be int"),
    ):
        wrong = subprocess.run(
            [*command, *arguments],
            check=False,
            capture_output=True,
            timeout=SECONDS_MAX,
            env=environment(),
        )
        assert wrong.returncode == status
        assert told in wrong.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_a_backfill_that_is_stopped_is_continued_by_the_same_command(address, tmp_path, number):
    """Stopped when some tasks have their marks and others have not, and when all have."""
    topic = make_topic(address)
    row_count, task_count = 4000, 16
    rows = "".join(json.dumps({"n": n}) + "\n" for n in range(row_count))
    (tmp_path / "rows.json").write_text(rows)
    name = f"stopped-{topic}"
    command = [sys.executable, "-m", "tidelog_cli", "job", "backfill", topic]
    command += ["--bootstrap", address, "--path", str(tmp_path / "rows.json"), "--format", "json"]
    command += ["--value", "n", "--key", "n", "--tasks", str(task_count), "--id", name, "--json"]
    for wanted in (1, task_count):
        stop_when_marked(command, address, name, wanted, task_count, number)
    done = subprocess.run(
        command, check=True, capture_output=True, timeout=SECONDS_MAX, env=environment()
    )
    assert json.loads(done.stdout)["row_count"] == row_count
    assert values(address, topic) == list(range(row_count))
    assert open_transactions(address) == []


def stop_when_marked(
    command: list[str], address: str, name: str, wanted: int, task_count: int, number: int
) -> None:
    """Run the backfill, and send its group the signal once so many tasks have their marks."""
    names = SinkNames(name)
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, env=environment()
    )
    unmarked = [*range(task_count)]  # Marks stay, so each is looked for until it is there.
    try:
        with Admin(address).sync() as admin:

            def is_marked(task: int) -> bool:
                return MARKED in admin.list_group_offsets(names.whole_task_id(task), [MARKED])

            def is_over() -> bool:
                unmarked[:] = [task for task in unmarked if not is_marked(task)]
                return task_count - len(unmarked) >= wanted or process.poll() is not None

            eventually(is_over, f"{wanted} tasks have marks", SECONDS_MAX)
        if process.poll() is None:
            os.killpg(process.pid, number)
        process.wait(SECONDS_MAX)
    finally:
        kill(process)

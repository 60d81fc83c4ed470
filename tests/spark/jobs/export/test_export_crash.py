"""Drivers of exports that are killed or interrupted: each record is in the table once.

The small twins are in ``test_export_tables`` and ``test_export_parquet``: an exception at the commit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.jobs.erased_exports import TARGETS, places
from tests.spark.jobs.exported import Source
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS_MAX = 400.0
STEPS = ("files", "before-commit", "after-commit")


@pytest.fixture
def source(tmp_path: Path) -> Source:
    found = Source(tmp_path)
    found.grow(3000)  # three days: as many files
    found.grow(200, partition=1)
    return found


def drive(source: Source, name: str, step: str, number: str) -> int:
    folder = str(source.cluster.folder)
    stores = source.cluster.options
    command = [
        sys.executable,
        "-m",
        "tests.spark.jobs.export.export_driver",
        name,
        folder,
        step,
        number,
    ]
    command += [stores["metadata"], stores["objects"]]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode


@pytest.mark.parametrize("number", ["SIGKILL", "SIGINT"])
@pytest.mark.parametrize("name", list(TARGETS))
def test_a_driver_that_is_stopped_in_any_step_leaves_all_of_its_run_or_nothing(
    source, tmp_path, name, number
):
    """First with an empty table, then with one that has rows."""
    done = 0
    for step in STEPS:
        assert drive(source, name, step, number) == -signal.Signals[number]
        target = TARGETS[name](tmp_path)
        if step == "after-commit":
            done = len(source.all())
        elif done == 0:
            table = target.erasable()
            assert not table.open() or table.files() == []
        if done:
            assert len(places(target.rows())) == done
        target.close()
    for step in STEPS:
        source.grow(1500)
        assert drive(source, name, step, number) == -signal.Signals[number]
        target = TARGETS[name](tmp_path)
        done = len(source.all()) if step == "after-commit" else done
        assert len(places(target.rows())) == done
        target.close()
    source.grow(50, partition=1)
    assert drive(source, name, "-", number) == 0
    target = TARGETS[name](tmp_path)
    assert places(target.rows()) == source.all()
    target.close()


@pytest.mark.parametrize("number", ["SIGKILL", "SIGINT"])
def test_a_command_with_spark_is_stopped_while_it_writes_and_run_again(source, tmp_path, number):
    """The signal goes to the whole group, as Ctrl-C of a terminal does."""
    target = TARGETS["delta"](tmp_path)
    command = [sys.executable, "-m", "tidelog_cli", "job", "export", "t"]
    command += [f"--{name}={url}" for name, url in source.cluster.options.items()]
    command += ["--table-format", "delta", "--to", target.url]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    folder = tmp_path / "delta"

    def is_writing() -> bool:
        return process.poll() is not None or any(folder.rglob("*.parquet"))

    try:
        eventually(is_writing, lambda: "a file is written", SECONDS_MAX)
        if process.poll() is None:
            os.killpg(process.pid, signal.Signals[number])
        process.wait(SECONDS_MAX)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    table = target.erasable()
    seen = places(target.rows()) if table.open() and table.files() else []
    assert seen in ([], source.all())
    source.grow(100)
    subprocess.run(command, check=True)
    assert places(target.rows()) == source.all()

"""The lease of a table: one run works on it, and others leave it to that."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from tidelog_cli.storage.job_iceberg import CONFLICTS_MAX, run_once, without_conflict
from tidelog_core.clock import wall_clock_ms
from tidelog_spark.jobs.export.exporting import export
from tidelog_spark.jobs.formats.iceberg_table import IcebergTable, open_catalog
from tidelog_spark.jobs.tables import table_lease
from tidelog_spark.jobs.tables.export_table import ExportConflict, TableBusy, TimePartitions
from tidelog_spark.jobs.tables.table_lease import LIVE_SECONDS, TableLease, read_lease
from tidelog_spark.jobs.task_runner import LocalTasks

from tests.spark.jobs.erased_exports import places
from tests.spark.jobs.exported import Source
from tests.support.command import called
from tests.support.waiting import eventually

SECONDS_MAX = 60.0
HOUR_MS = 3_600_000
SINCE_MS = 1_790_000_000_000


def written(folder: Path, *, lacks: str = "", **given: object) -> str:
    """Write a lease of a run on another machine, always the same; return its URL."""
    lease = {
        "format_version": 1,
        "run_id": "another",
        "host": "elsewhere",
        "process_id": 7,
        "since_ms": SINCE_MS,
        "renewed_ms": SINCE_MS,
        "renewed_count": 1,
        "is_over": False,
        **given,
    }
    path = folder / "_tidelog" / "lease.json"
    lease.pop(lacks, None)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(lease))
    part.replace(path)
    return path.as_uri()


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Have a run elsewhere renew its lease again and again, until the block ends."""
    end = threading.Event()
    written(folder)

    def renew() -> None:
        count = 1
        while not end.wait(0.01):
            count += 1
            written(folder, renewed_count=count)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


class Time:
    """A clock that passes only while it is waited, and what happens meanwhile."""

    def __init__(self, happen: Callable[[float], object] = lambda now: None) -> None:
        self.now = 1_000_000.0
        self._began = self.now
        self._happen = happen

    @property
    def passed(self) -> float:
        """The seconds that were waited."""
        return self.now - self._began

    def wait(self, seconds: float) -> None:
        """Let the time pass; then ``happen`` gets how much has passed in all."""
        self.now += seconds
        self._happen(self.passed)


def at(seconds: float, call: Callable[[], object]) -> Callable[[float], None]:
    """Return what happens: the call, once when so much time has passed."""
    calls = [call]

    def happen(passed: float) -> None:
        if passed >= seconds and calls:
            calls.pop()()

    return happen


def ended_process() -> int:
    """Return the id of a process that was there a moment ago."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def is_taken(folder: Path, time: Time | None = None) -> bool:
    """Return whether another run turns out to be at work."""
    time = time or Time()
    with TableLease(clock=lambda: time.now, wait=time.wait) as lease:
        try:
            lease.take(folder.as_uri())
        except TableBusy:
            return True
    return False


def renewing(folder: Path, **given: object) -> Time:
    """Return a time in which a run elsewhere renews its lease after 15 seconds, by one."""
    written(folder, renewed_count=7, **given)
    return Time(at(15.0, lambda: written(folder, renewed_count=8, **given)))


def test_a_lease_keeps_others_out_until_it_is_over(tmp_path: Path) -> None:
    with TableLease() as first:
        assert first.take(tmp_path.as_uri())
        assert not first.take(tmp_path.as_uri())
        url = f"{tmp_path.as_uri()}/_tidelog/lease.json"
        held = read_lease(url)
        assert held is not None
        assert (held.process_id, held.is_over) == (os.getpid(), False)
    over = read_lease(url)
    assert over is not None
    assert (over.run_id, over.is_over) == (held.run_id, True)
    assert [one.name for one in (tmp_path / "_tidelog").iterdir()] == ["lease.json"]
    assert is_taken(tmp_path, renewing(tmp_path))


@pytest.mark.parametrize("ahead_ms", [0, 61_000, -61_000, 24 * HOUR_MS, -24 * HOUR_MS])
def test_a_run_at_work_keeps_others_out_whatever_its_clock_says(tmp_path, ahead_ms):
    """Its clock may also stand still."""
    time = renewing(tmp_path, renewed_ms=wall_clock_ms() + ahead_ms)
    assert is_taken(tmp_path, time)
    assert time.passed == 15.0, "as soon as it is renewed"


def test_a_run_of_an_earlier_program_is_known_by_its_clock_to_be_at_work(tmp_path):
    written(tmp_path, lacks="renewed_count", renewed_ms=1)
    renew = partial(written, tmp_path, lacks="renewed_count", renewed_ms=2)
    assert is_taken(tmp_path, Time(at(15.0, renew)))


@pytest.mark.parametrize("ahead_ms", [0, 24 * HOUR_MS, -24 * HOUR_MS])
def test_a_lease_that_is_not_renewed_for_a_minute_is_nobodys(tmp_path, ahead_ms):
    written(tmp_path, renewed_ms=wall_clock_ms() + ahead_ms)
    time = Time()
    assert not is_taken(tmp_path, time)
    assert time.passed == LIVE_SECONDS


def test_a_renewal_counts_that_comes_while_the_watching_run_sleeps_for_hours(tmp_path):
    """As a process that is stopped, or a machine whose memory is full."""
    written(tmp_path, renewed_count=7)

    class Asleep(Time):
        def wait(self, seconds: float) -> None:
            written(tmp_path, renewed_count=8)
            super().wait(seconds + 3 * 3_600.0)

    assert is_taken(tmp_path, Asleep())


def test_a_third_run_that_takes_a_lease_while_it_is_watched_keeps_the_watching_one_out(tmp_path):
    written(tmp_path)
    third = partial(written, tmp_path, run_id="third", process_id=8)
    time = Time(at(30.0, third))
    with (
        TableLease(clock=lambda: time.now, wait=time.wait) as lease,
        pytest.raises(TableBusy, match="process 8 of elsewhere"),
    ):
        lease.take(tmp_path.as_uri())
    assert time.passed == 30.0


def test_a_file_that_cannot_be_read_for_a_moment_does_not_end_the_watch(tmp_path):
    """An earlier program writes in place, and a bucket may fail to answer."""
    url = written(tmp_path, renewed_count=7)
    path = Path(url.removeprefix("file://"))

    def happen(passed: float) -> None:
        if passed < 15.0:
            path.write_text("")
        else:
            written(tmp_path, renewed_count=8)

    time = Time(happen)
    assert is_taken(tmp_path, time)
    assert time.passed == 15.0
    assert not is_taken(tmp_path, Time(lambda _: path.write_text("")))


def test_a_lease_that_is_given_back_while_it_is_watched_is_taken_at_once(tmp_path):
    written(tmp_path)
    time = Time(at(5.0, lambda: written(tmp_path, is_over=True)))
    assert not is_taken(tmp_path, time)
    assert time.passed == 5.0


def test_a_lease_that_another_run_has_had_meanwhile_is_a_new_one(tmp_path):
    """That run may have exported, so the table is to be read again."""
    time = Time()
    with TableLease(clock=lambda: time.now, wait=time.wait) as lease:
        assert lease.take(tmp_path.as_uri())
        written(tmp_path)  # It was killed since.
        assert lease.take(tmp_path.as_uri())
        assert not lease.take(tmp_path.as_uri())


def test_a_lease_of_a_run_that_has_ended_is_taken_without_a_wait(tmp_path: Path) -> None:
    host = table_lease.socket.gethostname()
    for given in (
        {"is_over": True},
        {"host": host, "process_id": ended_process()},
        {"host": host, "process_id": os.getpid()},  # of the container's last start
        {"host": host, "process_id": -1},
        {"host": host, "process_id": 1 << 70},
    ):
        written(tmp_path, **given)
        time = Time()
        assert not is_taken(tmp_path, time), given
        assert time.passed == 0.0, given
    assert is_taken(tmp_path, renewing(tmp_path, host=host, process_id=os.getppid()))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"format_version": 1}', "[" * 60_000, "\udcff", '{"format_version": 2}'],
    ids=["empty", "list", "null", "fields", "nested", "binary", "version"],
)
def test_a_file_that_cannot_be_read_is_no_lease(tmp_path: Path, text: str) -> None:
    path = Path(written(tmp_path).removeprefix("file://"))
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert not is_taken(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("since_ms", 1 << 80),
        ("since_ms", None),
        ("renewed_ms", "soon"),
        ("process_id", []),
        ("renewed_count", {}),
    ],
    ids=["far", "none", "text", "list", "object"],
)
def test_a_lease_with_a_wrong_field_is_none(tmp_path: Path, name: str, value: object) -> None:
    written(tmp_path, **{name: value})
    assert not is_taken(tmp_path)


def test_a_lease_is_renewed_while_its_run_is_at_work(tmp_path, monkeypatch):
    monkeypatch.setattr(table_lease, "RENEW_SECONDS", 0.001)
    url = f"{tmp_path.as_uri()}/_tidelog/lease.json"

    def renewed_count() -> int:
        found = read_lease(url)
        assert found is not None, "it is never half written"
        return found.renewed_count

    with TableLease() as lease:
        lease.take(tmp_path.as_uri())
        first = renewed_count()
        eventually(lambda: renewed_count() > first, "it is renewed", SECONDS_MAX)


def test_a_run_that_hangs_loses_its_lease(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(table_lease, "RENEW_SECONDS", 0.001)
    monkeypatch.setattr(table_lease, "HELD_SECONDS_MAX", 0.0)
    caplog.set_level(logging.WARNING)
    with TableLease() as lease:
        lease.take(tmp_path.as_uri())
        eventually(lambda: "is given up" in caplog.text, "it is given up", SECONDS_MAX)


def test_a_lease_that_another_run_has_taken_is_left_to_it(tmp_path: Path) -> None:
    time = Time(at(15.0, lambda: written(tmp_path, renewed_count=2)))
    with TableLease(clock=lambda: time.now, wait=time.wait) as lease:
        lease.take(tmp_path.as_uri())
        url = written(tmp_path)
        with pytest.raises(TableBusy, match="process 7 of elsewhere"):
            lease.take(tmp_path.as_uri())
    left = read_lease(url)
    assert left is not None
    assert (left.run_id, left.is_over) == ("another", False)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    found = Source(tmp_path)
    found.grow(100)
    found.grow(50, partition=1)
    return found


def sql_catalog(folder: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder / 'catalog.db'}",
        "warehouse": (folder / "warehouse").as_uri(),
    }


def folder_of(catalog: Catalog) -> Path:
    return Path(catalog.load_table("lake.t").location().removeprefix("file://"))


def test_a_run_that_finds_another_at_work_says_so_and_ends_well(source, tmp_path, monkeypatch):
    asked = ["job", "iceberg", "t", "--table", "lake.t"]
    asked += [f"--{name}={url}" for name, url in source.cluster.options.items()]
    asked += [f"--catalog={name}={value}" for name, value in sql_catalog(tmp_path).items()]
    assert called(*asked).lines == ["150 rows appended in 1 files"]
    catalog = open_catalog(sql_catalog(tmp_path))
    folder = folder_of(catalog)
    source.grow(30)
    monkeypatch.setattr(table_lease, "WATCH_SECONDS", 0.01)
    with at_work(folder):
        told = called(*asked)
        assert told.lines == []
        assert told.errors.startswith("tidelog: nothing is done: another run is at work on file://")
        assert "process 7 of elsewhere" in told.errors
        [line] = called(*asked, "--json", "--apply-erasures").lines
        assert list(json.loads(line)) == ["skipped"]
    written(folder, is_over=True)
    assert called(*asked).lines == ["30 rows appended in 1 files"]
    assert called(*asked).errors == ""
    assert places(catalog.load_table("lake.t").scan().to_arrow()) == source.all()
    catalog.close()


def test_a_run_that_loses_its_table_to_another_one_says_what_it_has_done(source, tmp_path, capsys):
    class Lost(TableLease):
        """A lease that another run takes before the second commit."""

        def take(self, location: str) -> bool:
            is_new = super().take(location)
            written(Path(location.removeprefix("file://")))
            return is_new

    catalog = open_catalog(sql_catalog(tmp_path))
    table = IcebergTable(catalog, "lake.t", TimePartitions.DAY)
    request = replace(source.request(), offsets_per_partition_max=60)
    time = Time(at(15.0, lambda: written(folder_of(catalog), renewed_count=2)))
    with Lost(clock=lambda: time.now, wait=time.wait) as lease:
        run_once(table, request, None, lease, is_json=False)
    told = capsys.readouterr()
    assert told.out == "110 rows appended in 1 files\n"
    assert told.err.startswith("tidelog: the rest is not done: another run is at work on file://")
    catalog.close()


def test_what_the_run_before_has_exported_until_its_end_is_not_written_again(source, tmp_path):
    catalog = open_catalog(sql_catalog(tmp_path))

    def table() -> IcebergTable:
        return IcebergTable(catalog, "lake.t", TimePartitions.DAY)

    class Late(TableLease):
        """A lease that is free a moment after the offsets were read."""

        def take(self, location: str) -> bool:
            source.export(None, table())
            return super().take(location)

    with Late() as lease:
        result = export(LocalTasks(), source.request(), table(), lease=lease)
    assert (result.ranges, result.file_count) == ((), 0)
    assert places(catalog.load_table("lake.t").scan().to_arrow()) == source.all()
    catalog.close()


def test_conflicts_with_other_commits_are_tried_again_three_times(capsys):
    outcomes: list[Exception | None] = [ExportConflict("x was faster")] * 2 + [None]

    def step() -> int:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return 5

    assert without_conflict(step) == 5
    assert capsys.readouterr().err.count("x was faster; once more") == 2
    outcomes += [ExportConflict("x")] * CONFLICTS_MAX
    with pytest.raises(ExportConflict):
        without_conflict(step)
    assert outcomes == []
    outcomes += [TableBusy("y")]
    with pytest.raises(TableBusy):
        without_conflict(step)

"""``tidelog job iceberg``: a table that follows a topic, in commits that may be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.types import IntegerType
from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.storage.job_iceberg import FAILURES_MAX, parse_time, run_again_and_again
from tidelog_core.errors import StoreUnavailable
from tidelog_spark.jobs.formats.iceberg_table import SUMMARY_OFFSETS, IcebergTable, open_catalog
from tidelog_spark.jobs.tables import table_lease
from tidelog_spark.jobs.tables.export_table import SchemaConflict, TimePartitions

from tests.spark.jobs.erased_exports import customer_of, erase, places, without
from tests.spark.jobs.exported import Source
from tests.spark.jobs.formats.rest_catalog import running_catalog
from tests.support.chain_owner import chain_name
from tests.support.command import called
from tests.support.diskless_topic import DISKLESS, DisklessTopic, end_marker, numbered
from tests.support.tiered_cluster import CLUSTER_ID, TieredCluster
from tests.support.waiting import eventually
from tools.places import ToolAbsent

SECONDS_MAX = 300.0


def sql_catalog(folder: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder / 'catalog.db'}",
        "warehouse": (folder / "warehouse").as_uri(),
    }


def arguments(source: Source, properties: dict[str, str], *more: str) -> list[str]:
    stores = [f"--{name}={url}" for name, url in source.cluster.options.items()]
    catalog = [f"--catalog={name}={value}" for name, value in properties.items()]
    return ["job", "iceberg", "t", *stores, "--table", "lake.t", *catalog, *more]


def rows(catalog: Catalog) -> list[tuple[int, int]]:
    return places(catalog.load_table("lake.t").scan().to_arrow())


@pytest.fixture
def source(tmp_path: Path) -> Source:
    found = Source(tmp_path, key_of=customer_of)
    found.grow(100)
    found.grow(50, partition=1)
    return found


def test_each_run_appends_what_is_new_in_commits_of_bounded_size(source, tmp_path):
    properties = sql_catalog(tmp_path)
    asked = arguments(source, properties, "--max-offsets", "60", "--json")
    first = called(*asked)
    assert [json.loads(line)["rows"] for line in first.lines] == [110, 40]
    assert called(*asked).lines == []
    source.grow(30)
    assert [json.loads(line)["rows"] for line in called(*asked).lines] == [30]
    catalog = open_catalog(properties)
    table = catalog.load_table("lake.t")
    assert places(table.scan().to_arrow()) == source.all()
    # The offsets are in the commit that has the rows.
    topic_id = source.topic.topic_id
    told = [json.loads(one.summary[SUMMARY_OFFSETS]) for one in table.metadata.snapshots]
    assert told == [
        {f"{topic_id}-0": 60, f"{topic_id}-1": 50},
        {f"{topic_id}-0": 100},
        {f"{topic_id}-0": 130},
    ]
    assert table.metadata.properties[f"tidelog.export.{topic_id}-0"] == "130"
    catalog.close()


def test_erasures_are_followed_in_the_same_run(source, tmp_path):
    properties = sql_catalog(tmp_path)
    called(*arguments(source, properties))
    erase(source, b"customer-3", {0: 100, 1: 50})
    source.grow(20)
    told = called(*arguments(source, properties, "--apply-erasures", "--expire-snapshots"))
    assert told.lines == ["20 rows appended in 1 files", "15 rows erased"]
    catalog = open_catalog(properties)
    assert rows(catalog) == without(source, (b"customer-3", {0: 100, 1: 50}))
    catalog.close()


def test_the_tail_of_a_diskless_topic_is_appended_up_to_the_first_open_transaction(tmp_path):
    """And then once more from the tier: what was appended from chains is not appended again."""
    cluster = TieredCluster(tmp_path)
    topic = cluster.create_topic("t", partition_count=1, configs=DISKLESS)
    diskless = DisklessTopic(topic, CLUSTER_ID, database=cluster.database, objects=cluster.objects)
    owner = chain_name(0)
    diskless.enter(owner)
    cluster.add_segment("t", [numbered(0, 20)])
    diskless.commit(owner, numbered(20, 25))
    diskless.commit(owner, numbered(25, 27, producer_id=7))
    properties = sql_catalog(tmp_path)
    asked = ["job", "iceberg", "t", "--table", "lake.t"]
    asked += [f"--{name}={url}" for name, url in cluster.options.items()]
    asked += [f"--catalog={name}={value}" for name, value in properties.items()]
    assert called(*asked).lines == ["20 rows appended in 1 files"]
    assert called(*asked, "--tail").lines == ["5 rows appended in 1 files"]
    diskless.commit(owner, end_marker(27, 7, is_commit=True), numbered(28, 30))
    cluster.add_segment("t", [numbered(20, 25)])
    assert called(*asked).lines == []
    assert called(*asked, "--tail").lines == ["4 rows appended in 1 files"]
    catalog = open_catalog(properties)
    assert rows(catalog) == [(0, offset) for offset in range(30) if offset != 27]
    catalog.close()
    diskless.close()


def test_a_wrong_time_is_refused_before_anything_is_read(source, tmp_path):
    properties = sql_catalog(tmp_path)
    wrong = called(*arguments(source, properties, "--every", "soon"), status=2)
    assert "must be a number with s, m, h or d" in wrong.errors
    assert (parse_time("30s"), parse_time("5m"), parse_time("1h")) == (30, 300, 3600)
    for text in ("", "m", "0s", "-1s", "1.5h", "5"):
        with pytest.raises(UsageError):
            parse_time(text)


def test_failures_that_may_pass_are_tried_again_after_growing_pauses(capsys):
    outcomes: list[Exception | None] = [OSError("AWS Error NETWORK_CONNECTION"), None]
    outcomes += [StoreUnavailable("away")] * (FAILURES_MAX - 1) + [SchemaConflict(["other"])]
    waits: list[float] = []

    def run() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    with pytest.raises(SchemaConflict):
        run_again_and_again(run, 0, wait=waits.append)
    assert capsys.readouterr().err.count("trying again in") == FAILURES_MAX
    assert waits[:8] == [5, 0, 5, 10, 20, 40, 80, 160]
    assert set(waits[8:]) == {300}
    outcomes += [StoreUnavailable("away")] * FAILURES_MAX
    with pytest.raises(CommandFailed, match=f"{FAILURES_MAX} runs in a row have failed: away"):
        run_again_and_again(run, 0, wait=waits.append)
    assert outcomes == []


def test_each_topic_may_have_a_table_and_one_that_fails_keeps_no_other_back(source, tmp_path):
    properties = sql_catalog(tmp_path)
    source.cluster.create_topic("a.b", partition_count=1)
    source.cluster.add_segment("a.b", [numbered(0, 20)])
    asked = arguments(source, properties, "--namespace", "lake")
    asked.remove("--table")
    asked.remove("lake.t")
    asked[2:3] = ["t", "a.b"]
    assert called(*asked).lines == ["150 rows appended in 1 files", "20 rows appended in 1 files"]
    catalog = open_catalog(properties)
    assert len(catalog.load_table("lake.a_b").scan().to_arrow()) == 20
    with catalog.load_table("lake.t").update_schema() as update:
        update.delete_column("kafka_key")
    with catalog.load_table("lake.t").update_schema() as update:
        update.add_column("kafka_key", IntegerType())
    source.cluster.add_segment("a.b", [numbered(20, 30)])
    told = called(*asked, status=1)
    assert told.lines == ["10 rows appended in 1 files"]
    assert "tidelog: lake.t: column 'kafka_key' is int32" in told.errors
    asked[2:4] = ["a_b", "a.b"]
    assert "a_b and a.b would have one table" in called(*asked, status=2).errors
    both = [*asked, "--table", "lake.t"]
    assert "give --table, or --namespace" in called(*both, status=2).errors
    catalog.close()


def test_properties_come_from_a_file_or_variables_and_secrets_are_warned_of(
    source, tmp_path, monkeypatch
):
    properties = sql_catalog(tmp_path)
    file = tmp_path / "catalog.properties"
    file.write_text("# ours\n" + "\n".join(f"{n} = {v}" for n, v in properties.items()) + "\n")
    told = called(*arguments(source, {}, "--catalog-file", str(file)))
    assert (told.lines, told.errors) == (["150 rows appended in 1 files"], "")
    for name in ("credential", "token", "s3.secret-access-key"):
        given = {**properties, name: "hunter2"}
        told = called(*arguments(source, given))
        assert f"--catalog {name}=… can be read by every user" in told.errors
        assert "hunter2" not in told.errors
    uri = {"type": "sql", "uri": "postgresql://me:hunter2@db/lake"}
    assert "--catalog uri=… can be read" in called(*arguments(source, uri), status=2).errors
    file.write_text("credential hunter2\n")
    told = called(*arguments(source, {}, "--catalog-file", str(file)), status=2)
    assert "must be NAME=VALUE" in told.errors
    assert "hunter2" not in told.errors
    monkeypatch.setenv("TIDELOG_CATALOG_FILE", str(tmp_path / "none"))
    assert "cannot be read" in called(*arguments(source, properties), status=1).errors


def test_a_catalog_that_is_away_is_said_to_be(source):
    away = {"type": "rest", "uri": "http://127.0.0.1:9"}
    told = called(*arguments(source, away), status=1)
    assert "the Iceberg catalog does not answer" in told.errors


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The properties of a REST catalog that the tests of this file share."""
    try:
        with running_catalog(tmp_path_factory.mktemp("rest") / "catalog") as url:
            yield {"type": "rest", "uri": url}
    except ToolAbsent as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_a_run_leaves_a_backlog_to_the_one_that_is_still_at_work_until_that_is_killed(
    source, tmp_path, monkeypatch
):
    source.grow(1000)
    properties = sql_catalog(tmp_path)
    asked = arguments(source, properties)
    command = [sys.executable, "-m", "tidelog_cli", *asked, "--max-offsets", "1"]
    log = (tmp_path / "log").open("wb")
    first = subprocess.Popen(command, stdout=log, stderr=log)
    catalog = open_catalog(properties)

    def is_at_work() -> bool:
        return catalog.table_exists("lake.t") and len(rows(catalog)) > 0

    try:
        eventually(is_at_work, (tmp_path / "log").read_text, SECONDS_MAX)
        monkeypatch.setattr(table_lease, "LIVE_SECONDS", 1000.0)  # however busy this machine is
        told = called(*asked)
        assert first.poll() is None  # It has a thousand commits to go.
        assert told.lines == []
        assert f"another run is at work on {catalog.load_table('lake.t').location()}" in told.errors
    finally:
        first.kill()
        first.wait()
        log.close()
    # Its process is gone, so its lease is, too.
    assert called(*asked).errors == ""
    assert rows(catalog) == source.all()
    catalog.close()


@pytest.mark.slow
def test_a_schedule_that_is_killed_again_and_again_appends_each_record_once(source, tmp_path, rest):
    """Two of them at once, over a REST catalog; DuckDB reads the table as pyiceberg does."""
    command = [sys.executable, "-m", "tidelog_cli", *arguments(source, rest, "--every", "1s")]
    catalog = open_catalog(rest)
    log = (tmp_path / "log").open("wb")

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=log, stderr=log)

    def is_there() -> bool:
        return catalog.table_exists("lake.t") and len(rows(catalog)) >= len(source.all())

    processes = [start(), start()]
    try:
        for number in range(4):
            eventually(is_there, (tmp_path / "log").read_text, SECONDS_MAX)
            source.grow(50 + number)
            source.grow(50, partition=1)
            victim = processes.pop(0)
            victim.send_signal(signal.SIGKILL if number % 2 else signal.SIGINT)
            assert victim.wait(60) in (-signal.SIGKILL, -signal.SIGINT, 130)
            processes.append(start())
        eventually(is_there, (tmp_path / "log").read_text, SECONDS_MAX)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        log.close()
    assert rows(catalog) == source.all()
    files = [one.file.file_path for one in catalog.load_table("lake.t").scan().plan_files()]
    paths = [one.removeprefix("file://") for one in files]
    count = "select count(*), count(distinct (kafka_partition, kafka_offset)) from read_parquet(?)"
    total = len(source.all())
    assert duckdb.execute(count, [paths]).fetchall() == [(total, total)]
    catalog.close()


@pytest.mark.slow
def test_an_erasure_of_a_table_in_a_rest_catalog_leaves_no_snapshot_with_the_key(
    source, tmp_path, rest
):
    named = IcebergTable(open_catalog(rest), "lake.erased", TimePartitions.DAY)
    source.export(None, named)
    erase(source, b"customer-3", {0: 100, 1: 50})
    asked = arguments(source, rest, "--apply-erasures", "--expire-snapshots")
    asked[asked.index("lake.t")] = "lake.erased"
    assert called(*asked).lines == ["15 rows erased"]
    table = named.catalog.load_table("lake.erased")
    assert len(table.metadata.snapshots) == 1
    assert places(table.scan().to_arrow()) == without(source, (b"customer-3", {0: 100, 1: 50}))
    for path in Path(table.location().removeprefix("file://")).rglob("*"):
        if path.suffix in (".parquet", ".avro"):
            assert b"customer-3" not in path.read_bytes(), os.fspath(path)
    named.catalog.close()

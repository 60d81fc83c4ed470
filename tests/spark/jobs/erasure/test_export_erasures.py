"""Tables follow the erasures of their topic: rows leave, once and whole, wherever a run is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fastavro
import pytest
from deltalake import DeltaTable
from tidelog_core.errors import CorruptObject
from tidelog_spark.jobs.tables.erasable_table import ErasableTable, Expiry
from tidelog_spark.jobs.tables.erased_rows import UnreadableTableFile
from tidelog_spark.jobs.tables.export_table import ExportConflict

from tests.spark.jobs.erased_exports import (
    TARGETS,
    DeltaTarget,
    IcebergTarget,
    Target,
    customer_of,
    erase,
    follow,
    places,
    without,
)
from tests.spark.jobs.exported import Source

KEY, OTHER = b"customer-3", b"customer-4"


@pytest.fixture(params=list(TARGETS))
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    found = TARGETS[request.param](tmp_path)
    yield found
    found.close()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    found = Source(tmp_path, key_of=customer_of)
    found.grow(100)
    found.grow(50, partition=1)
    return found


def receipts(target: Target) -> list[dict[str, object]]:
    table = target.erasable()
    assert table.open()
    folder = Path(table.location.removeprefix("file://")) / "_tidelog" / "erasures"
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_rows_of_an_erased_key_leave_and_the_receipt_names_their_files(source, target):
    source.export(None, target.table())
    source.grow(20)
    source.export(None, target.table())
    before = target.erasable()
    before.open()
    files = {one.path for one in before.files()}
    erase(source, KEY, {0: 100, 1: 50})
    result = follow(source, target.erasable())
    assert (result.row_count, result.waiting) == (15, ())
    # Records that were produced after the erasure stay: those from offset 100 on.
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))
    (receipt,) = receipts(target)
    assert (receipt["rows_erased"], receipt["is_committed"]) == (15, True)
    assert "customer" not in json.dumps(receipt)
    replaced = receipt["files_replaced"]
    assert {one["old"] for one in replaced} < files
    assert len(replaced) == 1
    assert receipt["still_reached_by"]
    # Older states still have them, and the export goes on.
    assert target.history() >= 150
    source.grow(30, partition=1)
    source.export(None, target.table())
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))


def test_a_second_run_does_nothing_until_there_is_another_erasure(source, target):
    source.export(None, target.table())
    erase(source, KEY, {0: 100, 1: 50})
    follow(source, target.erasable())
    assert follow(source, target.erasable()).receipts == ()
    erase(source, OTHER, {0: 100, 1: 50})
    erase(source, b"nobody", {0: 100, 1: 50})
    assert follow(source, target.erasable()).row_count == 15
    assert follow(source, target.erasable()).receipts == ()
    assert places(target.rows()) == without(
        source, (KEY, {0: 100, 1: 50}), (OTHER, {0: 100, 1: 50})
    )


def test_nothing_reaches_the_rows_once_old_states_are_given_up(source, target):
    source.export(None, target.table())
    erase(source, KEY, {0: 100, 1: 50})
    assert follow(source, target.erasable()).reached_by
    # Asked for later, for a run that has ended.
    result = follow(source, target.erasable(), expires=True)
    assert result.reached_by == []
    assert target.history() in (0, 135)
    (receipt,) = receipts(target)
    assert receipt["still_reached_by"] == []
    assert receipt["files_deleted_ms"] is not None
    table = target.erasable()
    table.open()
    folder = Path(table.location.removeprefix("file://"))
    for path in folder.rglob("*"):
        if path.suffix in (".parquet", ".avro"):
            assert KEY not in path.read_bytes(), path
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))
    assert follow(source, target.erasable(), expires=True).receipts == ()


def test_an_export_from_before_the_erasure_may_still_append_and_is_looked_at_again(source, target):
    source.export(None, target.table(), offsets_per_partition_max=50)
    erase(source, KEY, {0: 100, 1: 50})
    (waiting,) = follow(source, target.erasable()).waiting
    assert "has not exported all" in waiting
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))[:45] + [
        one for one in without(source, (KEY, {1: 50})) if one[0] == 1
    ]
    source.export(None, target.table())
    result = follow(source, target.erasable())
    assert (result.row_count, result.waiting) == (5, ())
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))


def test_an_erasure_that_is_not_complete_is_followed_as_far_as_it_is(source, target):
    source.export(None, target.table())
    erase(source, KEY, {0: 100, 1: None}, problem="broker 2 has not taken it up")
    (waiting,) = follow(source, target.erasable()).waiting
    assert "run tidelog erase again" in waiting
    assert places(target.rows()) == without(source, (KEY, {0: 100}))
    erase(source, KEY, {0: 100, 1: 50})
    assert follow(source, target.erasable()).waiting == ()
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))


def test_a_file_without_other_rows_is_removed(tmp_path, target):
    source = Source(tmp_path, key_of=lambda _: KEY)
    source.grow(50)
    source.export(None, target.table())
    source.key_of = customer_of
    source.grow(50)
    source.export(None, target.table())
    erase(source, KEY, {0: 50, 1: 0})
    assert follow(source, target.erasable(), expires=True).row_count == 50
    assert places(target.rows()) == [(0, offset) for offset in range(50, 100)]
    (receipt,) = receipts(target)
    assert [one["new"] for one in receipt["files_replaced"]] == [None]


def test_a_table_that_is_not_there_yet_has_nothing_to_follow(source, target):
    erase(source, KEY, {0: 100, 1: 50})
    assert follow(source, target.erasable()).receipts == ()


class _Stopped:
    """A table whose run is interrupted at a step: before it, or after it."""

    def __init__(self, table: ErasableTable, step: str, *, is_after: bool) -> None:
        self._table, self._step, self._is_after = table, step, is_after

    def __getattr__(self, name: str) -> object:
        found = getattr(self._table, name)
        if name != self._step:
            return found

        def stop(*arguments: object, **named: object) -> None:
            if self._is_after:
                found(*arguments, **named)
            raise KeyboardInterrupt

        return stop


class _HalfExpired(_Stopped):
    """A table whose snapshots are gone when the run is interrupted, and its files are not."""

    def __getattr__(self, name: str) -> object:
        found = getattr(self._table, name)
        if name != "expire":
            return found

        def stop(expiry: Expiry) -> None:
            found(Expiry(expiry.snapshots, expiry.files[:1]))
            raise KeyboardInterrupt

        return stop


STOPS: list[tuple[str, Callable[[ErasableTable], object]]] = [
    *(
        (f"{when}-{step}", lambda table, s=step, a=when == "after": _Stopped(table, s, is_after=a))
        for step in ("files", "replace", "expiry", "expire")
        for when in ("before", "after")
    ),
    ("before-reached_by", lambda table: _Stopped(table, "reached_by", is_after=False)),
    ("half-expired", lambda table: _HalfExpired(table, "expire", is_after=False)),
]


# The rest is for the slow suite.
QUICK = ("after-replace", "half-expired")


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(one, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, one in STOPS
    ],
)
def test_a_run_that_is_interrupted_anywhere_ends_the_same_when_it_is_run_again(
    source, target, stop
):
    source.export(None, target.table())
    erase(source, KEY, {0: 100, 1: 50})
    with pytest.raises(KeyboardInterrupt):
        follow(source, stop(target.erasable()), expires=True)
    expected = without(source, (KEY, {0: 100, 1: 50}))
    assert places(target.rows()) in (source.all(), expected)
    follow(source, target.erasable(), expires=True)
    assert places(target.rows()) == expected
    committed = [one for one in receipts(target) if one["is_committed"]]
    assert [one["rows_erased"] for one in committed] == [15]
    assert committed[0]["still_reached_by"] == []
    for url in committed[0]["expiry"]["files"]:
        assert not Path(url.removeprefix("file://")).exists()
    assert follow(source, target.erasable(), expires=True).receipts == ()


class _Overtaken(_Stopped):
    """A table that something happens to just before a step."""

    def __init__(
        self, table: ErasableTable, happen: Callable[[], object], step: str = "replace"
    ) -> None:
        super().__init__(table, step, is_after=False)
        self._happen = happen

    def __getattr__(self, name: str) -> object:
        found = getattr(self._table, name)
        if name != self._step:
            return found

        def go_on(*arguments: object, **named: object) -> None:
            self._happen()
            found(*arguments, **named)

        return go_on


def test_an_export_that_commits_meanwhile_is_no_conflict(source, target):
    source.export(None, target.table())
    erase(source, KEY, {0: 100, 1: 50})

    def export() -> None:
        source.grow(30)
        source.export(None, target.table())

    follow(source, _Overtaken(target.erasable(), export))
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))


def test_of_two_runs_at_once_one_commits_and_the_other_leaves_nothing(source, target):
    source.export(None, target.table())
    erase(source, KEY, {0: 100, 1: 50})
    overtaken = _Overtaken(target.erasable(), lambda: follow(source, target.erasable()))
    with pytest.raises(ExportConflict):
        follow(source, overtaken)
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))
    assert follow(source, target.erasable()).receipts == ()


class _Twice:
    """A table whose commits are sent twice, as by a client that got no answer to the first."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._table, self._twin = make(), make()

    def __getattr__(self, name: str) -> object:
        found = getattr(self._table, name)
        if name not in ("open", "prepare", "files", "commit", "replace"):
            return found

        def both(*arguments: object, **named: object) -> object:
            getattr(self._twin, name)(*arguments, **named)
            return found(*arguments, **named)

        return both


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_a_commit_that_is_sent_twice_is_there_once_and_keeps_its_files(source, tmp_path, name):
    target = TARGETS[name](tmp_path)
    source.export(None, target.table())
    source.grow(30)
    source.export(None, _Twice(target.table))
    assert places(target.rows()) == source.all()
    erase(source, KEY, {0: 130, 1: 50})
    assert follow(source, _Twice(target.erasable)).row_count == 18
    assert places(target.rows()) == without(source, (KEY, {0: 130, 1: 50}))
    target.close()


def key_bounds(folder: Path) -> set[bytes]:
    """Return the least and greatest values in all manifests, those of removed files included."""
    found: set[bytes] = set()
    for path in folder.rglob("*-m*.avro"):
        with path.open("rb") as file:
            for entry in fastavro.reader(file):
                for name in ("lower_bounds", "upper_bounds"):
                    found.update(one["value"] for one in entry["data_file"][name] or ())
    return found


def test_no_manifest_has_an_erased_key_once_old_snapshots_are_given_up(source, tmp_path):
    least = customer_of(0)
    target = IcebergTarget(tmp_path)
    source.export(None, target.table())
    assert least in key_bounds(tmp_path)
    erase(source, least, {0: 100, 1: 50})
    assert follow(source, target.erasable(), expires=True).row_count == 15
    bounds = key_bounds(tmp_path)
    assert least not in bounds
    assert customer_of(1) in bounds
    target.close()


def test_a_snapshot_that_gets_a_tag_after_the_plan_stays_whole(source, tmp_path):
    target = IcebergTarget(tmp_path)
    source.export(None, target.table())
    first = target.catalog.load_table("lake.t").current_snapshot().snapshot_id
    erase(source, KEY, {0: 100, 1: 50})
    stopped = _Stopped(target.erasable(), "expire", is_after=False)
    with pytest.raises(KeyboardInterrupt):
        follow(source, stopped, expires=True)
    target.catalog.load_table("lake.t").manage_snapshots().create_tag(first, "late").commit()
    (reached,) = follow(source, target.erasable(), expires=True).reached_by
    assert reached.endswith("(late)")
    assert target.history() == 150
    target.close()


def test_a_delta_table_that_was_restored_keeps_its_files(source, tmp_path):
    target = DeltaTarget(tmp_path)
    source.export(None, target.table())
    before = DeltaTable(target.url).version()
    erase(source, KEY, {0: 100, 1: 50})
    assert follow(source, target.erasable()).row_count == 15

    def restore() -> None:
        DeltaTable(target.url).restore(before)

    restored = _Overtaken(target.erasable(), restore, "expire")
    assert follow(source, restored, expires=True).reached_by
    assert places(target.rows()) == source.all()


def test_a_catalog_may_give_its_tables_paths_of_this_machine(source, tmp_path):
    target = IcebergTarget(tmp_path, warehouse=str(tmp_path / "a warehouse"))
    source.export(None, target.table())
    erase(source, KEY, {0: 100, 1: 50})
    for rows in (15, 0):
        assert follow(source, target.erasable(), expires=True).row_count == rows
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))
    assert (tmp_path / "a warehouse" / "lake" / "t" / "_tidelog" / "erasures").is_dir()
    target.close()


def test_files_of_an_earlier_partitioning_are_refused(source, tmp_path):
    target = IcebergTarget(tmp_path)
    source.export(None, target.table())
    with target.catalog.load_table("lake.t").update_spec() as update:
        update.add_identity("kafka_partition")
    erase(source, KEY, {0: 100, 1: 50})
    with pytest.raises(UnreadableTableFile, match="earlier partitioning"):
        follow(source, target.erasable())
    assert places(target.rows()) == source.all()
    assert list(tmp_path.rglob("kept-*")) == []
    target.close()


def test_a_receipt_that_cannot_be_read_is_named(source, target):
    source.export(None, target.table())
    one = erase(source, KEY, {0: 100, 1: 50})
    (path,) = source.cluster.objects.rglob(f"erasure-{one}.json")
    path.write_text('{"partitions": [{"partition": "x"}]}')
    with pytest.raises(CorruptObject, match=f"erasure-{one}"):
        follow(source, target.erasable())
    assert places(target.rows()) == source.all()


def test_a_tag_keeps_its_snapshot_and_the_receipt_says_so(source, tmp_path):
    target = IcebergTarget(tmp_path)
    source.export(None, target.table())
    table = target.catalog.load_table("lake.t")
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "yearly").commit()
    erase(source, KEY, {0: 100, 1: 50})
    (reached,) = follow(source, target.erasable(), expires=True).reached_by
    assert reached.endswith("(yearly)")
    assert (
        target.catalog.load_table("lake.t")
        .scan(snapshot_id=table.current_snapshot().snapshot_id)
        .to_arrow()
        .num_rows
        == 150
    )
    # When the tag is gone, another run does the rest.
    target.catalog.load_table("lake.t").manage_snapshots().remove_tag("yearly").commit()
    assert follow(source, target.erasable(), expires=True).reached_by == []
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))
    target.close()


def test_files_that_another_program_has_merged_are_found(source, tmp_path):
    target = DeltaTarget(tmp_path)
    source.export(None, target.table())
    source.grow(20)
    source.export(None, target.table())
    DeltaTable(target.url).optimize.compact()
    erase(source, KEY, {0: 100, 1: 50})
    assert follow(source, target.erasable()).row_count == 15
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))


@pytest.mark.slow
def test_the_command_exports_and_then_erases_in_every_format(source, tmp_path):
    stores = [f"--{name}={url}" for name, url in source.cluster.options.items()]
    iceberg = [
        *("--table-format", "iceberg", "--table", "lake.t", "--catalog", "type=sql"),
        *("--catalog", f"uri=sqlite:///{tmp_path}/catalog.db"),
        *("--catalog", f"warehouse={tmp_path.as_uri()}/warehouse"),
    ]
    delta = ["--table-format", "delta", "--to", f"{tmp_path.as_uri()}/delta"]
    parquet = ["--to", f"{tmp_path.as_uri()}/parquet"]
    erase(source, KEY, {0: 100, 1: 50})
    for name, options in (("parquet", parquet), ("delta", delta), ("iceberg", iceberg)):
        command = [sys.executable, "-m", "tidelog_cli", "job", "export", *stores, "t", *options]
        command += ["--apply-erasures", "--expire-snapshots", "--json"]
        file = tmp_path / f"{name}.json"
        done = subprocess.run(
            [*command, "--receipt", str(file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["rows"], found["erased"]["rows"]) == (150, 15)
        assert (found["erased"]["waiting"], found["erased"]["still_reached_by"]) == ([], [])
        (receipt,) = json.loads(file.read_text())
        assert [receipt["run_id"]] == found["erased"]["receipts"]
        target = TARGETS[name](tmp_path)
        assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))
        target.close()

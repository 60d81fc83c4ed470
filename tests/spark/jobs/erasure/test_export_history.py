"""Tables that were restored or rewritten by other programs, and tables with a long history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.store import ObjectStore
from tidelog_spark.jobs.erasure import followed_runs
from tidelog_spark.jobs.erasure.followed_runs import read_receipts
from tidelog_spark.jobs.formats import parquet_commits
from tidelog_spark.jobs.formats.iceberg_table import IcebergTable
from tidelog_spark.jobs.formats.parquet_commits import read_log
from tidelog_spark.jobs.formats.parquet_table import ParquetTable
from tidelog_spark.jobs.parquet_table import committed_files
from tidelog_spark.jobs.tables.erasable_table import ErasableTable, delete_uncommitted
from tidelog_spark.jobs.tables.export_table import CorruptExport, ExportConflict, TimePartitions

from tests.spark.jobs.erased_exports import (
    TARGETS,
    DeltaTarget,
    IcebergTarget,
    ParquetTarget,
    customer_of,
    erase,
    follow,
    places,
    without,
)
from tests.spark.jobs.exported import Source
from tests.support.diskless_topic import end_marker

KEY, OTHER = b"customer-3", b"customer-4"


@pytest.fixture
def source(tmp_path: Path) -> Source:
    found = Source(tmp_path, key_of=customer_of)
    found.grow(100)
    found.grow(50, partition=1)
    return found


class RestoredDelta(DeltaTarget):
    def state(self) -> int:
        return DeltaTable(self.url).version()

    def restore(self, state: int) -> None:
        DeltaTable(self.url).restore(state)


class RolledBackIceberg(IcebergTarget):
    def state(self) -> int:
        snapshot = self.catalog.load_table("lake.t").current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def restore(self, state: int) -> None:
        table = self.catalog.load_table("lake.t")
        table.manage_snapshots().set_current_snapshot(state).commit()


RESTORED = {"delta": RestoredDelta, "iceberg": RolledBackIceberg}


@pytest.fixture(params=list(RESTORED))
def restored(request: pytest.FixtureRequest, tmp_path: Path):
    found = RESTORED[request.param](tmp_path)
    yield found
    found.close()


def test_rows_that_a_restored_table_has_lost_are_exported_again(source, restored):
    """Also those of a partition without new records, and once alone."""
    source.export(None, restored.table())
    first = restored.state()
    source.grow(20)
    source.grow(5, partition=1)
    source.export(None, restored.table())
    restored.restore(first)
    assert len(restored.rows()) == 150
    source.grow(7)
    assert source.export(None, restored.table()).row_count == 32
    assert places(restored.rows()) == source.all()
    assert source.export(None, restored.table()).row_count == 0
    source.grow(3)
    assert source.export(None, restored.table()).row_count == 3
    assert places(restored.rows()) == source.all()


def test_a_table_may_be_restored_again_and_again_and_forward(source, restored):
    states = []
    for _ in range(3):
        source.export(None, restored.table())
        states.append(restored.state())
        source.grow(10)
    for number in (1, 0):
        restored.restore(states[number])
    assert len(restored.rows()) == 150
    restored.restore(states[2])
    assert source.export(None, restored.table()).row_count == 10
    restored.restore(states[0])
    restored.restore(states[1])
    assert source.export(None, restored.table(), offsets_per_partition_max=5).row_count == 5
    assert source.export(None, restored.table()).row_count == 15
    assert places(restored.rows()) == source.all()


def test_a_partition_that_a_restored_table_did_not_have_yet_is_exported_from_its_start(
    tmp_path, restored
):
    source = Source(tmp_path, key_of=customer_of)
    source.grow(100)
    source.export(None, restored.table())
    first = restored.state()
    source.grow(50, partition=1)
    source.export(None, restored.table())
    last = restored.state()
    restored.restore(first)
    assert len(restored.rows()) == 100
    assert source.export(None, restored.table(), offsets_per_partition_max=20).row_count == 20
    assert source.export(None, restored.table()).row_count == 30
    assert places(restored.rows()) == source.all()
    restored.restore(last)
    assert source.export(None, restored.table()).row_count == 0


def test_a_restored_table_follows_its_erasures_again(source, restored):
    source.export(None, restored.table())
    before = restored.state()
    erase(source, KEY, {0: 100, 1: 50})
    assert follow(source, restored.erasable()).row_count == 15
    restored.restore(before)
    erase(source, OTHER, {0: 100, 1: 50})
    follow(source, restored.erasable(), expires=True)
    assert places(restored.rows()) == without(
        source, (KEY, {0: 100, 1: 50}), (OTHER, {0: 100, 1: 50})
    )
    assert follow(source, restored.erasable(), expires=True).receipts == ()
    assert source.export(None, restored.table()).row_count == 0


def test_a_delta_table_whose_restored_version_cannot_be_told_is_not_exported_to(source, tmp_path):
    target = RestoredDelta(tmp_path)
    source.export(None, target.table())
    first = target.state()
    source.grow(20)
    source.export(None, target.table())
    target.restore(first)
    log = tmp_path / "delta" / "_delta_log"
    last = max(log.glob("*.json"))
    lines = [json.loads(line) for line in last.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["operationParameters"] = {}
    last.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(CorruptExport, match="a RESTORE whose version cannot be read"):
        source.export(None, target.table())


def unpartitioned(target: IcebergTarget) -> IcebergTable:
    """Return the table as one that pyiceberg can write to by itself."""
    return IcebergTable(target.catalog, "lake.t", TimePartitions.NONE)


def test_rows_in_snapshots_that_were_rewritten_before_the_erasure_are_found(source, tmp_path):
    """The files of the first snapshot left the table before anybody asked for the erasure."""
    target = IcebergTarget(tmp_path)
    source.export(None, unpartitioned(target))
    table = target.catalog.load_table("lake.t")
    first = table.current_snapshot()
    assert first is not None
    old = {task.file.file_path for task in table.scan().plan_files()}
    table.overwrite(table.scan().to_arrow())
    erase(source, KEY, {0: 100, 1: 50})
    done = follow(source, target.erasable())
    assert done.row_count == 15
    [receipt] = done.receipts
    assert set(receipt.older) == old
    assert any(str(first.snapshot_id) in name for name in receipt.reached_by)
    assert receipt.document()["older_files"] == list(receipt.older)
    assert follow(source, target.erasable(), expires=True).reached_by == []
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))
    for path in (tmp_path / "warehouse").rglob("*.parquet"):
        assert KEY not in path.read_bytes(), path
    target.close()


def expire(target: IcebergTarget, snapshot_id: int) -> None:
    table = target.catalog.load_table("lake.t")
    table.maintenance.expire_snapshots().by_id(snapshot_id).commit()


def test_an_erasure_is_repeated_after_a_rollback_and_the_expiry_of_its_snapshot(
    source, tmp_path, caplog
):
    target = RolledBackIceberg(tmp_path)
    source.export(None, target.table())
    before = target.state()
    erase(source, KEY, {0: 100, 1: 50})
    assert follow(source, target.erasable()).row_count == 15
    erased = target.state()
    target.restore(before)
    expire(target, erased)
    assert len(target.rows()) == 150
    source.grow(10)  # on top of the restored snapshot
    source.export(None, target.table())
    assert follow(source, target.erasable()).row_count == 15
    assert caplog.text.count("erasure is repeated in a restored table") == 1
    # Once: by now another run has done the same.
    assert follow(source, target.erasable()).receipts == ()
    assert caplog.text.count("erasure is repeated in a restored table") == 1
    # All snapshots before the last one are expired as usual: nothing is undone.
    for one in target.catalog.load_table("lake.t").metadata.snapshots:
        if one.snapshot_id != target.state():
            expire(target, one.snapshot_id)
    erasing = target.erasable()
    assert erasing.open()
    assert erasing.undone({}) == set()
    assert follow(source, target.erasable()).receipts == ()
    assert places(target.rows()) == without(source, (KEY, {0: 100, 1: 50}))
    target.close()


def marks(target: IcebergTarget) -> dict[str, str]:
    """Return the table's properties that are about erasures."""
    properties = target.catalog.load_table("lake.t").metadata.properties
    return {name: value for name, value in properties.items() if "tidelog.erasure" in name}


def customers(count: int) -> list[bytes]:
    return [b"customer-%d" % number for number in range(count)]


EVERYTHING = {0: 100, 1: 50}


def test_a_table_keeps_no_property_of_erasures_but_the_last(source, tmp_path):
    target = IcebergTarget(tmp_path)
    source.export(None, target.table())
    for key in customers(5):
        erase(source, key, EVERYTHING)
        (receipt,) = follow(source, target.erasable()).receipts
        assert receipt.row_count == 15
        assert set(marks(target)) == {
            f"tidelog.erasure.{receipt.run_id}",
            f"tidelog.erasure-since.{receipt.run_id}",
        }
        assert str(receipt.commit_number) in marks(target).values()
    assert follow(source, target.erasable()).receipts == ()
    assert places(target.rows()) == without(source, *((key, EVERYTHING) for key in customers(5)))
    target.close()


@pytest.mark.parametrize("has_followed", [False, True], ids=["receipts", "remembered"])
def test_erasures_whose_properties_are_gone_are_repeated_after_a_rollback(
    source, tmp_path, monkeypatch, has_followed
):
    """By the numbers in their receipts: their snapshots are expired."""
    monkeypatch.setattr(followed_runs, "REMEMBERED_FROM", 1 if has_followed else 1_000)
    target = RolledBackIceberg(tmp_path)
    source.export(None, target.table())
    before = target.state()
    erased = []
    for key in customers(4):
        erase(source, key, EVERYTHING)
        follow(source, target.erasable())
        erased.append(target.state())
    target.restore(before)
    for state in erased:
        expire(target, state)
    assert len(target.rows()) == 150
    assert follow(source, target.erasable()).row_count == 60
    expected = without(source, *((key, EVERYTHING) for key in customers(4)))
    assert places(target.rows()) == expected
    assert len(marks(target)) <= 4
    assert follow(source, target.erasable()).receipts == ()
    # A tag may keep an old snapshot for ever, and the table may go back to it.
    erase(source, b"customer-4", EVERYTHING)
    follow(source, target.erasable())
    target.restore(before)
    assert follow(source, target.erasable()).row_count == 75
    target.close()


def test_the_mark_of_a_run_that_was_killed_stays_until_its_receipt_is_complete(source, tmp_path):
    class Killed:
        """A table whose run ends at once behind its commit."""

        def __init__(self, table: ErasableTable) -> None:
            self._table = table

        def __getattr__(self, name: str) -> Any:
            return getattr(self._table, name)

        def replace(self, *arguments: Any, **named: Any) -> None:
            self._table.replace(*arguments, **named)
            raise KeyboardInterrupt

    target = IcebergTarget(tmp_path)
    source.export(None, target.table())
    first, second, third = customers(3)
    erase(source, first, EVERYTHING)
    with pytest.raises(KeyboardInterrupt):
        follow(source, Killed(target.erasable()))
    killed = set(marks(target))
    erase(source, second, EVERYTHING)
    follow(source, target.erasable())
    assert killed < set(marks(target)), "its own receipt may not be written yet"
    erase(source, third, EVERYTHING)
    follow(source, target.erasable())
    assert len(marks(target)) == 2
    assert killed.isdisjoint(marks(target))
    assert places(target.rows()) == without(source, *((key, EVERYTHING) for key in customers(3)))
    target.close()


def test_properties_that_an_earlier_program_has_left_go_once_receipts_have_what_they_say(
    source, tmp_path
):
    target = RolledBackIceberg(tmp_path)
    source.export(None, target.table())
    before = target.state()
    for key in customers(2):
        erase(source, key, EVERYTHING)
        follow(source, target.erasable())
    erased = target.state()
    # As that program left them: with properties, and numbers in these alone.
    table = target.catalog.load_table("lake.t")
    folder = Path(table.location().removeprefix("file://")) / "_tidelog" / "erasures"
    properties = {}
    for path in folder.iterdir():
        receipt = json.loads(path.read_text())
        properties[f"tidelog.erasure.{receipt['run_id']}"] = "15"
        number = str(receipt.pop("commit_number"))
        properties[f"tidelog.erasure-since.{receipt['run_id']}"] = number
        path.write_text(json.dumps(receipt))
    properties["tidelog.erasure.gone"] = "3"  # Somebody has removed its receipt.
    table.transaction().set_properties(properties).commit_transaction()
    for key in (b"customer-2", b"customer-3"):
        erase(source, key, EVERYTHING)
        follow(source, target.erasable())
    assert len(marks(target)) == 2
    newest = target.state()
    target.restore(before)
    expire(target, erased)
    expire(target, newest)
    assert follow(source, target.erasable()).row_count == 60
    target.close()


def test_numbers_that_an_earlier_program_has_not_remembered_are_read_from_receipts(
    source, tmp_path, monkeypatch
):
    """It writes ``followed.json`` without them, once a later program has removed properties."""
    monkeypatch.setattr(followed_runs, "REMEMBERED_FROM", 1)
    target = RolledBackIceberg(tmp_path)
    source.export(None, target.table())
    before = target.state()
    erased = []
    for key in customers(3):
        erase(source, key, EVERYTHING)
        follow(source, target.erasable())
        erased.append(target.state())
    location = target.catalog.load_table("lake.t").location().removeprefix("file://")
    path = Path(location) / "_tidelog" / "followed.json"
    document = json.loads(path.read_text())
    assert len(document["runs"]) == 3
    for run in document["runs"]:
        del run["commit_number"]
    path.write_text(json.dumps(document))
    target.restore(before)
    for state in erased:
        expire(target, state)
    assert follow(source, target.erasable()).row_count == 45
    assert places(target.rows()) == without(source, *((key, EVERYTHING) for key in customers(3)))
    target.close()


@pytest.mark.parametrize("is_first_expired", [False, True])
def test_rows_of_a_partition_whose_first_export_was_rolled_back_and_expired_come_again(
    tmp_path, is_first_expired
):
    target = RolledBackIceberg(tmp_path)
    source = Source(tmp_path, key_of=customer_of)
    source.grow(100)
    source.export(None, target.table())
    oldest = target.state()
    source.grow(10)
    source.export(None, target.table())
    before = target.state()
    source.grow(50, partition=1)
    source.export(None, target.table())
    rolled_back = target.state()
    target.restore(before)
    expire(target, rolled_back)
    if is_first_expired:
        expire(target, oldest)
    assert source.export(None, target.table(), offsets_per_partition_max=20).row_count == 20
    assert source.export(None, target.table()).row_count == 30
    assert places(target.rows()) == source.all()
    target.close()


def test_an_expired_snapshot_between_does_not_make_an_erasure_undone(source, tmp_path):
    target = IcebergTarget(tmp_path)
    source.export(None, target.table())
    erase(source, KEY, {0: 100, 1: 50})
    follow(source, target.erasable())
    source.grow(10)
    source.export(None, target.table())
    table = target.catalog.load_table("lake.t")
    between = table.current_snapshot()
    assert between is not None
    source.grow(10)
    source.export(None, target.table())
    table = target.catalog.load_table("lake.t")
    table.maintenance.expire_snapshots().by_id(between.snapshot_id).commit()
    erasing = target.erasable()
    assert erasing.open()
    assert erasing.undone({}) == set()
    assert follow(source, target.erasable()).receipts == ()
    assert source.export(None, target.table()).row_count == 0
    target.close()


def test_an_erasure_of_rows_that_only_older_snapshots_have_is_told_and_expires(source, tmp_path):
    target = IcebergTarget(tmp_path)
    source.export(None, unpartitioned(target))
    table = target.catalog.load_table("lake.t")
    kept = (
        table.scan()
        .to_arrow()
        .filter([key != KEY for key in table.scan().to_arrow()["kafka_key"].to_pylist()])
    )
    table.overwrite(kept)
    erase(source, KEY, {0: 100, 1: 50})
    done = follow(source, target.erasable())
    assert (done.row_count, len(done.reached_by) > 0) == (0, True)
    assert follow(source, target.erasable(), expires=True).reached_by == []
    for path in (tmp_path / "warehouse").rglob("*.parquet"):
        assert KEY not in path.read_bytes(), path
    target.close()


class CountingStore(FolderObjectStore):
    """Counts the objects that are read."""

    get_count = 0

    async def get(self, key: str) -> bytes:
        self.get_count += 1
        return await super().get(key)


def get_count(folder: Path, read: Callable[[ObjectStore], Coroutine[Any, Any, object]]) -> int:
    """Return how many objects the call reads."""
    store = CountingStore(folder)
    asyncio.run(read(store))
    return store.get_count


def test_receipts_are_read_once_and_remembered(source, tmp_path, monkeypatch):
    monkeypatch.setattr(followed_runs, "REMEMBERED_FROM", 3)
    target = ParquetTarget(tmp_path)
    source.export(None, target.table())
    keys = [b"customer-%d" % number for number in range(7)]
    for key in keys:
        erase(source, key, {0: 100, 1: 50})
        assert follow(source, target.erasable()).row_count == 15
    state = tmp_path / "parquet" / "_tidelog"
    assert len(list((state / "erasures").iterdir())) == 7
    # One is what is remembered, and fewer than three are not.
    assert get_count(state, partial(read_receipts, with_unsettled=False)) <= 3
    assert follow(source, target.erasable()).receipts == ()
    # All of them are read by a run that gives up old files, and once these are gone none is.
    assert len(follow(source, target.erasable(), expires=True).receipts) == 7
    assert follow(source, target.erasable(), expires=True).receipts == ()
    assert get_count(state, partial(read_receipts, with_unsettled=True)) <= 3
    # What is remembered follows from the receipts: without it, they are read.
    (state / "followed.json").write_text("{")
    assert follow(source, target.erasable()).receipts == ()
    for path in (state / "erasures").iterdir():
        path.unlink()
    assert follow(source, target.erasable()).row_count == 0
    assert len(list((state / "erasures").iterdir())) == 1
    assert places(target.rows()) == without(source, *((key, {0: 100, 1: 50}) for key in keys))


def test_commits_of_a_folder_are_read_once_and_then_from_a_checkpoint(
    source, tmp_path, monkeypatch
):
    monkeypatch.setattr(parquet_commits, "CHECKPOINT_FROM", 4)
    target = ParquetTarget(tmp_path)
    expected = []
    for number in range(11):
        source.grow(10)
        source.export(None, target.table())
        if number == 6:
            erase(source, KEY, {0: 100, 1: 50})
            follow(source, target.erasable())
            expected.append((KEY, {0: 100, 1: 50}))
    state = tmp_path / "parquet" / "_tidelog"
    assert len(list((state / "commits").iterdir())) == 12
    assert get_count(state, read_log) <= 6  # the checkpoint, its commit, and four more
    assert places(target.rows()) == without(source, *expected)
    erase(source, OTHER, {0: 100, 1: 50})
    follow(source, target.erasable(), expires=True)
    expected.append((OTHER, {0: 100, 1: 50}))
    listed = committed_files(target.url)
    for content in ("{", '{"format_version": 9}', "[]"):
        (state / "checkpoint.json").write_text(content)
        assert committed_files(target.url) == listed
    (state / "checkpoint.json").unlink()
    assert committed_files(target.url) == listed
    assert places(target.rows()) == without(source, *expected)
    source.grow(1)
    assert source.export(None, target.table()).row_count == 1


def test_a_conflict_is_told_where_its_files_cannot_be_deleted(source, tmp_path, monkeypatch):
    """The error of the deletion does not take the conflict's place; the message has both."""
    table = ParquetTable((tmp_path / "export").as_uri())
    commit = table.commit

    def overtaken(files, offsets, *, run_id):
        source.export(None, ParquetTable(table.location))
        for one in files:
            path = tmp_path / "export" / one.path
            path.unlink()
            (path / "within").mkdir(parents=True)  # nobody may delete it as a file
        commit(files, offsets, run_id=run_id)

    monkeypatch.setattr(table, "commit", overtaken)
    with pytest.raises(ExportConflict, match=r"was written by another export.*are left, delete"):
        source.export(None, table)
    assert delete_uncommitted([(tmp_path / "none").as_uri()]) == ""


@pytest.mark.parametrize("name", list(TARGETS))
def test_offsets_without_a_row_are_exported_once(tmp_path, name):
    """There is no file to commit, and the offsets count all the same."""
    source = Source(tmp_path)
    source.grow(50)
    target = TARGETS[name](tmp_path)
    source.export(None, target.table())
    source.cluster.add_segment("t", [end_marker(50, 7, is_commit=True)])
    done = source.export(None, target.table())
    assert (done.row_count, done.file_count, len(done.ranges)) == (0, 0, 1)
    assert source.export(None, target.table()).ranges == ()
    source.ends[0] += 1
    source.grow(10)
    assert source.export(None, target.table()).row_count == 10
    target.close()

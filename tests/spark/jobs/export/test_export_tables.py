"""Exports to Iceberg and Delta: one suite, since both must keep the same promises."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from tidelog_spark.jobs.formats.delta_table import DeltaLakeTable
from tidelog_spark.jobs.formats.iceberg_table import SUMMARY_OFFSETS, IcebergTable, open_catalog
from tidelog_spark.jobs.tables.export_table import (
    ExportConflict,
    ExportTable,
    SchemaConflict,
    TimePartitions,
)
from tidelog_spark.jobs.values.decoding import DecoderSpec

from tests.spark.jobs.exported import FIRST_MS, STEP_MS, Source

PROPERTIES = {"n": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}}


def decoder(**properties: object) -> DecoderSpec:
    schema = {"type": "object", "properties": {**PROPERTIES, **properties}}
    return DecoderSpec(format="json", schema=json.dumps(schema).encode())


def value_of(offset: int) -> bytes:
    return json.dumps({"n": offset, "tags": ["a", str(offset)], "x": offset / 4}).encode()


class ExportTableContract(ABC):
    """What every table does that is exported to."""

    @abstractmethod
    def table(self, folder: Path, partitions: TimePartitions) -> ExportTable:
        """Return the table in the folder, opened anew."""

    @abstractmethod
    def rows(self, folder: Path) -> pa.Table:
        """Return what any reader of the format sees."""

    @abstractmethod
    def maintain(self, folder: Path) -> None:
        """Commit something to the table that is no export."""

    def run(self, spark, folder: Path, source: Source, **given: object):
        partitions = given.setdefault("partitions", TimePartitions.DAY)
        return source.export(spark, self.table(folder, partitions), **given)

    def seen(self, folder: Path) -> list[tuple[int, int]]:
        table = self.rows(folder).select(["kafka_partition", "kafka_offset"])
        return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def test_each_record_is_there_once_however_often_it_is_exported(self, spark, tmp_path):
        source = Source(tmp_path, value_of)
        source.grow(150)
        source.grow(50, partition=1)
        assert self.run(spark, tmp_path, source, decoder=decoder()).row_count == 200
        assert self.run(spark, tmp_path, source, decoder=decoder()).row_count == 0
        source.grow(60)
        assert self.run(spark, tmp_path, source, decoder=decoder()).row_count == 60
        assert self.seen(tmp_path) == source.all()
        rows = self.rows(tmp_path).sort_by("kafka_offset").to_pylist()
        for row in rows:
            assert (row["n"], row["tags"]) == (row["kafka_offset"], ["a", str(row["n"])])
            assert row["kafka_timestamp"].timestamp() * 1000 == FIRST_MS + row["n"] * STEP_MS

    @pytest.mark.parametrize("is_committed", [False, True])
    def test_a_run_that_breaks_off_at_its_commit_is_there_whole_or_not_at_all(
        self, spark, tmp_path, is_committed
    ):
        source = Source(tmp_path)
        source.grow(50)
        self.run(spark, tmp_path, source)
        source.grow(50)
        table = self.table(tmp_path, TimePartitions.DAY)

        def commit(*arguments, **named):
            if is_committed:
                type(table).commit(table, *arguments, **named)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            source.export(spark, _With(table, commit))
        assert len(self.seen(tmp_path)) == (100 if is_committed else 50)
        self.run(spark, tmp_path, source)
        assert self.seen(tmp_path) == source.all()

    def test_of_two_exports_at_once_one_commits_and_the_other_leaves_nothing(self, spark, tmp_path):
        source = Source(tmp_path)
        source.grow(50)
        self.run(spark, tmp_path, source)
        source.grow(50)
        table = self.table(tmp_path, TimePartitions.DAY)

        def commit(*arguments, **named):
            self.run(spark, tmp_path, source)
            table.commit(*arguments, **named)

        with pytest.raises(ExportConflict):
            source.export(spark, _With(table, commit))
        assert self.seen(tmp_path) == source.all()
        self.run(spark, tmp_path, source)
        assert self.seen(tmp_path) == source.all()

    def test_commits_that_are_no_exports_are_no_conflict(self, spark, tmp_path):
        source = Source(tmp_path)
        source.grow(50)
        self.run(spark, tmp_path, source)
        source.grow(50)
        table = self.table(tmp_path, TimePartitions.DAY)

        def commit(*arguments, **named):
            self.maintain(tmp_path)
            table.commit(*arguments, **named)

        source.export(spark, _With(table, commit))
        assert self.seen(tmp_path) == source.all()

    def test_columns_may_be_added_and_no_other_change_is_made(self, spark, tmp_path):
        source = Source(tmp_path, value_of)
        source.grow(50)
        self.run(spark, tmp_path, source, decoder=decoder())
        source.grow(50)
        self.run(spark, tmp_path, source, decoder=decoder(x={"type": "number"}))
        rows = self.rows(tmp_path).sort_by("kafka_offset")
        assert rows.column("x").to_pylist() == [None] * 50 + [n / 4 for n in range(50, 100)]
        source.grow(50)
        # What is no longer asked for stays, and is null.
        self.run(spark, tmp_path, source, decoder=decoder())
        assert self.rows(tmp_path).column("x").null_count == 100
        with pytest.raises(SchemaConflict, match="column 'x' is double in the table and string"):
            self.run(spark, tmp_path, source, decoder=decoder(x={"type": "string"}))

    def test_another_partitioning_is_refused(self, spark, tmp_path):
        source = Source(tmp_path)
        source.grow(50)
        self.run(spark, tmp_path, source)
        with pytest.raises(SchemaConflict, match="partitioned by"):
            self.run(spark, tmp_path, source, partitions=TimePartitions.HOUR)
        self.run(spark, tmp_path / "none", source, partitions=TimePartitions.NONE)
        assert self.seen(tmp_path / "none") == source.all()


class _With:
    """A table with another commit: what happens at that moment is what is tested."""

    def __init__(self, table: ExportTable, commit: Callable[..., None]) -> None:
        self._table = table
        self.commit = commit

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)


class TestDelta(ExportTableContract):
    def table(self, folder: Path, partitions: TimePartitions) -> ExportTable:
        return DeltaLakeTable(self.url(folder), partitions)

    def url(self, folder: Path) -> str:
        return (folder / "delta").as_uri()

    def rows(self, folder: Path) -> pa.Table:
        return DeltaTable(self.url(folder)).to_pyarrow_table()

    def maintain(self, folder: Path) -> None:
        before = DeltaTable(self.url(folder)).version()
        DeltaTable(self.url(folder)).optimize.compact()
        DeltaTable(self.url(folder)).alter.set_table_properties({"delta.checkpointInterval": "50"})
        assert DeltaTable(self.url(folder)).version() > before

    def test_offsets_outlive_the_log_that_they_were_written_to(self, spark, tmp_path):
        source = Source(tmp_path)
        source.grow(50)
        self.run(spark, tmp_path, source)
        table = DeltaTable(self.url(tmp_path))
        table.create_checkpoint()
        for file in (tmp_path / "delta" / "_delta_log").glob("*0.json"):
            file.unlink()
        source.grow(50)
        self.run(spark, tmp_path, source)
        assert self.seen(tmp_path) == source.all()

    def test_records_are_apart_by_hour(self, spark, tmp_path):
        source = Source(tmp_path)
        source.grow(150)
        self.run(spark, tmp_path, source, partitions=TimePartitions.HOUR)
        hours = (
            self.rows(tmp_path)
            .group_by(["kafka_date", "kafka_hour"])
            .aggregate([([], "count_all")])
        )
        assert sorted(hours.column("count_all").to_pylist()) == [30, 60, 60]


class TestIceberg(ExportTableContract):
    @pytest.fixture(autouse=True)
    def catalogs(self) -> Iterator[None]:
        self.opened: dict[Path, Catalog] = {}
        yield
        for catalog in self.opened.values():
            catalog.close()

    def catalog(self, folder: Path) -> Catalog:
        if folder not in self.opened:
            folder.mkdir(exist_ok=True)
            self.opened[folder] = open_catalog(
                {
                    "type": "sql",
                    "uri": f"sqlite:///{folder / 'catalog.db'}",
                    "warehouse": (folder / "warehouse").as_uri(),
                }
            )
        return self.opened[folder]

    def table(self, folder: Path, partitions: TimePartitions) -> ExportTable:
        return IcebergTable(self.catalog(folder), "lake.t", partitions)

    def rows(self, folder: Path) -> pa.Table:
        return self.catalog(folder).load_table("lake.t").scan().to_arrow()

    def maintain(self, folder: Path) -> None:
        self.catalog(folder).load_table("lake.t").append(self.rows(folder).slice(0, 0))

    def test_the_history_tells_the_offsets_and_expiring_it_forgets_none(self, spark, tmp_path):
        source = Source(tmp_path)
        source.grow(50)
        self.run(spark, tmp_path, source)
        table = self.catalog(tmp_path).load_table("lake.t")
        summary = table.current_snapshot().summary
        assert json.loads(summary[SUMMARY_OFFSETS]) == {f"{source.topic.topic_id}-0": 50}
        self.maintain(tmp_path)
        first = table.current_snapshot().snapshot_id
        table = self.catalog(tmp_path).load_table("lake.t")
        table.maintenance.expire_snapshots().by_id(first).commit()
        source.grow(50)
        self.run(spark, tmp_path, source)
        assert self.seen(tmp_path) == source.all()

    def test_readers_prune_by_the_hidden_day(self, spark, tmp_path):
        source = Source(tmp_path)
        source.grow(3000)
        self.run(spark, tmp_path, source)
        table = self.catalog(tmp_path).load_table("lake.t")
        whole = list(table.scan().plan_files())
        assert len(whole) == 3
        day = table.scan(row_filter="kafka_timestamp >= '2023-11-17T00:00:00+00:00'")
        assert len(list(day.plan_files())) == 1
        assert day.to_arrow().num_rows == 3000 - 2 * 24 * 60

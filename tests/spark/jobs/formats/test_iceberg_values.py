"""``tidelog job iceberg --value-format``: columns by schemas, and tables that follow these."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from tidelog_core.schemas.model import Schema, SchemaType
from tidelog_spark.jobs.export.exporting import export
from tidelog_spark.jobs.formats.iceberg_table import IcebergTable, open_catalog
from tidelog_spark.jobs.tables.columns import fitted, merged_schema
from tidelog_spark.jobs.tables.export_table import ColumnConflict, TimePartitions
from tidelog_spark.jobs.task_runner import LocalTasks

from tests.spark.jobs.exported import Source
from tests.spark.jobs.registered import Registry, any_level, avro, written
from tests.support.command import called

LINE_1 = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "int"}]}
LINE_2 = {
    "type": "record",
    "name": "Line",
    "fields": [
        {"name": "sku", "type": "long"},
        {"name": "price", "type": ["null", "float"], "default": None},
    ],
}
V1 = avro(("id", "int"), ("lines", {"type": "array", "items": LINE_1}))
V2 = avro(
    ("id", "long"), ("lines", {"type": "array", "items": LINE_2}), ("note", ["null", "string"])
)
TEXT = avro(("id", "string"))
PROPERTIES = {"type": "object", "properties": {"id": {"type": "integer"}}}


class Lake:
    """A topic, its registry, and a catalog of SQLite."""

    def __init__(self, folder: Path) -> None:
        self.values: list[bytes | None] = []
        self.source = Source(folder, lambda offset: self.values[offset])
        self.registry = Registry(self.source, folder)
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder / 'catalog.db'}",
            "warehouse": (folder / "warehouse").as_uri(),
        }
        self.catalog: Catalog = open_catalog(self.properties)

    def append(self, *values: bytes | None) -> None:
        """Tier a segment with these values."""
        self.values += values
        self.source.grow(len(values))

    def run(self, *more: str, status: int = 0) -> Any:
        stores = [f"--{name}={url}" for name, url in self.source.cluster.options.items()]
        catalog = [f"--catalog={name}={value}" for name, value in self.properties.items()]
        asked = ["job", "iceberg", "t", *stores, "--table=lake.t", *catalog]
        return called(*asked, *more, status=status)

    def rows(self, *names: str) -> list[dict[str, Any]]:
        table = self.catalog.load_table("lake.t").scan().to_arrow().sort_by("kafka_offset")
        return table.select(list(names)).to_pylist()


@pytest.fixture
def lake(tmp_path: Path) -> Any:
    found = Lake(tmp_path)
    yield found
    found.catalog.close()


def test_the_table_follows_the_latest_version_of_its_subject(lake: Lake) -> None:
    """Columns and fields of structs in lists are added, and numbers become wider."""
    lake.registry.do(("t-value", V1))
    lake.append(written(1, V1, {"id": 1, "lines": [{"sku": 5}, {"sku": 6}]}), None)
    told = lake.run("--value-format", "registry")
    assert told.lines == ["2 rows appended in 1 files"]
    old = [{"sku": 5}, {"sku": 6}]
    # pyiceberg reads a list that is null as an empty one.
    assert lake.rows("id", "lines") == [{"id": 1, "lines": old}, {"id": None, "lines": []}]
    lake.registry.do(any_level, ("t-value", V2))
    new = {"sku": 2**40, "price": 1.5}
    lake.append(
        written(2, V2, {"id": 2**40, "lines": [new], "note": "x"}),
        written(1, V1, {"id": 3, "lines": []}),
    )
    assert lake.run("--value-format", "registry").lines == ["2 rows appended in 1 files"]
    assert lake.rows("id", "lines", "note") == [
        {"id": 1, "lines": [{**one, "price": None} for one in old], "note": None},
        {"id": None, "lines": [], "note": None},
        {"id": 2**40, "lines": [new], "note": "x"},
        {"id": 3, "lines": [], "note": None},
    ]
    # By an older schema: what the table has wider stays so.
    lake.append(written(1, V1, {"id": 4, "lines": [{"sku": 7}]}))
    lake.run("--value-format", "registry", "--schema-version", "1")
    assert lake.rows("id", "lines", "note")[-1] == {
        "id": 4, "lines": [{"sku": 7, "price": None}], "note": None
    }  # fmt: skip


def test_a_type_that_the_column_cannot_take_is_told_with_schema_and_offset(lake: Lake) -> None:
    lake.registry.do(("t-value", V1))
    lake.append(written(1, V1, {"id": 1, "lines": []}))
    lake.run("--value-format", "registry")
    lake.registry.do(any_level, ("t-value", TEXT))
    lake.append(written(2, TEXT, {"id": "a"}))
    told = lake.run("--value-format", "registry", status=1)
    assert "column 'id' is int32 in the table and string in the export" in told.errors
    assert "schema 2 (version 2 of t-value)" in told.errors
    assert "not exported from offset 1 of t-0 on" in told.errors
    # And with every, it ends: no later run can succeed by itself.
    assert lake.run("--value-format=registry", "--every=1s", status=1).errors == told.errors
    assert len(lake.rows("id")) == 1
    good = written(1, V1, {"id": 2, "lines": []})
    lake.append(good)
    told = lake.run("--value-format=registry", "--schema-version=1", status=1)
    assert re.search(r"the value at offset 1 of t-0: .*schema 2\b", told.errors)
    lake.run("--value-format=registry", "--schema-version=1", "--bad-records=column")
    assert lake.rows("id", "kafka_error")[0] == {"id": 1, "kafka_error": None}
    kept, last = lake.rows("id", "kafka_value", "kafka_error")[1:]
    assert (kept["kafka_value"], "2" in kept["kafka_error"], last["id"]) == (
        lake.values[1], True, 2
    )  # fmt: skip


def test_a_schema_that_comes_with_the_last_records_gives_their_columns(lake: Lake) -> None:
    """It was registered after the request was made, and before the end of the log was read."""
    lake.registry.do(("t-value", V1))
    lake.append(written(1, V1, {"id": 1, "lines": []}))
    request = lake.source.request(decoder=lake.registry.spec())
    lake.registry.do(any_level, ("t-value", V2))
    lake.append(written(2, V2, {"id": 2, "lines": [], "note": "not lost"}))
    table = IcebergTable(lake.catalog, "lake.t", TimePartitions.DAY)
    assert export(LocalTasks(), request, table).row_count == 2
    assert [one["note"] for one in lake.rows("note")] == [None, "not lost"]


def test_json_and_avro_files_give_the_columns_too(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "json").write_text(json.dumps(PROPERTIES))
    lake.append(b'{"id": 7}')
    lake.run("--value-format=json", f"--schema={tmp_path / 'json'}")
    assert lake.rows("id") == [{"id": 7}]
    told = lake.run("--value-format=avro", status=2)
    assert "--value-format avro needs --schema" in told.errors
    lake.registry.do(("t-value", Schema(SchemaType.JSON, json.dumps(PROPERTIES))))
    lake.append(b"\0\0\0\0\1" + b'{"id": 8}')
    lake.run("--value-format=registry")
    assert lake.rows("id") == [{"id": 7}, {"id": 8}]


STRUCT = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.float32())])))])
GROWN = pa.struct(
    [
        ("a", pa.int64()),
        ("b", pa.list_(pa.struct([("c", pa.float64()), ("d", pa.string())]))),
        ("e", pa.bool_()),
    ]
)


@pytest.mark.parametrize(
    ("table", "exported", "merged"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (STRUCT, GROWN, GROWN),
        (GROWN, STRUCT, GROWN),
        (pa.int64(), pa.float64(), None),
        (pa.int64(), pa.string(), None),
        (STRUCT, pa.struct([("a", pa.string())]), None),
        (pa.list_(pa.int64()), pa.list_(pa.string()), None),
        (pa.list_(pa.int64()), pa.int64(), None),
        (STRUCT, pa.int64(), None),
    ],
    ids=[
        "long",
        "int",
        "double",
        "grown",
        "shrunk",
        "whole",
        "text",
        "field",
        "items",
        "list",
        "struct",
    ],
)
def test_a_column_takes_the_types_that_iceberg_can_change_it_to(
    table: pa.DataType, exported: pa.DataType, merged: pa.DataType | None
) -> None:
    of, wanted = pa.schema([("x", table)]), pa.schema([("x", exported)])
    if merged is None:
        with pytest.raises(ColumnConflict, match="column 'x' is"):
            merged_schema(of, wanted, evolves=True)
        return
    assert merged_schema(of, wanted, evolves=True).field("x").type == merged
    if exported != table:
        with pytest.raises(ColumnConflict):
            merged_schema(of, wanted)


def test_values_fit_the_wider_columns_also_within_a_slice() -> None:
    values = [
        {"a": 9, "b": [{"c": 9.5}]},
        None,
        {"a": None, "b": None},
        {"a": 1, "b": [{"c": 0.5}, None, {"c": None}]},
        {"a": 2, "b": []},
    ]
    column = pa.array(values, STRUCT).slice(1)
    assert fitted(column, GROWN).to_pylist() == [
        None,
        {"a": None, "b": None, "e": None},
        {"a": 1, "b": [{"c": 0.5, "d": None}, None, {"c": None, "d": None}], "e": None},
        {"a": 2, "b": [], "e": None},
    ]
    assert fitted(column, GROWN).type == GROWN

"""Tables that would be among the segments, or have names that differ in case only."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tidelog_core.errors import InvalidConfig
from tidelog_spark.jobs.formats.delta_table import DeltaLakeTable
from tidelog_spark.jobs.formats.iceberg_table import IcebergTable, open_catalog
from tidelog_spark.jobs.formats.parquet_table import ParquetTable
from tidelog_spark.jobs.tables.columns import merged_schema, require_distinct
from tidelog_spark.jobs.tables.export_table import (
    ColumnConflict,
    ExportTable,
    SchemaConflict,
    TimePartitions,
)
from tidelog_spark.jobs.tables.table_places import (
    catalog_url,
    check_location,
    encoded_locations,
    filesystem_of,
    plain_url,
    table_url,
)

from tests.spark.jobs.exported import Source
from tests.support.command import called

AMONG = {
    "same": ("s3://log/tidelog", "s3://log/tidelog/"),
    "below": ("s3a://log/tidelog/lake/t", "s3://log/tidelog"),
    "above": ("s3://log/lake", "s3://log/lake/tidelog"),
    "whole bucket": ("s3://log/lake", "s3://log"),
    "folder": ("file:///data/objects/lake", "file:///data/objects"),
    "path": ("/data/objects/x/../lake", "file:///data/objects"),
    "one slash": ("file:/data/objects/lake", "file:///data/objects"),
    "encoded": ("file:///da%74a/objects/lake", "file:///data/objects"),
}
APART = {
    "beside": ("s3://log/tidelog-lake", "s3://log/tidelog"),
    "bucket": ("s3://lake/tidelog", "s3://log/tidelog"),
    "scheme": ("gs://log/tidelog", "s3://log/tidelog"),
    "folder": ("file:///data/lake", "file:///data/objects"),
    "memory": ("file:///data/lake", "memory:"),
}


@pytest.mark.parametrize("name", AMONG)
def test_a_table_among_the_segments_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match="among the segments"):
        check_location(*AMONG[name])


@pytest.mark.parametrize("name", APART)
def test_a_table_that_is_apart_from_the_segments_is_not(name: str) -> None:
    check_location(*APART[name])


UNCLEAR = {
    "encoded": ("s3://lake/a%20b", "'%'"),
    "percent": ("s3a://lake/a%25b/t", "'%'"),
    "query": ("s3://lake/a?b", "'?'"),
    "fragment": ("s3://lake/a#b", "'#'"),
    "backslash": ("s3://lake/a\\b", r"'\\\\'"),
    "bracket": ("s3://lake/a[b", r"'\['"),
    "line": ("s3://lake/a\nb", r"'\\n'"),
    "empty folder": ("s3://lake//a", "the folder ''"),
    "dots": ("s3://lake/a/../b", r"the folder '\.\.'"),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_a_place_in_s3_that_programs_read_differently_is_refused(name: str) -> None:
    location, reason = UNCLEAR[name]
    with pytest.raises(InvalidConfig, match=f"it has .*{reason}.*give a location without % "):
        check_location(location, None)
    with pytest.raises(InvalidConfig, match="give a location without % "):
        ParquetTable(location).prepare(pa.schema([]))


def test_the_refusal_says_where_an_earlier_version_has_put_the_table() -> None:
    with pytest.raises(InvalidConfig, match="files of such a table below s3://lake/a b/t, and its"):
        check_location("s3://lake/a%20b/t", None)
    for option in ("region=eu-west-1", "endpoint_override=localhost:9000"):
        told = "a Delta table at s3://lake/a b/t: .*, as AWS_ENDPOINT_URL and AWS_REGION$"
        with pytest.raises(InvalidConfig, match=told):
            check_location(f"s3://lake/a%20b/t?{option}", None)
    with pytest.raises(InvalidConfig, match=r"or '\.\.'$"):
        check_location("s3://lake/100%", None)


def test_a_table_may_have_its_state_at_the_locations_that_are_decoded_to_its_own() -> None:
    assert encoded_locations("s3a://lake/a b/t+u=1") == ["s3://lake/a%20b/t+u=1"]
    assert encoded_locations("s3://lake/ü b") == ["s3://lake/%C3%BC%20b", "s3://lake/ü%20b"]
    for place in ("s3://lake/t", "file:///lake/a b", "/lake/a b"):
        assert encoded_locations(place) == []


def test_the_export_refuses_it_before_spark_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = Source(tmp_path)
    source.grow(10)
    stores = [f"--{name}={url}" for name, url in source.cluster.options.items()]
    called("job", "export", "t", *stores, "--to", "s3://lake/a%20b", status=2)
    errors = capfd.readouterr().err  # of the job's own process
    assert errors.count("\n") == 1
    assert "give a location without %" in errors


def test_places_in_s3_and_on_this_machine_may_have_other_characters(tmp_path: Path) -> None:
    for location in ("s3://lake/a b/ü+&=@:,;~'(x)!$*", (tmp_path / "a%b#c").as_uri()):
        check_location(location, "s3://log/tidelog")


def test_a_folder_of_a_catalog_is_not_decoded(tmp_path: Path) -> None:
    assert catalog_url("file:///lake/a%20b c") == "file:///lake/a%2520b%20c"
    assert catalog_url("s3a://lake/a b") == "s3a://lake/a b"
    (tmp_path / "objects%20 x").mkdir()
    with pytest.raises(InvalidConfig, match="among the segments"):
        check_location(f"{tmp_path}/objects%20 x/t", (tmp_path / "objects%20 x").as_uri())


@pytest.mark.parametrize("folder", ["my lake", "a%20b", "ü+&"])
def test_an_iceberg_table_is_in_the_folder_that_its_catalog_says(
    tmp_path: Path, folder: str
) -> None:
    """In the documentation it is below ``file://$PWD``."""
    source = Source(tmp_path)
    source.grow(10)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path / 'catalog.db'}",
        "warehouse": f"file://{tmp_path}/{folder}",
    }
    catalog = open_catalog(properties)
    for count in (10, 15):
        source.export(None, IcebergTable(catalog, "lake.t", TimePartitions.DAY))
        assert catalog.load_table("lake.t").scan().to_arrow().num_rows == count
        source.grow(5)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} >= {folder}
    catalog.close()


def test_a_link_into_the_segments_is_followed(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    (tmp_path / "lake").symlink_to(tmp_path / "objects")
    with pytest.raises(InvalidConfig, match="among the segments"):
        check_location((tmp_path / "lake" / "t").as_uri(), (tmp_path / "objects").as_uri())


def test_a_relative_location_is_refused() -> None:
    for location in ("lake/t", "t"):
        with pytest.raises(InvalidConfig, match="no URL: give one"):
            check_location(location, None)
    check_location("/lake/t", None)


def test_a_path_of_this_machine_becomes_a_url(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert table_url("lake/t") == (tmp_path / "lake" / "t").as_uri()
    assert table_url("/lake/t") == "file:///lake/t"
    for url in ("s3://lake/t", "file:///lake/t"):
        assert table_url(url) == url


def test_an_empty_place_is_not_the_folder_of_the_command() -> None:
    """A shell makes it of a variable that is not set."""
    with pytest.raises(InvalidConfig, match="no URL: give one"):
        check_location(table_url(""), None)


def test_hadoops_names_of_s3_are_s3() -> None:
    for url in ("s3a://lake/a://b", "s3n://lake/a://b", "s3://lake/a://b"):
        assert plain_url(url) == "s3://lake/a://b"
    assert plain_url("/lake/s3a:/t") == "/lake/s3a:/t"


def test_a_scheme_without_a_file_system_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="cannot be at ftp://lake/t"):
        filesystem_of("ftp://lake/t")


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_table_in_a_store_that_nobody_knows_is_refused(tmp_path: Path, table_format: str) -> None:
    source = Source(tmp_path)
    source.grow(10)
    url = "ftp://lake/t"
    table: ExportTable = ParquetTable(url)
    if table_format == "delta":
        table = DeltaLakeTable(url, TimePartitions.DAY)
    with pytest.raises(InvalidConfig, match=f"{url}.* s3://bucket/"):
        source.export(None, table)


def test_a_delta_table_is_in_no_folder_that_has_a_percent_sign(tmp_path: Path) -> None:
    """Its log would be in another folder than its files, even in that of another table."""
    source = Source(tmp_path)
    source.grow(10)
    other = table_url(str(tmp_path / "a b"))
    source.export(None, DeltaLakeTable(other, TimePartitions.DAY))
    with pytest.raises(InvalidConfig, match="has a %"):
        source.export(None, DeltaLakeTable(table_url(str(tmp_path / "a%20b")), TimePartitions.DAY))
    assert DeltaTable(other).version() == 1
    assert not (tmp_path / "a%20b").exists()


def test_no_format_makes_a_table_among_the_segments(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.grow(10)
    inside = f"{source.cluster.options['objects']}/lake"
    folder = Path(inside.removeprefix("file://"))
    tables: list[ExportTable] = [
        ParquetTable(inside), DeltaLakeTable(inside, TimePartitions.DAY)
    ]  # fmt: skip
    for table in tables:
        with pytest.raises(InvalidConfig, match="among the segments"):
            source.export(None, table)
        assert not folder.exists()


def test_the_job_refuses_a_warehouse_among_the_segments(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.grow(10)
    options = source.cluster.options
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path / 'catalog.db'}",
        "warehouse": f"{options['objects']}/lake",
    }
    asked = ["job", "iceberg", "t", "--table", "lake.t"]
    asked += [f"--{name}={url}" for name, url in options.items()]
    asked += [f"--catalog={name}={value}" for name, value in properties.items()]
    told = called(*asked, status=2)
    assert "among the segments" in told.errors
    assert "give it a location that is apart" in told.errors
    catalog = open_catalog(properties)
    assert not catalog.table_exists("lake.t")
    # One that was made there by something else is refused, too.
    schema = pa.schema([("kafka_offset", pa.int64())])
    IcebergTable(catalog, "lake.t", TimePartitions.NONE).prepare(schema)
    told = called(*asked, "--partition-by", "none", status=2)
    assert "among the segments" in told.errors
    assert catalog.load_table("lake.t").schema().column_names == ["kafka_offset"]
    catalog.close()


@pytest.mark.parametrize(
    ("table", "warehouse", "reason"),
    [
        ("lake.t", None, "may need the property warehouse"),
        ("lake.t", "lake", "no URL: give one"),
        ("t", "file:///lake", "must be NAMESPACE.NAME"),
    ],
    ids=["no warehouse", "relative warehouse", "no namespace"],
)
def test_the_job_says_in_one_line_what_a_table_lacks(
    tmp_path: Path, table: str, warehouse: str | None, reason: str
) -> None:
    source = Source(tmp_path)
    source.grow(10)
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.db'}"}
    if warehouse is not None:
        properties["warehouse"] = warehouse
    asked = ["job", "iceberg", "t", "--table", table]
    asked += [f"--{name}={url}" for name, url in source.cluster.options.items()]
    asked += [f"--catalog={name}={value}" for name, value in properties.items()]
    told = called(*asked, status=2)
    assert told.errors.count("\n") == 1
    assert reason in told.errors
    catalog = open_catalog(properties)
    assert not catalog.table_exists("lake.t")
    catalog.close()


STRUCT = pa.struct([("id", pa.int64())])
BOTH = pa.struct([("id", pa.int64()), ("ID", pa.int64())])


@pytest.mark.parametrize("evolves", [True, False])
def test_a_new_column_that_differs_in_case_only_is_refused(evolves: bool) -> None:
    table = pa.schema([("kafka_key", pa.binary()), ("name", pa.string())])
    wanted = pa.schema([("kafka_key", pa.binary()), ("Name", pa.string())])
    with pytest.raises(ColumnConflict, match="columns 'name' and 'Name' differ in case only"):
        merged_schema(table, wanted, evolves=evolves)


def test_names_within_structs_differ_by_more_than_their_case() -> None:
    def lists(of: pa.DataType) -> pa.Schema:
        return pa.schema([("xs", pa.list_(pa.list_(of)))])

    with pytest.raises(ColumnConflict, match=r"'xs\.id' and 'xs\.ID' differ in case only"):
        merged_schema(lists(STRUCT), lists(BOTH), evolves=True)
    with pytest.raises(SchemaConflict, match=r"'xs\.id' and 'xs\.ID' differ in case only"):
        require_distinct(lists(BOTH))
    with pytest.raises(ColumnConflict, match=r"'x\.id' and 'x\.ID'"):
        merged_schema(pa.schema([]), pa.schema([("x", BOTH)]))
    require_distinct(lists(STRUCT))


def test_a_table_that_has_both_names_already_goes_on() -> None:
    table = pa.schema([("name", pa.string()), ("Name", pa.string()), ("x", BOTH)])
    wanted = pa.schema([("Name", pa.string()), ("x", BOTH), ("more", pa.int64())])
    assert merged_schema(table, wanted, evolves=True).names == ["name", "Name", "x", "more"]


@pytest.mark.parametrize("format_", ["parquet", "delta", "iceberg"])
def test_no_format_makes_a_table_with_names_that_differ_in_case_only(
    tmp_path: Path, format_: str
) -> None:
    wanted = pa.schema([("x", BOTH)])
    location = (tmp_path / "lake").as_uri()
    if format_ == "iceberg":
        properties = {
            "type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.db'}", "warehouse": location
        }  # fmt: skip
        catalog = open_catalog(properties)
        with pytest.raises(SchemaConflict, match=r"'x\.id' and 'x\.ID'"):
            IcebergTable(catalog, "lake.t", TimePartitions.NONE).prepare(wanted)
        assert not catalog.table_exists("lake.t")
        catalog.close()
        return
    table = (
        ParquetTable(location)
        if format_ == "parquet"
        else DeltaLakeTable(location, TimePartitions.NONE)
    )
    with pytest.raises(SchemaConflict, match=r"'x\.id' and 'x\.ID'"):
        table.prepare(wanted)
    assert not DeltaTable.is_deltatable(location)

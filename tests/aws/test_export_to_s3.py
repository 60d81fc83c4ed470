"""Exports into a bucket: files, then the commit that makes them count, in every format.

Without Spark: what tasks write and what the driver commits are called here in one process.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow import fs
from pyiceberg.catalog import Catalog
from tidelog_core.errors import InvalidConfig
from tidelog_core.objects.location import opened_object_store
from tidelog_core.objects.store import ObjectStore
from tidelog_spark.jobs.erasure.erasing import EraseRequest, apply_erasures
from tidelog_spark.jobs.erasure.erasure_receipts import ReplacedFile, TableReceipt, put_receipt
from tidelog_spark.jobs.formats.delta_table import DeltaLakeTable
from tidelog_spark.jobs.formats.iceberg_table import IcebergTable, open_catalog
from tidelog_spark.jobs.formats.parquet_table import ParquetTable
from tidelog_spark.jobs.parquet_table import committed_files
from tidelog_spark.jobs.tables import table_lease
from tidelog_spark.jobs.tables.erasable_table import ErasableTable
from tidelog_spark.jobs.tables.erased_rows import Replacement
from tidelog_spark.jobs.tables.export_table import (
    ExportConflict,
    ExportTable,
    TableBusy,
    TimePartitions,
)
from tidelog_spark.jobs.tables.parquet_files import ParquetFiles
from tidelog_spark.jobs.tables.table_access import TableAccessDenied
from tidelog_spark.jobs.tables.table_lease import TableLease, read_lease
from tidelog_spark.jobs.tables.table_state import with_state
from tidelog_spark.jobs.task_runner import LocalTasks

from tests.aws.buckets import make_bucket
from tests.support.store_proxy import StoreBehaviour
from tests.support.store_proxy_process import StoreProxyProcess

BUCKET = "tidelog-exports"
SCHEMA = pa.schema([("kafka_offset", pa.int64()), ("kafka_timestamp", pa.timestamp("us", "UTC"))])
HOUR_US = 3_600_000_000


@pytest.fixture
def location(
    ministack_endpoint: str, aws_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A folder of a bucket, which clients of AWS find by the environment."""
    make_bucket(ministack_endpoint, BUCKET)
    for name, value in {
        "AWS_ENDPOINT_URL": ministack_endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/nested"


@contextmanager
def catalog_of(tmp_path: Path, warehouse: str, endpoint: str) -> Iterator[Catalog]:
    """A catalog in a file, whose tables are in the bucket."""
    opened = open_catalog(
        {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": warehouse,
            # pyiceberg takes an endpoint from its own properties only.
            "s3.endpoint": endpoint,
            "s3.region": "us-east-1",
        }
    )
    try:
        yield opened
    finally:
        opened.close()


def tables_of_each_format(location: str, catalog: Catalog) -> list[ExportTable]:
    """Return a new table of each format in the location, ``lake.t`` of the catalog among them."""
    return [
        ParquetTable(f"{location}/parquet"),
        DeltaLakeTable(f"{location}/delta", TimePartitions.HOUR),
        IcebergTable(catalog, "lake.t", TimePartitions.HOUR),
    ]


def row_counts(location: str, catalog: Catalog) -> list[int]:
    """Return the rows that readers of these tables find, in the same order."""
    return [
        len(parquet_rows(f"{location}/parquet")),
        DeltaTable(f"{location}/delta").to_pyarrow_table().num_rows,
        catalog.load_table("lake.t").scan().to_arrow().num_rows,
    ]


def run(table: ExportTable, partitions: TimePartitions, start: int, end: int) -> None:
    """Export the offsets ``[start, end)``, an hour a record, of a partition named p."""
    write_and(table, partitions, start, end, table.commit)


def write_and(
    table: ExportTable,
    partitions: TimePartitions,
    start: int,
    end: int,
    commit: Callable[..., None],
) -> None:
    schema = table.prepare(SCHEMA)
    assert table.offsets(["p"]).get("p", 0) == start
    files = ParquetFiles(table.location, schema, partitions, prefix=f"run={uuid.uuid4()}/0")
    offsets = pa.array(range(start, end))
    times = pa.array([offset * HOUR_US for offset in range(start, end)]).cast(SCHEMA.field(1).type)
    files.write(pa.RecordBatch.from_arrays([offsets, times], schema=schema))
    files.close()
    commit(files.written, {"p": end}, run_id=str(uuid.uuid4()))


def parquet_rows(location: str) -> list[int]:
    """Return the offsets in the committed files, whose URLs are literal keys."""
    store, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}")
    found: list[int] = []
    for url in committed_files(location):
        table = pq.read_table(
            url.removeprefix("s3://"), filesystem=store, columns=["kafka_offset"], partitioning=None
        )
        found += table.column(0).to_pylist()
    return found


def check(
    opened: Callable[[], ExportTable], rows: Callable[[], list[int]], partitions: TimePartitions
) -> None:
    run(opened(), partitions, 0, 30)
    run(opened(), partitions, 30, 50)
    assert sorted(rows()) == list(range(50))
    late = opened()

    def overtaken(*arguments: object, **named: object) -> None:
        run(opened(), partitions, 50, 60)
        late.commit(*arguments, **named)  # type: ignore[arg-type]

    with pytest.raises(ExportConflict):
        write_and(late, partitions, 50, 60, overtaken)
    assert sorted(rows()) == list(range(60))


@pytest.mark.slow
def test_a_lease_in_a_bucket_keeps_others_out_until_it_is_over(location: str) -> None:
    url = f"{location}/_tidelog/lease.json"
    assert read_lease(url) is None
    with pytest.MonkeyPatch.context() as patch, TableLease() as first:
        patch.setattr(table_lease, "RENEW_SECONDS", 0.5)
        patch.setattr(table_lease, "_is_another_process", lambda _: True)
        assert first.take(location)
        with TableLease() as second, pytest.raises(TableBusy):
            second.take(location)
    found = read_lease(url)
    assert found is not None
    assert found.is_over


@pytest.mark.slow
def test_parquet_files_in_a_bucket_count_once_they_are_committed(location: str) -> None:
    check(lambda: ParquetTable(location), lambda: parquet_rows(location), TimePartitions.HOUR)


def test_a_delta_table_in_a_bucket_has_each_record_once(location: str) -> None:
    def rows() -> list[int]:
        return list(DeltaTable(location).to_pyarrow_table().column("kafka_offset").to_pylist())

    check(lambda: DeltaLakeTable(location, TimePartitions.DAY), rows, TimePartitions.DAY)


def test_an_iceberg_table_in_a_bucket_has_each_record_once(
    tmp_path: Path, location: str, ministack_endpoint: str
) -> None:
    with catalog_of(tmp_path, location, ministack_endpoint) as catalog:

        def rows() -> list[int]:
            table = catalog.load_table("lake.t").scan().to_arrow()
            return list(table.column("kafka_offset").to_pylist())

        check(lambda: IcebergTable(catalog, "lake.t", TimePartitions.DAY), rows, TimePartitions.DAY)


# Those with a % are refused (``tests/spark/jobs/tables/test_table_places.py``).
PREFIXES = ["a b", "a+b", "a=b&c", "ü日本", "a@b:c,d;e", "it's (here)!~$*"]


@pytest.mark.slow
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_table_is_at_the_keys_that_its_location_says(
    prefix: str, tmp_path: Path, location: str, ministack_endpoint: str
) -> None:
    location = f"{location}/{prefix}"
    with catalog_of(tmp_path, location, ministack_endpoint) as catalog:
        for table in tables_of_each_format(location, catalog):
            run(table, TimePartitions.HOUR, 0, 5)
            run(table, TimePartitions.HOUR, 5, 7)
            with TableLease() as lease:
                assert lease.take(table.location)
        assert row_counts(location, catalog) == [7, 7, 7]
    below = location.removeprefix(f"s3://{BUCKET}/")
    names = {key.removeprefix(f"{below}/").split("/")[0] for key in keys(ministack_endpoint, below)}
    assert names == {"parquet", "delta", "lake"}
    above = below.removesuffix(f"/{prefix}")
    assert {*keys(ministack_endpoint, above)} == {*keys(ministack_endpoint, below)}


@pytest.mark.parametrize("prefix", ["a%20b", "100%", "a%25b%2Fc", *PREFIXES])
def test_segments_are_at_the_keys_that_the_stores_url_says(
    prefix: str, location: str, ministack_endpoint: str
) -> None:
    """Only this program reads them, and it decodes nothing."""

    async def main() -> None:
        async with opened_object_store(f"{location}/{prefix}") as store:
            await store.put("topic/a.log", b"segment")
            await store.replace("topic/b.log", b"index")
            assert bytes(await store.get_range("topic/a.log", 1, 4)) == b"egm"
            assert [found.key async for found in store.list("topic/")] == [
                "topic/a.log",
                "topic/b.log",
            ]
            await store.delete(["topic/b.log"])

    asyncio.run(main())
    below = location.removeprefix(f"s3://{BUCKET}/")
    assert keys(ministack_endpoint, below) == [f"{below}/{prefix}/topic/a.log"]


@pytest.mark.parametrize("format_", ["parquet", "delta"])
def test_no_receipt_says_that_files_are_deleted_which_are_at_another_key(
    format_: str, tmp_path: Path, location: str, ministack_endpoint: str
) -> None:
    """Earlier versions put files at the keys that a location is decoded to, and receipts here."""

    def opened(url: str) -> ParquetTable | DeltaLakeTable:
        if format_ == "parquet":
            return ParquetTable(url)
        return DeltaLakeTable(url, TimePartitions.DAY)

    decoded, encoded = f"{location}/a b", f"{location}/a%20b"
    run(opened(decoded), TimePartitions.DAY, 0, 5)
    run_id = erase_all(opened(decoded))
    move_state(ministack_endpoint, decoded, encoded)
    (tmp_path / "metadata.db").touch()  # An empty store: of no topic is anything erased.
    metadata, objects = f"sqlite://{tmp_path}/metadata.db", tmp_path.as_uri()
    request = EraseRequest(metadata=metadata, objects=objects, topics=(), expires=True)
    with pytest.raises(InvalidConfig, match="a%20b: it has '%'"):
        apply_erasures(LocalTasks(), request, opened(encoded))
    assert not stored_receipt(encoded, run_id)["files_deleted_ms"]
    # The receipt is not looked for in vain either.
    with pytest.raises(InvalidConfig, match=f"below {encoded}/_tidelog: move that folder to"):
        apply_erasures(LocalTasks(), request, opened(decoded))
    # The move that the message asks for.
    move_state(ministack_endpoint, encoded, decoded)
    below = decoded.removeprefix(f"s3://{BUCKET}/")
    assert any(key.endswith(".parquet") for key in keys(ministack_endpoint, below))
    apply_erasures(LocalTasks(), request, opened(decoded))
    assert stored_receipt(decoded, run_id)["files_deleted_ms"]
    assert not any(key.endswith(".parquet") for key in keys(ministack_endpoint, below))


def test_a_parquet_table_whose_commits_an_earlier_version_left_elsewhere_is_not_begun_again(
    location: str, ministack_endpoint: str
) -> None:
    """It took the URL literally for them, and decoded it for the files."""
    place, earlier = f"{location}/a b", f"{location}/a%20b"
    run(ParquetTable(place), TimePartitions.DAY, 0, 5)
    move_state(ministack_endpoint, place, earlier)
    with pytest.raises(InvalidConfig, match=f"{earlier}/_tidelog: move that folder to {place}/_t"):
        ParquetTable(place).prepare(SCHEMA)
    move_state(ministack_endpoint, earlier, place)
    run(ParquetTable(place), TimePartitions.DAY, 5, 7)
    assert sorted(parquet_rows(place)) == list(range(7))


def test_a_delta_table_goes_on_at_the_place_that_the_refusal_of_options_names(
    location: str,
) -> None:
    """Earlier versions gave Arrow the options, and both it and delta-rs wrote to this place."""
    place = f"{location}/t"
    run(DeltaLakeTable(place, TimePartitions.DAY), TimePartitions.DAY, 0, 5)
    with pytest.raises(InvalidConfig, match="a Delta table at s3://") as raised:
        DeltaLakeTable(f"{place}?region=us-east-1", TimePartitions.DAY).prepare(SCHEMA)
    (named,) = re.findall("a Delta table at (.*?): to go on", str(raised.value))
    run(DeltaLakeTable(named, TimePartitions.DAY), TimePartitions.DAY, 5, 7)
    assert DeltaTable(place).to_pyarrow_table().num_rows == 7


def erase_all(table: ErasableTable) -> str:
    """Remove all files from the table's state as an erasure does; return the run's id."""
    assert table.open()
    run_id, files = str(uuid.uuid4()), table.files()
    table.replace([Replacement(one, None, 1) for one in files], run_id=run_id, recorded=())
    receipt = TableReceipt(
        run_id=run_id,
        table=table.location,
        started_ms=1,
        is_committed=True,
        erasures=(),
        replaced=tuple(ReplacedFile(one.path, None, 1) for one in files),
        reached_by=("versions before",),
    )
    with_state(table.location, lambda store: put_receipt(store, receipt))
    return run_id


def stored_receipt(location: str, run_id: str) -> dict[str, object]:
    """Return a table's receipt as it is in the bucket."""

    async def read(store: ObjectStore) -> dict[str, object]:
        return dict(json.loads(bytes(await store.get(f"erasures/{run_id}.json"))))

    return with_state(location, read)


def move_state(endpoint: str, source: str, target: str) -> None:
    """Move the state's folder of a table to another location."""
    prefix = f"s3://{BUCKET}/"
    before, after = (f"{one.removeprefix(prefix)}/_tidelog" for one in (source, target))
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    try:
        for key in keys(endpoint, before):
            body = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            client.put_object(Bucket=BUCKET, Key=after + key.removeprefix(before), Body=body)
            client.delete_object(Bucket=BUCKET, Key=key)
    finally:
        client.close()


def keys(endpoint: str, prefix: str) -> list[str]:
    """Return the keys in the bucket, as S3 has them."""
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    try:
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")
    finally:
        client.close()
    return [each["Key"] for each in found.get("Contents", [])]


@pytest.mark.slow
def test_a_table_is_where_a_catalog_of_hadoop_says(
    tmp_path: Path, location: str, ministack_endpoint: str
) -> None:
    """Its name of S3 is ``s3a``, which neither Arrow nor this program's own stores know."""
    hadoop = location.replace("s3://", "s3a://")
    with catalog_of(tmp_path, hadoop, ministack_endpoint) as catalog:
        for table in tables_of_each_format(hadoop, catalog):
            run(table, TimePartitions.HOUR, 0, 5)
            assert table.location.startswith("s3a://")
            with TableLease() as lease:
                assert lease.take(table.location)
        files = committed_files(f"{location}/parquet")
        assert len(committed_files(f"{hadoop}/parquet")) == len(files)
        assert row_counts(location, catalog) == [5, 5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_a_bucket_that_may_only_be_read_is_named_and_nothing_is_lost_by_it(
    table_format: str,
    location: str,
    tmp_path: Path,
    ministack_endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Writes are answered as S3 answers them without the permission, by a proxy before the store."""

    def table(endpoint: str) -> ExportTable:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        if table_format == "parquet":
            return ParquetTable(location)
        if table_format == "delta":
            return DeltaLakeTable(location, TimePartitions.DAY)
        catalog = catalogs.enter_context(catalog_of(tmp_path, location, endpoint))
        return IcebergTable(catalog, "lake.t", TimePartitions.DAY)

    with (
        StoreProxyProcess(ministack_endpoint, StoreBehaviour(is_read_only=True)) as proxy,
        ExitStack() as catalogs,
    ):
        for start in (0, 5):
            with pytest.raises(TableAccessDenied, match="s3:PutObject"):
                run(table(proxy.url), TimePartitions.DAY, start, start + 5)
            with pytest.raises(TableAccessDenied, match="s3:PutObject"):
                with_state(location, lambda store: store.replace("erasures/1.json", b"{}"))
            # ``run`` checks that the offsets of the table are those of the runs that succeeded.
            run(table(ministack_endpoint), TimePartitions.DAY, start, start + 5)
        run(table(ministack_endpoint), TimePartitions.DAY, 10, 11)
        assert proxy.counts()["denied"] >= 4

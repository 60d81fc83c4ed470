"""Erasures of a topic, and the three tables that follow them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol
from uuid import NAMESPACE_URL, UUID, uuid5

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from tidelog_core.erasure.receipt import ErasureReceipt, PartitionErasure
from tidelog_core.tier.keys import erasure_receipt_key
from tidelog_spark.jobs.erasure.erasing import EraseRequest, EraseResult, apply_erasures
from tidelog_spark.jobs.formats.delta_table import DeltaLakeTable
from tidelog_spark.jobs.formats.iceberg_erasing import IcebergErasing
from tidelog_spark.jobs.formats.iceberg_table import IcebergTable, open_catalog
from tidelog_spark.jobs.formats.parquet_table import ParquetTable
from tidelog_spark.jobs.parquet_table import committed_files
from tidelog_spark.jobs.tables.erasable_table import ErasableTable
from tidelog_spark.jobs.tables.export_table import ExportTable, TimePartitions
from tidelog_spark.jobs.task_runner import LocalTasks

from tests.spark.jobs.exported import Source
from tests.support.tiered_cluster import CLUSTER_ID

CUSTOMERS = 10


class Target(Protocol):
    """A table of one format in a folder."""

    def table(self) -> ExportTable: ...

    def erasable(self) -> ErasableTable: ...

    def rows(self) -> pa.Table:
        """Return what readers of the format see."""

    def history(self) -> int:
        """Return the number of rows that the oldest state has which can still be read."""

    def close(self) -> None: ...


class ParquetTarget:
    def __init__(self, folder: Path) -> None:
        self.url = (folder / "parquet").as_uri()

    def table(self) -> ExportTable:
        return ParquetTable(self.url)

    def erasable(self) -> ErasableTable:
        return ParquetTable(self.url)

    def rows(self) -> pa.Table:
        paths = [one.removeprefix("file://") for one in committed_files(self.url)]
        return pa.concat_tables(pq.read_table(path, partitioning=None) for path in paths)

    def history(self) -> int:
        path = Path(self.url.removeprefix("file://"))
        return sum(pq.read_metadata(one).num_rows for one in path.glob("run=*/**/*.parquet"))

    def close(self) -> None:
        pass


class DeltaTarget:
    def __init__(self, folder: Path) -> None:
        self.url = (folder / "delta").as_uri()

    def table(self) -> ExportTable:
        return DeltaLakeTable(self.url, TimePartitions.DAY)

    def erasable(self) -> ErasableTable:
        return DeltaLakeTable(self.url, TimePartitions.DAY)

    def rows(self) -> pa.Table:
        return DeltaTable(self.url).to_pyarrow_table()

    def history(self) -> int:
        oldest = DeltaTable(self.url, version=1)
        try:
            return oldest.to_pyarrow_table().num_rows
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        pass


class IcebergTarget:
    def __init__(self, folder: Path, *, warehouse: str | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.catalog: Catalog = open_catalog(
            {
                "type": "sql",
                "uri": f"sqlite:///{folder / 'catalog.db'}",
                "warehouse": warehouse or (folder / "warehouse").as_uri(),
            }
        )

    def table(self) -> ExportTable:
        return IcebergTable(self.catalog, "lake.t", TimePartitions.DAY)

    def erasable(self) -> ErasableTable:
        return IcebergErasing(self.catalog, "lake.t")

    def rows(self) -> pa.Table:
        return self.catalog.load_table("lake.t").scan().to_arrow()

    def history(self) -> int:
        table = self.catalog.load_table("lake.t")
        oldest = min(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
        return table.scan(snapshot_id=oldest.snapshot_id).to_arrow().num_rows

    def close(self) -> None:
        self.catalog.close()


TARGETS = {"parquet": ParquetTarget, "delta": DeltaTarget, "iceberg": IcebergTarget}


def customer_of(offset: int) -> bytes:
    return b"customer-%d" % (offset % CUSTOMERS)


def erasure_id(name: str) -> UUID:
    return uuid5(NAMESPACE_URL, name)


def erase(
    source: Source, key: bytes, up_to: Mapping[int, int | None], *, problem: str = ""
) -> UUID:
    """Put a receipt into the bucket as ``tidelog erase`` does when it ends."""
    one = erasure_id(key.decode())
    receipt = ErasureReceipt(
        erasure_id=one,
        topic="t",
        topic_id=source.topic.topic_id,
        key_sha256=hashlib.sha256(key).hexdigest(),
        requested_ms=1,
        ended_ms=2,
        partitions=tuple(
            PartitionErasure(
                partition=number,
                up_to=offset,
                erased=(),
                replicas=(),
                problems=(problem,) if problem else (),
            )
            for number, offset in up_to.items()
        ),
    )
    key_name = erasure_receipt_key(CLUSTER_ID, "t", source.topic.topic_id, one)
    path = source.cluster.objects / key_name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(receipt.document()))
    return one


def follow(source: Source, table: ErasableTable, *, expires: bool = False) -> EraseResult:
    request = EraseRequest(**source.cluster.options, topics=("t",), expires=expires)
    return apply_erasures(LocalTasks(), request, table)


def places(rows: pa.Table) -> list[tuple[int, int]]:
    """Return the partition and offset of each row."""
    columns = rows.select(["kafka_partition", "kafka_offset"]).columns
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True))


def without(source: Source, *erased: tuple[bytes, Mapping[int, int]]) -> list[tuple[int, int]]:
    """Return the rows that stay when these keys are erased below these offsets."""
    return [
        (partition, offset)
        for partition, offset in source.all()
        if not any(
            source.key_of(offset) == key and offset < up_to.get(partition, 0)
            for key, up_to in erased
        )
    ]

"""A table's location that may not be written: the error names it and the permission."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_spark.jobs.formats.delta_table import DeltaLakeTable
from tidelog_spark.jobs.formats.iceberg_table import IcebergTable, open_catalog
from tidelog_spark.jobs.formats.parquet_table import ParquetTable
from tidelog_spark.jobs.tables.export_table import TimePartitions
from tidelog_spark.jobs.tables.table_access import TableAccessDenied, named_permission

from tests.spark.jobs.exported import Source
from tests.support.command import called

READ_ONLY = "file:///sys/kernel/tidelog-table"  # Even root may not make a folder there.


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_a_folder_that_may_not_be_written_is_named_with_the_permission(tmp_path, table_format):
    source = Source(tmp_path)
    source.grow(50)
    catalog = open_catalog(
        {"type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.db'}", "warehouse": READ_ONLY}
    )
    table = {
        "parquet": lambda: ParquetTable(READ_ONLY),
        "delta": lambda: DeltaLakeTable(READ_ONLY, TimePartitions.DAY),
        "iceberg": lambda: IcebergTable(catalog, "lake.t", TimePartitions.DAY),
    }[table_format]()
    with pytest.raises(TableAccessDenied, match="or write permission on its folder") as raised:
        source.export(None, table)
    name = "lake.t" if table_format == "iceberg" else READ_ONLY
    assert f"may not write {name}" in str(raised.value)
    assert not Path(READ_ONLY.removeprefix("file://")).exists()
    catalog.close()


def test_the_command_says_it_in_one_line(tmp_path):
    source = Source(tmp_path)
    source.grow(50)
    asked = [f"--{name}={url}" for name, url in source.cluster.options.items()]
    asked += ["--table", "lake.t", "--catalog", "type=sql", "--catalog", f"warehouse={READ_ONLY}"]
    asked += ["--catalog", f"uri=sqlite:///{tmp_path / 'catalog.db'}"]
    failed = called("job", "iceberg", "t", *asked, status=1)
    assert failed.errors.count("\n") == 1
    assert "the job may not write lake.t" in failed.errors


@pytest.mark.parametrize(
    ("error", "is_of_access"),
    [
        (OSError("AWS Error ACCESS_DENIED during PutObject operation: Access Denied"), True),
        (OSError(30, "Read-only file system"), True),
        (PermissionError(13, "Permission denied"), True),
        (OSError(28, "No space left on device"), False),
        (ValueError("AccessDenied"), False),
    ],
    ids=["s3", "read-only", "folder", "full", "no-os-error"],
)
def test_other_errors_stay_as_they_are(error, is_of_access):
    wanted = TableAccessDenied if is_of_access else type(error)
    with pytest.raises(wanted), named_permission("s3://lake/t", "write"):
        raise error

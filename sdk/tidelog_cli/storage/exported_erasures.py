"""What ``tidelog job export --apply-erasures`` prints, and the table that it works on."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tidelog_cli.failures import FAILED
from tidelog_cli.output import note

if TYPE_CHECKING:
    from tidelog_spark.jobs.erasure.erasing import EraseResult
    from tidelog_spark.jobs.tables.erasable_table import ErasableTable
    from tidelog_spark.jobs.tables.export_table import ExportTable


def erasable_of(table: ExportTable) -> ErasableTable:
    """Return an export's table as one whose rows can be erased."""
    from tidelog_spark.jobs.formats.parquet_table import ParquetTable

    if isinstance(table, ParquetTable):
        return table
    # Both packages are optional.
    if type(table).__name__ == "DeltaLakeTable":
        from tidelog_spark.jobs.formats.delta_table import DeltaLakeTable

        assert isinstance(table, DeltaLakeTable)
        return table
    from tidelog_spark.jobs.formats.iceberg_erasing import IcebergErasing
    from tidelog_spark.jobs.formats.iceberg_table import IcebergTable

    assert isinstance(table, IcebergTable)
    return IcebergErasing(table.catalog, table.name)


def erasure_document(result: EraseResult | None) -> dict[str, object]:
    """Return the part of ``--json``; empty without ``--apply-erasures``."""
    if result is None:
        return {}
    return {
        "erased": {
            "rows": result.row_count,
            "still_reached_by": result.reached_by,
            "waiting": list(result.waiting),
            "receipts": [one.run_id for one in result.receipts],
        }
    }


def report_erased(result: EraseResult, receipt: Path | None, *, is_json: bool) -> None:
    """Print the result and write the receipts; exit with 1 if an erasure is not complete."""
    if receipt is not None:
        documents = [one.document() for one in result.receipts]
        receipt.write_text(dumps(documents, indent=2) + "\n")
    if not is_json:
        print(f"{result.row_count} rows erased")
    for name in result.reached_by:
        note(f"erased rows are still reached by {name}: see --expire-snapshots")
    for sentence in result.waiting:
        note(sentence)
    if result.waiting:
        raise typer.Exit(FAILED)

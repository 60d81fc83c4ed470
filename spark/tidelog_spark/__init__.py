"""Tidelog for Spark: read tiered topics straight from the object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog_spark.scan import scan

if TYPE_CHECKING:
    from tidelog_spark.source import TidelogDataSource, register

__all__ = ["TidelogDataSource", "register", "scan"]


def __getattr__(name: str) -> Any:
    # Spark 3.5 has no data source API: there, only ``scan`` is to be had.
    if name in ("TidelogDataSource", "register"):
        from tidelog_spark import source

        return getattr(source, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

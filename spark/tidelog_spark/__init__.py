"""Tidelog for Spark: topics as tables and streams, read directly from the object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog_spark.scan import scan
from tidelog_spark.session import bookmark

if TYPE_CHECKING:
    from tidelog_spark.source import TidelogDataSource, register

__all__ = ["TidelogDataSource", "bookmark", "register", "scan"]


def __getattr__(name: str) -> Any:
    # Spark 3.5 has no data source API: it can use only ``scan`` and ``bookmark``.
    if name in ("TidelogDataSource", "register"):
        from tidelog_spark import source

        return getattr(source, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

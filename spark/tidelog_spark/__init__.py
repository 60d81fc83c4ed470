"""Tidelog for Spark: topics as tables and streams, read directly from the object store.

A name is imported on first use: Spark starts several Python processes for a query, and each needs
only a part.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog_spark.planning.table_planner import bookmark
    from tidelog_spark.scanning import scan
    from tidelog_spark.source import TidelogDataSource, register
    from tidelog_spark.streaming.stream_start import start_stream

__all__ = ["TidelogDataSource", "bookmark", "register", "scan", "start_stream"]

# Spark 3.5 has no data source API: it can use only ``scan`` and ``bookmark``.
_MODULES = {
    "TidelogDataSource": "source",
    "bookmark": "planning.table_planner",
    "register": "source",
    "scan": "scanning",
    "start_stream": "streaming.stream_start",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"tidelog_spark.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

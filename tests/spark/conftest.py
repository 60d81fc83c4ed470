"""Spark's tests share one session, and are warned by nothing but Spark's own noise."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.interruptible import be_interruptible
from tools.local_spark import local_session


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Let the tests' programs get Ctrl-C."""
    be_interruptible()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two worker threads and the data source registered."""
    folder: Path = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        # py4j leaves the sockets of its start to the collector.
        warnings.simplefilter("ignore", ResourceWarning)
        session = local_session(
            "tidelog-tests",
            settings={
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.session.timeZone": "UTC",
                "spark.local.dir": str(folder / "local"),
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
            },
        )
    yield session
    session.stop()

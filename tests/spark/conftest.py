"""Spark's tests share one session, and are warned by nothing but Spark's own noise."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tidelog_spark import register


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two worker threads and the data source registered."""
    folder: Path = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The workers import the package as this process does.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with warnings.catch_warnings():
        # py4j leaves the sockets of its start to the collector.
        warnings.simplefilter("ignore", ResourceWarning)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("tidelog-tests")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()

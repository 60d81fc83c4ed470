"""A local Spark with the data source registered, for tests, benchmarks and the demo."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession
from tidelog_spark import register

from tools.java_options import QUICK_JAVA

LOCAL = "127.0.0.1"


def local_session(
    name: str,
    *,
    master: str = "local[2]",
    memory: str = "1g",
    java: Sequence[str] = QUICK_JAVA,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the session of this process; the caller stops it. It logs only errors."""
    # Without it Spark's workers run the path's python3, which lacks these packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOCAL
    builder = SparkSession.builder.master(master).appName(name)
    fixed = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.driver.bindAddress": LOCAL,
        "spark.driver.host": LOCAL,
        "spark.ui.enabled": "false",
    }
    for setting, value in {**fixed, **(settings or {})}.items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session

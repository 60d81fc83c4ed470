"""A local Spark with the data source registered, for tests, benchmarks and the demo."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from tidelog_spark import register
from tidelog_spark.pyspark_bytecode import ZIP, add_bytecode

from tools.java_options import QUICK_JAVA
from tools.places import TOOLS_DIR

LOCAL = "127.0.0.1"
_HOME = "SPARK_HOME"


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
    with _spark_home(spark_home()):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


def spark_home() -> Path:
    """Return a home of the installed Spark with bytecode in its zip of pyspark (docs/spark.md).

    It is made once; all but the zip are links. Half of the tests' Python processes are Spark's.
    """
    installed = Path(pyspark.__file__).resolve().parent
    home = TOOLS_DIR / f"spark-{pyspark.__version__}-{sys.implementation.cache_tag}"
    if not home.exists():
        TOOLS_DIR.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=TOOLS_DIR) as scratch:
            fresh = Path(scratch) / home.name
            (fresh / ZIP).parent.mkdir(parents=True)
            for entry in [*installed.iterdir(), *(installed / ZIP).parent.iterdir()]:
                place = fresh / entry.relative_to(installed)
                if not place.exists() and place != fresh / ZIP:
                    place.symlink_to(entry)
            shutil.copy(installed / ZIP, fresh / ZIP)
            add_bytecode(fresh / ZIP)
            try:
                fresh.rename(home)
            except OSError:
                if not home.exists():  # Otherwise another process has made it meanwhile.
                    raise
    return home


@contextmanager
def _spark_home(home: Path) -> Iterator[None]:
    """Have the JVM that starts in the block use this home. Others are not concerned."""
    before = os.environ.get(_HOME)
    os.environ[_HOME] = str(home)
    try:
        yield
    finally:
        del os.environ[_HOME]
        if before is not None:
            os.environ[_HOME] = before

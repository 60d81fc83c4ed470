"""Iceberg's own REST catalog, of its test jars from Maven Central."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tools import maven
from tools.places import TOOLS_DIR, ToolAbsent

VERSION = "1.9.2"
_ROOT = TOOLS_DIR / f"iceberg-catalog-{VERSION}"
_JETTY = "11.0.24"
_JARS = (
    f"org.apache.iceberg:iceberg-core:{VERSION}",
    f"org.apache.iceberg:iceberg-core:{VERSION}:tests",
    f"org.eclipse.jetty:jetty-server:{_JETTY}",
    f"org.eclipse.jetty:jetty-servlet:{_JETTY}",
    "org.xerial:sqlite-jdbc:3.49.1.0",
    "org.slf4j:slf4j-nop:2.0.17",
)


def class_path() -> str:
    """Return the value of java's ``-cp``; downloads missing jars. Raises ``ToolAbsent``."""
    needed = f"iceberg-core-{VERSION}-tests.jar"
    if maven.class_path(_ROOT, needed) is None:
        maven.fetch_jars(_ROOT, *_JARS)
    found = maven.class_path(_ROOT, needed)
    if found is None:
        raise ToolAbsent(f"Maven did not bring {needed}")
    return ":".join([found, *map(str, _hadoop_jars())])


def _hadoop_jars() -> list[Path]:
    """Return Hadoop's jars, which PySpark has."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise ToolAbsent("pyspark, which has Hadoop's jars, is not installed")
    return sorted((Path(spark.origin).parent / "jars").glob("hadoop-client-*.jar"))

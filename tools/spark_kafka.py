"""Spark's own Kafka source from Maven Central."""

from __future__ import annotations

from pathlib import Path

from tools import maven
from tools.places import TOOLS_DIR

VERSION = "4.2.0"  # the newest release; it also runs in Spark 4.3
_ROOT = TOOLS_DIR / "spark-kafka"
# Listed by name: Maven would search the dependencies in a repository of Spark's builders.
_JARS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


def jars() -> list[Path]:
    """Return the jars that ``spark.jars`` needs; downloads missing ones. Raises ``ToolAbsent``."""
    if not (found := list((_ROOT / "jars").glob("*.jar"))):
        maven.fetch_jars(_ROOT, *_JARS, is_alone=True)
        found = list((_ROOT / "jars").glob("*.jar"))
    return sorted(found)

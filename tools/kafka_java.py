"""Apache Kafka's Java client from Maven Central."""

from __future__ import annotations

from tools import maven
from tools.places import TOOLS_DIR

VERSION = "4.1.0"
_ROOT = TOOLS_DIR / "kafka-java"


def install() -> None:
    """Make ``class_path`` work."""
    if class_path() is None:
        client = f"org.apache.kafka:kafka-clients:{VERSION}"
        maven.fetch_jars(_ROOT, client, "org.slf4j:slf4j-nop:1.7.36")


def class_path() -> str | None:
    """Return what to give java as ``-cp``, or ``None`` where the jars are absent."""
    return maven.class_path(_ROOT, f"kafka-clients-{VERSION}.jar")

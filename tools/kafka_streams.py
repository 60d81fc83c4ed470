"""Kafka Streams from Maven Central, with its own integration tests and what runs them.

3.9 is the last version whose integration tests are in a jar of Maven Central.
"""

from __future__ import annotations

from tools import maven
from tools.places import TOOLS_DIR

VERSION = "3.9.1"
_JUNIT = "1.11.2"
_ROOT = TOOLS_DIR / f"kafka-streams-{VERSION}"
_KAFKA = "org.apache.kafka"


def install() -> None:
    """Make ``class_path`` work."""
    if class_path() is None:
        maven.fetch_jars(
            _ROOT,
            f"{_KAFKA}:kafka-streams:{VERSION}",
            f"{_KAFKA}:kafka-streams:{VERSION}:test",
            f"{_KAFKA}:kafka-clients:{VERSION}:test",
            f"{_KAFKA}:kafka-server-common:{VERSION}:test",
            f"{_KAFKA}:kafka_2.13:{VERSION}",
            f"{_KAFKA}:kafka-tools:{VERSION}",  # some read by the console consumer
            f"org.junit.platform:junit-platform-console-standalone:{_JUNIT}",
            "junit:junit:4.13.2",
            "org.hamcrest:hamcrest:2.2",
            "org.mockito:mockito-junit-jupiter:5.14.2",
            "org.slf4j:slf4j-simple:1.7.36",
        )


def class_path() -> str | None:
    """Return the value of java's ``-cp``, or ``None`` if jars are missing."""
    return maven.class_path(
        _ROOT,
        f"kafka-streams-{VERSION}-test.jar",
        f"junit-platform-console-standalone-{_JUNIT}.jar",
    )

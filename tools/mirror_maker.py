"""Runs Apache Kafka's MirrorMaker 2 from Maven Central."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools import maven
from tools.java_options import QUICK_JAVA
from tools.places import TOOLS_DIR, ToolAbsent, require

VERSION = "4.1.2"
STOP_SECONDS_MAX = 30.0
_ROOT = TOOLS_DIR / f"kafka-mirror-{VERSION}"
_JAVA_OPTIONS = ("-Xmx512m", *QUICK_JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_MAIN_CLASS = "org.apache.kafka.connect.mirror.MirrorMaker"


def install() -> None:
    """Make ``mirroring`` work."""
    require("java")
    if class_path() is None:
        maven.fetch_jars(
            _ROOT,
            f"org.apache.kafka:connect-mirror:{VERSION}",
            f"org.apache.kafka:connect-runtime:{VERSION}",
            "org.slf4j:slf4j-simple:1.7.36",
        )


def class_path() -> str | None:
    """Return the value of java's ``-cp``, or ``None`` if jars are missing."""
    return maven.class_path(
        _ROOT, f"connect-mirror-{VERSION}.jar", f"connect-runtime-{VERSION}.jar"
    )


@contextmanager
def mirroring(properties: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run MirrorMaker with a file of properties, and its log beside that. Raises ``ToolAbsent``."""
    path = class_path()
    if path is None:
        raise ToolAbsent("MirrorMaker is not installed: run `make tools`")
    command = [require("java"), *_JAVA_OPTIONS, "-cp", path, _MAIN_CLASS, str(properties)]
    with (
        properties.with_suffix(".log").open("ab") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()

"""Java's own client as a driver."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.drivers.process import Driver
from tools import kafka_java
from tools.java_options import QUICK_JAVA


def java_driver() -> Driver:
    """Return the driver, without a command where Java or the client is not installed."""
    return Driver(
        name="Java kafka-clients",
        command=_command(),
        assignors=("range", "cooperative-sticky"),
    )


def _command() -> tuple[str, ...]:
    java, class_path = shutil.which("java"), kafka_java.class_path()
    if java is None or class_path is None:
        return ()
    classes = kafka_java.compiled(Path(__file__).with_name("JavaDriver.java"))
    return (java, *QUICK_JAVA, "-cp", f"{class_path}:{classes}", "JavaDriver")

"""Iceberg's REST catalog as a process of the tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import eventually
from tools import iceberg_catalog, kafka_java
from tools.java_options import QUICK_JAVA
from tools.places import require
from tools.ports import free_port

_SOURCE = Path(__file__).parent / "RestCatalog.java"
READY_SECONDS_MAX = 180.0


@contextmanager
def running_catalog(folder: Path) -> Iterator[str]:
    """Yield the URL of a catalog whose tables are in the folder. Raises ``ToolAbsent``."""
    folder.mkdir(parents=True)
    path = iceberg_catalog.class_path()
    classes = kafka_java.compiled(_SOURCE, with_jars=path)
    port = free_port()
    command = [require("java"), "-Xmx256m", *QUICK_JAVA, "-cp", f"{classes}:{path}"]
    log_path = folder / "catalog.log"
    with (
        log_path.open("wb") as log,
        subprocess.Popen(
            [*command, "RestCatalog", str(folder), str(port)], stdout=log, stderr=log
        ) as process,
    ):
        try:
            eventually(
                lambda: process.poll() is not None or "ready" in log_path.read_text(),
                lambda: f"the catalog starts:\n{log_path.read_text()}",
                READY_SECONDS_MAX,
            )
            assert process.poll() is None, log_path.read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()

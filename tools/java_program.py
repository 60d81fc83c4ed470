"""Programs of Apache Kafka, from Maven Central, that run from a file of properties."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools import kafka_java, maven
from tools.java_options import QUICK_JAVA
from tools.places import TOOLS_DIR, ToolAbsent, require

STOP_SECONDS_MAX = 30.0
_JAVA_OPTIONS = ("-Xmx512m", *QUICK_JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_LOGGER = "org.slf4j:slf4j-simple:1.7.36"


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """A main class, and the artifacts it is in."""

    name: str  # for messages, and of its folder
    main_class: str
    artifacts: tuple[str, ...]  # group:artifact:version

    def install(self) -> None:
        """Make ``running`` work. Raises ``ToolAbsent``."""
        require("java")
        if self.class_path() is None:
            maven.fetch_jars(self._root, *self.artifacts, _LOGGER)

    def class_path(self) -> str | None:
        """Return the value of java's ``-cp``, or ``None`` if jars are missing."""
        jars = ("{1}-{2}.jar".format(*one.split(":")) for one in self.artifacts)
        return maven.class_path(self._root, *jars)

    @contextmanager
    def running(
        self, properties: Path, *, source: Path | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run it with a file of properties, and its log beside that. Raises ``ToolAbsent``.

        ``source`` is a program of our own with the main class.
        """
        path = self.class_path()
        if path is None:
            raise ToolAbsent(f"{self.name} is not installed: run `make tools`")
        if source is not None:
            path = f"{kafka_java.compiled(source, with_jars=path)}:{path}"
        command = [require("java"), *_JAVA_OPTIONS, "-cp", path, self.main_class, str(properties)]
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

    @property
    def _root(self) -> Path:
        version = self.artifacts[0].rpartition(":")[2]
        return TOOLS_DIR / f"{self.name}-{version}"

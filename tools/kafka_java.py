"""Apache Kafka's Java client from Maven Central."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from tools import maven
from tools.places import TOOLS_DIR, require, run

VERSION = "4.1.2"
_JOSE4J, _JACKSON = "0.9.6", "2.19.4"  # as Apache Kafka's own distribution has them
_ROOT = TOOLS_DIR / f"kafka-java-{VERSION}"


def install() -> None:
    """Make ``class_path`` and ``token_class_path`` work."""
    if class_path() is None:
        client = f"org.apache.kafka:kafka-clients:{VERSION}"
        maven.fetch_jars(_ROOT, client, "org.slf4j:slf4j-nop:1.7.36")
    if token_class_path() is None:
        maven.fetch_jars(
            _ROOT / "tokens",
            f"org.bitbucket.b_c:jose4j:{_JOSE4J}",
            f"com.fasterxml.jackson.core:jackson-databind:{_JACKSON}",
        )


def class_path() -> str | None:
    """Return the value of java's ``-cp``, or ``None`` if jars are missing."""
    return maven.class_path(_ROOT, f"kafka-clients-{VERSION}.jar")


def token_class_path() -> str | None:
    """Return the value of ``-cp`` for clients that fetch tokens; it has two more libraries."""
    client = class_path()
    jars = maven.class_path(_ROOT / "tokens", f"jose4j-{_JOSE4J}.jar")
    return None if client is None or jars is None else f"{client}:{jars}"


def compiled(source: Path, *, with_jars: str | None = None) -> Path:
    """Return the folder with the classes of a program that uses the client.

    ``with_jars`` is its class path, if it needs more than the client.

    ``java Program.java`` would compile it at every start, which takes longer than most runs.
    Raises ``ToolAbsent`` if the compiler is missing or rejects the program.
    """
    folder = _ROOT / "classes" / hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as building:
            classes = Path(building, "classes")
            run([require("javac"), "-cp", with_jars or str(class_path()), "-d", classes, source])
            try:
                classes.rename(folder)
            except OSError:
                # Another process was first; its classes are the same.
                if not folder.exists():
                    raise
    return folder

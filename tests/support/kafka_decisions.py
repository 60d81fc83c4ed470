"""Kafka's own classes decide the same questions, in a Java program of a test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools import kafka_broker, kafka_java
from tools.java_options import QUICK_JAVA

JAVA_SECONDS_MAX = 300


def kafka_class_path() -> str:
    """Return the path of Kafka's classes. Skips the test if there is no Java or no Kafka."""
    jars = kafka_broker.class_path()
    if shutil.which("java") is None or jars is None:
        pytest.skip("needs java and Kafka's jars (make tools)")
    return jars


def require_same_decisions(
    source: Path, asked: Sequence[tuple[str, str]], *, class_path: str, folder: Path
) -> list[str]:
    """Compare our answers with those of a Java program, and return its answers.

    ``asked`` are the lines of the program's input, each with our answer to it; one without an
    answer is not a question.
    """
    lines = folder / "asked"
    lines.write_text("\n".join(text for text, _ in asked))
    classes = kafka_java.compiled(source, with_jars=class_path)
    done = subprocess.run(
        ["java", *QUICK_JAVA, "-cp", f"{class_path}:{classes}", source.stem, lines],
        capture_output=True,
        text=True,
        timeout=JAVA_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ours = [(text, answer) for text, answer in asked if answer]
    theirs = done.stdout.split()
    assert len(ours) == len(theirs)
    assert [
        (text, answer, their)
        for (text, answer), their in zip(ours, theirs, strict=True)
        if answer != their
    ] == []
    return theirs

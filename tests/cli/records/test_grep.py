"""``consume --grep``, and names that the shell completes."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from tidelog.consuming.records import ConsumerRecord
from tidelog_cli.failures import UsageError
from tidelog_cli.records.grep import grep

from tests.support.command import COMMAND, called, environment
from tools.ports import free_port


def record(
    value: bytes | None, key: bytes | None = None, *headers: tuple[str, bytes | None]
) -> ConsumerRecord:
    return ConsumerRecord("t", 0, 0, 0, key, value, headers, False)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("^late", [True, False, False, False]),
        ("d[e]lay", [True, True, False, True]),
        ("ä", [False, False, True, False]),
        (r"\bN14\d+$", [False, True, False, False]),
        ("", [True, True, True, True]),
    ],
)
def test_key_value_and_headers_are_searched(pattern: str, found: list[bool]) -> None:
    records = [
        record(b"late by a delay"),
        record(b"delay", b"N14228"),
        record("ä".encode(), None, ("delay", None)),
        record(None, b"", ("h", b"delay \xff")),
    ]
    assert [grep(pattern)(one) for one in records] == found


def test_pattern_that_takes_other_engines_for_ever_is_quick() -> None:
    matches = grep("(a+)+$")
    started = time.thread_time()
    assert not matches(record(b"a" * 100_000 + b"b"))
    assert time.thread_time() - started < 1


@pytest.mark.parametrize("pattern", ["(a", "[b", "a" * 70_000, r"(?=a)", "((a{100}){100}){100}"])
def test_wrong_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="--grep"):
        grep(pattern)


def test_only_matching_records_are_printed_and_counted(bootstrap: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{n} {'late' if n % 3 == 0 else 'early'}\n" for n in range(30)))
    called("produce", "searched", lines, bootstrap=bootstrap)
    read = called(
        "consume", "searched", "--from-beginning", "--grep", "LATE|late$", "-n", 4,
        bootstrap=bootstrap,
    )  # fmt: skip
    assert read.lines == ["0 late", "3 late", "6 late", "9 late"]
    assert read.errors == "tidelog: 4 records read from searched\n"


def completed(words: str, bootstrap: str) -> list[str]:
    """Return what bash is told for the last word."""
    count = len(words.split(" "))
    given = environment(bootstrap) | {"_TIDELOG_COMPLETE": "complete_bash", "COMP_WORDS": words}
    done = subprocess.run(
        [COMMAND],
        env=given | {"COMP_CWORD": str(count - 1)},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == b""
    return done.stdout.decode().split()


def test_shell_completes_names_of_topics(bootstrap: str) -> None:
    for topic in ("completed-a", "completed-b"):
        called("topic", "create", topic, bootstrap=bootstrap)
    assert completed("tidelog consume completed-", bootstrap) == ["completed-a", "completed-b"]
    assert completed("tidelog consume com", f"127.0.0.1:{free_port()}") == []

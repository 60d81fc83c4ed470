"""Lines of the log as text and as JSON."""

from __future__ import annotations

import datetime
import json
import logging
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.log_format import TEXT_CHARS_MAX, FieldFormatter, JsonFormatter

JSON_FORMATTER = JsonFormatter("node-1")
PROGRAM = """
import logging, sys, threading, warnings
from tidelog_core.log_format import configure_logging
configure_logging("node-1", "INFO", log_format="json")
logging.getLogger("some").error("two\\nlines", extra={"client": "\\u2028\\ud800\\n\\"}"})
logging.getLogger("some").info("bad arguments %d", "x")
warnings.warn("careful")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise ValueError("nobody catches\\nthis")
"""


def line_of(message: str, *args: object, exc_info: Any = None, **extra: object) -> str:
    record = logging.makeLogRecord(
        {
            "name": "tidelog_node.connections.server",
            "levelname": "WARNING",
            "msg": message,
            "args": args,
            "exc_info": exc_info,
            "created": 1_767_225_600.5,
            **extra,
        }
    )
    return JSON_FORMATTER.format(record)


def parsed(message: str, **given: Any) -> dict[str, Any]:
    line = line_of(message, **given)
    assert "\n" not in line
    assert "\u2028" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_json_line_has_time_level_process_logger_message_and_fields() -> None:
    assert parsed("segment copied", partition="t-0", base_offset=7, isr=(1, 2), ok=True) == {
        "timestamp": "2026-01-01T00:00:00.500Z",
        "level": "WARNING",
        "process": "node-1",
        "logger": "tidelog_node.connections.server",
        "message": "segment copied",
        "partition": "t-0",
        "base_offset": 7,
        "isr": [1, 2],
        "ok": True,
    }


def test_the_time_is_of_rfc_3339() -> None:
    text = parsed("x")["timestamp"]
    assert datetime.datetime.fromisoformat(text).tzinfo is datetime.UTC


def test_an_exception_is_one_text() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        found = parsed("request failed", exc_info=sys.exc_info())
    assert found["exception"].startswith("Traceback (most recent call last):\n")
    assert found["exception"].endswith("ValueError: first\nsecond")


def test_a_field_replaces_no_other_key() -> None:
    found = parsed("message", level="deep", timestamp=0, exception="mine", logger="l")
    assert (found["level"], found["level_"], found["timestamp_"]) == ("WARNING", "deep", 0)
    assert (found["exception_"], found["logger_"]) == ("mine", "l")


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unnamed:
    def __str__(self) -> str:
        return "a value"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("\ud800x", "\\ud800x"),
        ('"}\n{"level":"ERROR"}', '"}\n{"level":"ERROR"}'),
        ("\x00\x1b[31m", "\x00\x1b[31m"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (2**70, hex(2**70)),
        (b"\xff\n", "b'\\xff\\n'"),
        (Unnamed(), "a value"),
        (Broken(), "<Broken>"),
        ({1: {2: {3: {4: {5: 6}}}}}, {"1": {"2": {"3": {"4": "{5: 6}"}}}}),
        (["\ud800", math.nan], ["\\ud800", "nan"]),
        (range(3), "range(0, 3)"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_every_value_becomes_json(value: object, shown: object) -> None:
    assert parsed("x", field=value)["field"] == shown


def test_a_long_value_is_cut() -> None:
    found = parsed("x", client_id="y" * 1_000_000)["client_id"]
    assert len(found) < TEXT_CHARS_MAX + 100
    assert found.endswith("more characters")


def test_a_collection_in_itself_is_cut() -> None:
    value: list[object] = []
    value.append(value)
    assert "field" in parsed("x", field=value)


@given(st.text(st.characters(codec=None)), st.text(min_size=1))
def test_whatever_clients_send_parses(value: str, message: str) -> None:
    found = parsed(message.replace("%", "%%"), client_id=value)
    json.dumps(found).encode()
    assert isinstance(found["client_id"], str)


def test_all_that_a_process_writes_parses() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False)
    lines = [json.loads(line) for line in done.stderr.decode().splitlines()]
    assert done.returncode == 1
    messages = [line["message"] for line in lines]
    assert messages[0] == "two\nlines"
    assert messages[1] == "bad arguments %d"
    assert "careful" in messages[2]
    assert messages[3:] == ["uncaught exception"] * 2
    assert "ZeroDivisionError" in lines[3]["exception"]
    assert lines[4]["exception"].endswith("ValueError: nobody catches\nthis")


def test_a_line_of_text_has_the_fields_behind_its_message() -> None:
    record = logging.makeLogRecord({"name": "n", "levelname": "INFO", "msg": "m", "a": "b"})
    assert FieldFormatter("node-1").format(record).endswith("INFO node-1 n: m a='b'")

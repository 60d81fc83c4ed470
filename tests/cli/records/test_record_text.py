"""Records as text."""

from __future__ import annotations

import json

import pytest
from tidelog.consuming.records import ConsumerRecord
from tidelog_cli.failures import UsageError
from tidelog_cli.records.consume import Start, parse_start
from tidelog_cli.records.record_text import json_line, parse_format, parse_header, unescape

RECORD = ConsumerRecord(
    "orders", 2, 17, 1_700_000_000_000, b"k", "vä".encode(), (("a", b"1"), ("b", None)), False
)


def test_format_prints_every_field() -> None:
    text = r"%t %p %o %T %k %K %s %S %h 100%%\n"
    printed = parse_format(text)(RECORD)
    assert printed == "orders 2 17 1700000000000 k 1 vä 3 a=1,b= 100%\n".encode()


def test_format_prints_null_as_nothing_of_size_minus_one() -> None:
    record = RECORD._replace(key=None, value=None)
    assert parse_format("[%k %K][%s %S]")(record) == b"[ -1][ -1]"


def test_a_headers_name_that_is_no_text_is_printed() -> None:
    name = b"\xffn".decode(errors="surrogateescape")  # As the consumer has it.
    record = RECORD._replace(headers=((name, b"1"),))
    assert parse_format("%h")(record) == b"\xffn=1"
    assert json.loads(json_line(record))["headers"] == [{"name": "?n", "value": "1"}]


def test_format_does_not_look_for_fields_in_what_it_prints() -> None:
    assert parse_format("%s")(RECORD._replace(value=rb"%o\n")) == rb"%o\n"


@pytest.mark.parametrize(("text", "wrong"), [("%x", "%x"), ("abc%", "'%'"), (r"\q", r"\q")])
def test_format_rejects_what_means_nothing_and_says_what_does(text: str, wrong: str) -> None:
    with pytest.raises(UsageError, match="allowed are") as raised:
        parse_format(text)
    assert wrong in str(raised.value)


def test_json_keeps_text_as_text_and_other_bytes_in_base64() -> None:
    line = json_line(RECORD._replace(key=b"\xff\x00"))
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 2,
        "offset": 17,
        "timestamp_ms": 1_700_000_000_000,
        "key_base64": "/wA=",
        "value": "vä",
        "headers": [{"name": "a", "value": "1"}, {"name": "b", "value": None}],
    }


def test_json_stays_one_line_whatever_the_value() -> None:
    assert json_line(RECORD._replace(value=b"a\nb")).count(b"\n") == 1


def test_escapes_become_what_they_stand_for() -> None:
    assert unescape(r"\t|%\x41\\") == "\t|%A\\"


def test_header_may_hold_equals_signs_in_its_value() -> None:
    assert parse_header("name=a=b") == ("name", b"a=b")


@pytest.mark.parametrize("text", ["name", "=value", ""])
def test_header_without_name_or_value_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_header(text)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start("earliest")),
        ("latest", Start("latest")),
        ("42", Start("offset", 42)),
        ("-3", Start("last", 3)),
        ("@1700000000000", Start("time", 1_700_000_000_000)),
    ],
)
def test_offset_option_takes_ends_numbers_and_times(text: str, start: Start) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "-", "@", "beginning", "1.5", "--1", "٣"])
def test_offset_option_rejects_anything_else(text: str) -> None:
    with pytest.raises(UsageError, match="earliest, latest"):
        parse_start(text)

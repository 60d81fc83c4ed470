"""Lines of ``consume --json`` whose values are no record of a registry, and mean harm."""

from __future__ import annotations

import json

import pytest
from tidelog.consuming.records import ConsumerRecord
from tidelog_cli.records.decoded_records import AUTO, BYTES, RecordDecoder


def line(value: bytes, decoder: RecordDecoder) -> str:
    record = ConsumerRecord("t", 0, 7, 1_000, None, value, (), is_log_append_time=False)
    printed = decoder.json_format()(record)
    assert printed.endswith(b"\n")
    assert b"\n" not in printed[:-1]
    return printed.decode()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"a":1}', {"a": 1}),
        (b"text", "text"),
        (b"NaN", "NaN"),
        (b"\xff", "\ufffd"),
        (b'"\\ud800"', "?"),
        (b"1" * 5_000, "1" * 5_000),
        (b"[" * 200_000, "[" * 200_000),
    ],
    ids=["json", "text", "no number", "bytes", "surrogate", "long number", "deep"],
)
def test_what_is_no_json_is_printed_as_text(value: bytes, shown: object) -> None:
    decoder = RecordDecoder.of(BYTES, AUTO, "http://127.0.0.1:1")
    assert decoder is not None
    assert json.loads(line(value, decoder))["value"] == shown
    assert decoder.failed_count == 0


def test_json_that_fits_into_no_line_is_printed_as_its_bytes() -> None:
    """It can just be parsed: one level more, that of the record, cannot be written."""
    decoder = RecordDecoder.of(BYTES, AUTO, "http://127.0.0.1:1")
    assert decoder is not None
    for depth in (10, 500, 900, 950, 980, 990, 1_000, 5_000, 9_000, 50_000):
        value = b"[" * depth + b"]" * depth
        assert value.decode() in line(value, decoder)

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.consuming.records import ConsumerRecord
from tidelog_console.record_view import HEADERS_MAX, bytes_view, record_view, text_view


def test_text_stays_text() -> None:
    shown = bytes_view("größer <b>&amp;\n\t".encode(), 100)
    assert shown == {
        "kind": "text",
        "text": "größer <b>&amp;\n\t",
        "size_bytes": 19,
        "is_cut": False,
    }


@pytest.mark.parametrize("data", [b"\x00", b"\xff\xfe", b"text\x1b[31m", b"\x7f", b"\xc3"])
def test_bytes_that_are_no_text_are_hex(data: bytes) -> None:
    shown = bytes_view(data, 100)
    assert (shown["kind"], bytes.fromhex(shown["text"])) == ("hex", data)


def test_null_and_empty_differ() -> None:
    assert bytes_view(None, 10)["kind"] == "null"
    assert bytes_view(b"", 10)["kind"] == "text"


def test_a_character_is_not_cut_in_two() -> None:
    shown = bytes_view("ää".encode(), 3)
    assert (shown["text"], shown["is_cut"]) == ("ä", True)


def test_what_cannot_be_seen_is_escaped() -> None:
    """Else a value may look like another: U+202E turns the text after it around."""
    assert bytes_view("a\u202eb\u200bc\r".encode(), 100)["text"] == "a\\u202eb\\u200bc\\r"
    assert text_view("\x00name", 10) == "\\u0000name"


@given(st.binary(max_size=5_000), st.integers(1, 3_000))
def test_any_bytes_have_a_bounded_view(data: bytes, most: int) -> None:
    shown = bytes_view(data, most)
    assert len(json.dumps(shown)) <= 10 * most + 200
    assert shown["size_bytes"] == len(data)
    if shown["kind"] == "text" and not shown["is_cut"]:
        assert shown["text"].replace("\n", "").replace("\t", "").isprintable()


def test_a_record_has_a_bounded_number_of_headers() -> None:
    headers = tuple((f"h{n}", b"v") for n in range(HEADERS_MAX + 3))
    record = ConsumerRecord("t", 1, 7, 1000, b"k", b"v", headers, False)
    shown = record_view(record)
    assert (len(shown["headers"]), shown["headers_left_out"]) == (HEADERS_MAX, 3)
    assert (shown["partition"], shown["offset"], shown["timestamp_ms"]) == (1, 7, 1000)

"""Values of Protobuf and JSON Schema, and the frame around values."""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from tidelog_core.schemas.model import Reference, SchemaType
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.values.codecs import ProtobufCodec, load_value, open_codec
from tidelog_core.schemas.values.framing import (
    INDEXES_MAX,
    UnreadableValue,
    framed,
    joined_indexes,
    schema_header,
    split_frame,
    split_indexes,
    split_named,
)

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
import "item.proto";
import "confluent/meta.proto";
option java_package = "x";
message Order {
  option (confluent.message_meta).doc = "an order";
  message Line { goods.Item item = 1; map<string, int32> tags = 2; }
  int64 order_id = 1 [(confluent.field_meta).doc = "the id"];
  repeated Line lines = 2;
  oneof by { string name = 3; int32 number = 4; }
  optional bytes raw = 5;
  Kind kind = 6;
  google.protobuf.Timestamp at = 7;
  google.protobuf.NullValue nothing = 8;
  Order before = 9;
}
enum Kind { option allow_alias = true; NONE = 0; SOME = 1; ANY = 1; }
message Other { double d = 1; }
"""
ITEM = 'syntax = "proto3"; package goods; message Item { string sku = 1; }'
KNOWN = [(Reference("item.proto", "items", 1), ITEM)]
ORDER: dict[str, Any] = {
    "orderId": "7",
    "lines": [{"item": {"sku": "a"}, "tags": {"x": 1}}],
    "name": "ann",
    "raw": "AAE=",
    "kind": "SOME",
    "at": "2026-01-02T03:04:05Z",
}


def test_messages_are_written_and_read_as_protobufs_json_has_them() -> None:
    of = open_codec(SchemaType.PROTOBUF, PROTO, KNOWN)
    data = of.encode(ORDER)
    assert data[0] == 0, "the first message of the file"
    assert of.decode(data) == ORDER
    of.check(data)


def test_other_messages_of_the_file_are_found_by_their_place() -> None:
    of = ProtobufCodec(PROTO, KNOWN)
    for name, place in (("shop.Order.Line", (0, 0)), ("Other", (1,)), ("Order.Line", (0, 0))):
        of.choose(name)
        data = of.encode({})
        assert split_indexes(data) == (place, b"")
        assert isinstance(of.decode(data), dict)
    with pytest.raises(UnreadableValue, match="no message 'Nobody'"):
        of.choose("Nobody")


@pytest.mark.parametrize(
    "data", [b"", b"\0\xff", b"\2\x08", b"\x02\x0a", b"\x80" * 6, b"\xc8\x01" + b"\2" * 100, b"\1"]
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    of = open_codec(SchemaType.PROTOBUF, PROTO, KNOWN)
    for read in (of.check, of.decode):
        with pytest.raises(UnreadableValue):
            read(data)


def test_deep_messages_are_refused_and_not_followed() -> None:
    of = open_codec(SchemaType.PROTOBUF, PROTO, KNOWN)
    data = b""
    for _ in range(3_000):
        data = b"\x4a" + _varint(len(data)) + data
    with pytest.raises(UnreadableValue):
        of.check(b"\0" + data)


def test_damaged_messages_are_read_or_refused() -> None:
    of, chance = open_codec(SchemaType.PROTOBUF, PROTO, KNOWN), random.Random(11)
    whole = of.encode(ORDER)
    for _ in range(2_000):
        data = bytearray(whole)
        data[chance.randrange(len(data))] = chance.randrange(256)
        with suppress(UnreadableValue):
            of.decode(bytes(data[: chance.randint(0, len(data))]))


@pytest.mark.parametrize("value", [[], "x", {"unknown": 1}, {"orderId": "x"}, {"kind": "MANY"}])
def test_json_that_is_no_message_is_refused(value: Any) -> None:
    with pytest.raises(UnreadableValue):
        open_codec(SchemaType.PROTOBUF, PROTO, KNOWN).encode(value)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^(a+)+$"}, "of": {"$ref": "firm.json"}},
    "required": ["name"],
}
FIRM = [(Reference("firm.json", "firms", 1), '{"type": "string", "maxLength": 3}')]


def test_json_is_checked_by_its_schema_and_shown_as_it_is() -> None:
    of = open_codec(SchemaType.JSON, json.dumps(PERSON), FIRM)
    data = of.encode({"name": "aa", "of": "abc"})
    assert data == b'{"name":"aa","of":"abc"}'
    assert of.decode(b'{"other": 1}') == {"other": 1}
    of.check(data)
    for wrong in (
        b'{"other": 1}',
        b'{"name":"b"}',
        b'{"name":"a","of":"abcd"}',
        b"{",
        b"\xff",
        b"",
    ):
        with pytest.raises(UnreadableValue):
            of.check(wrong)


def test_patterns_take_time_in_proportion_to_the_text() -> None:
    of = open_codec(SchemaType.JSON, json.dumps(PERSON), FIRM)
    before = time.process_time()
    with pytest.raises(UnreadableValue):
        of.check(json.dumps({"name": "a" * 100_000 + "!"}).encode())
    assert time.process_time() - before < 5


@pytest.mark.parametrize(
    "text",
    [
        '{"$ref": "http://127.0.0.1:1/schema.json"}',
        '{"$ref": "file:///etc/passwd"}',
        '{"$ref": "other.json"}',
        '{"pattern": "(?<=a)b"}',
        '{"pattern": "((a{1000}){1000}){1000}"}',
        '{"type": 7}',
    ],
)
def test_schemas_that_cannot_check_are_named(text: str) -> None:
    """Nothing is fetched, from the network or from files."""
    with pytest.raises((InvalidSchema, UnreadableValue)):
        open_codec(SchemaType.JSON, text).check(b'"b"')


@pytest.mark.parametrize(
    "text", ["NaN", "[" * 100_000, "1" * 5_000, "{", '{"a":Infinity}', "\ufeff1"]
)
def test_texts_that_are_no_json_are_refused(text: str) -> None:
    with pytest.raises(UnreadableValue):
        load_value(text)


def test_the_frame_of_a_value() -> None:
    assert split_frame(framed(7, b"abc")) == (7, b"abc")
    for wrong in (b"", b"\0\0\0\0", b"\1\0\0\0\7x", b"\0\xff\xff\xff\xff", b"{}    "):
        with pytest.raises(UnreadableValue):
            split_frame(wrong)
    for indexes in ((0,), (1,), (0, 0), (3, 200, 70_000)):
        assert split_indexes(joined_indexes(indexes) + b"x") == (indexes, b"x")


GUID = "89791762-2336-4186-9674-299b90a802e2"
GUID_HEAD = b"\1" + UUID(GUID).bytes


def test_a_schema_may_be_named_in_a_header_and_by_its_guid() -> None:
    assert split_named(framed(7, b"abc"), None) == (7, None, b"abc")
    assert split_named(GUID_HEAD + b"abc", None) == (GUID, None, b"abc")
    for head, name in ((GUID_HEAD, GUID), (framed(7, b""), 7)):
        frame = split_named(b"\0abc", head)
        assert frame == (name, b"", b"\0abc")
        assert frame.payload("AVRO") == frame.payload("JSON") == b"\0abc"
        with pytest.raises(UnreadableValue, match="the place of its message is cut off"):
            frame.payload("PROTOBUF")
        for place in ((0,), (1, 0)):
            frame = split_named(b"abc", head + joined_indexes(place))
            assert split_indexes(frame.payload("PROTOBUF")) == (place, b"abc")
            with pytest.raises(UnreadableValue, match="bytes after the schema's id"):
                frame.payload("AVRO")
        with pytest.raises(UnreadableValue, match="1 bytes after the schema's id"):
            split_named(b"abc", head + b"\0x").payload("PROTOBUF")


def test_the_longest_header_names_the_most_deeply_nested_message() -> None:
    header = GUID_HEAD + joined_indexes([2**31 - 1] * INDEXES_MAX)
    assert split_named(b"abc", header).payload("PROTOBUF") == header[len(GUID_HEAD) :] + b"abc"
    with pytest.raises(UnreadableValue, match="343 bytes are too many, allowed are 342"):
        split_named(b"abc", GUID_HEAD + bytes(326))
    assert split_named(GUID_HEAD + bytes(326), None).rest == bytes(326), "a value has no limit"


@pytest.mark.parametrize("wrong", [b"", b"\1", GUID_HEAD[:-1], b"\2" + GUID_HEAD[1:], b"\0\0\0"])
def test_a_header_that_names_no_schema_is_refused(wrong: bytes) -> None:
    with pytest.raises(UnreadableValue):
        split_named(framed(7, b"abc"), wrong)


def test_the_last_header_of_a_name_counts() -> None:
    headers = [("a", b"1"), ("b", b"2"), ("a", b"3")]
    assert schema_header(headers, "a") == b"3"
    assert schema_header(headers, "c") is None
    assert schema_header([*headers, ("a", None)], "a") is None


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)

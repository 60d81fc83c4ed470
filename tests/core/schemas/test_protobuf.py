"""Protobuf schemas: what is one, how it is printed, and which changes data does not survive."""

from __future__ import annotations

import base64

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf import descriptor_pb2 as pb
from tidelog_core.schemas.languages import parse
from tidelog_core.schemas.model import Reference, SchemaType
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.protobuf.comparison import compare
from tidelog_core.schemas.protobuf.schema import ProtobufSchema

EVERYTHING = """// A comment.
syntax = "proto3";
package shop.v1; /* and
another */
import public "base.proto";
import "google/protobuf/timestamp.proto";
option java_package = "com.\\x73hop";
option (my.own) = { a: 1 b { c: "}" } };
message Order {
  option deprecated = true;
  reserved 7, 10 to 12, 1000 to max;
  reserved "old", 'older';
  string id = 1 [json_name = "ID"];
  optional int64 count = 0x2;
  repeated Line lines = 3 [deprecated = true, (my.field) = 'x'];
  map<string, Line> by_name = 4;
  oneof who { string name = 5; .shop.v1.Base base = 6; }
  google.protobuf.Timestamp at = 8;
  message Line { double price = 1; Kind kind = 2; }
  enum Kind { option allow_alias = true; NONE = 0; SOME = 1; MANY = 1 [deprecated = true]; }
}
service Orders {
  rpc Watch (Order) returns (stream Order);
}
"""
PRINTED = """syntax = "proto3";
package shop.v1;

import public "base.proto";
import "google/protobuf/timestamp.proto";

option java_package = "com.shop";
option (my.own) = { a: 1 b { c: "}" } };

message Order {
  option deprecated = true;
  reserved 7, 10 to 12, 1000 to max;
  reserved "old", "older";
  string id = 1 [json_name = "ID"];
  optional int64 count = 2;
  repeated Line lines = 3 [deprecated = true, (my.field) = "x"];
  map<string, Line> by_name = 4;
  google.protobuf.Timestamp at = 8;

  oneof who {
    string name = 5;
    .shop.v1.Base base = 6;
  }

  message Line {
    double price = 1;
    Kind kind = 2;
  }

  enum Kind {
    option allow_alias = true;
    NONE = 0;
    SOME = 1;
    MANY = 1 [deprecated = true];
  }
}

service Orders {
  rpc Watch (Order) returns (stream Order);
}
"""
BASE = 'syntax = "proto3"; package shop.v1; message Base { int32 n = 1; }'
KNOWN = [(Reference("base.proto", "base", 1), BASE)]


def proto3(*members: str, package: str = "p") -> str:
    return f'syntax = "proto3"; package {package}; message M {{ {" ".join(members)} }}'


def kinds(old: str, new: str) -> list[str]:
    sides = [ProtobufSchema.parse(one).side for one in (old, new)]
    return [kind for kind, _ in compare(*sides)]


def test_a_file_is_printed_in_one_form() -> None:
    found = parse(SchemaType.PROTOBUF, EVERYTHING, KNOWN)
    assert found.canonical == PRINTED
    assert parse(SchemaType.PROTOBUF, PRINTED, KNOWN).canonical == PRINTED


def test_files_of_proto2_keep_labels_defaults_and_extensions() -> None:
    text = (
        'syntax = "proto2";\n\nmessage M {\n  extensions 100 to 199;\n  required string a = 1'
        ' [default = "x\\"y"];\n  optional int32 b = 2 [default = -3, packed = true];\n}\n\n'
        "extend M {\n  optional int32 c = 100;\n}\n"
    )
    assert ProtobufSchema.parse(text).canonical == text
    assert ProtobufSchema.parse(text.replace('syntax = "proto2";\n\n', "")).canonical == text


def test_descriptors_are_taken_and_given_in_base64() -> None:
    first = ProtobufSchema.parse(EVERYTHING, KNOWN)
    serialized = first.formatted("serialized")
    pool = descriptor_pool.DescriptorPool()
    base = ProtobufSchema.parse(BASE).formatted("serialized")
    for name, data in (("base.proto", base), ("order.proto", serialized)):
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(data))
        file.name = name
        del file.options.uninterpreted_option[:]
        for message in file.message_type:
            for field in message.field:
                del field.options.uninterpreted_option[:]
        if name == "order.proto":
            from google.protobuf import timestamp_pb2

            pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        pool.AddSerializedFile(file.SerializeToString())
    order = pool.FindMessageTypeByName("shop.v1.Order")
    assert order.fields_by_name["by_name"].message_type.GetOptions().map_entry
    assert order.fields_by_name["count"].has_presence
    again = ProtobufSchema.parse(serialized, KNOWN)
    assert ".shop.v1.Order.Line" in again.canonical
    assert compare(first.side, again.side) == compare(again.side, first.side) == []


def test_normalizing_writes_full_names() -> None:
    short = proto3("N n = 2;", "int32 a = 1;", "message N {}")
    full = proto3("int32 a = 1;", ".p.M.N n = 2;", "message N {}")
    normalized = ProtobufSchema.parse(short).normalized().canonical
    assert normalized == ProtobufSchema.parse(full).normalized().canonical


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("int32 a = 1;", "int64 b = 1;", []),
        ("int32 a = 1;", "", []),
        ("", "int32 a = 1;", []),
        ("int32 a = 1;", "bool a = 1;", []),
        ("int32 a = 1;", "sint32 a = 1;", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("int32 a = 1;", "fixed32 a = 1;", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("string a = 1;", "bytes a = 1;", []),
        ("string a = 1;", "int32 a = 1;", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("optional string a = 1;", "repeated string a = 1;", []),
        ("optional int32 a = 1;", "repeated int32 a = 1;", ["FIELD_NUMERIC_LABEL_CHANGED"]),
        ("int32 a = 1;", "N a = 1; message N {}", ["FIELD_KIND_CHANGED"]),
        ("E a = 1; enum E { X = 0; }", "int32 a = 1;", []),
        ("map<string, int32> a = 1;", "map<string, int64> a = 1;", []),
        ("map<string, int32> a = 1;", "map<string, string> a = 1;", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("map<string, int32> a = 1;", "int32 a = 1;", ["FIELD_KIND_CHANGED"]),
        ("message N {}", "", ["MESSAGE_REMOVED"]),
        ("", "message N {}", []),
        ("message N { int32 a = 1; }", "message N { string a = 1; }", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("N a = 1; message N {} message O {}", "O a = 1; message N {} message O {}",
         ["FIELD_NAMED_TYPE_CHANGED"]),
        ("M a = 1;", "M a = 1; int32 b = 2;", []),
        ("oneof o { int32 a = 1; int32 b = 2; }", "oneof o { int32 a = 1; }",
         ["ONEOF_FIELD_REMOVED"]),
        ("oneof o { int32 a = 1; }", "", []),
        ("oneof o { int32 a = 1; }", "int32 a = 1;", []),
        ("int32 a = 1;", "oneof o { int32 a = 1; }", []),
        ("int32 a = 1; int32 b = 2;", "oneof o { int32 a = 1; int32 b = 2; }",
         ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"]),
        ("int32 a = 1; oneof o { int32 b = 2; }", "oneof o { int32 a = 1; int32 b = 2; }",
         ["FIELD_MOVED_TO_EXISTING_ONEOF"]),
    ],
)  # fmt: skip
def test_a_change_is_compatible_if_all_data_survives_it(
    old: str, new: str, expected: list[str]
) -> None:
    assert kinds(proto3(old), proto3(new)) == expected


def test_packages_required_fields_and_imported_types_are_compared() -> None:
    assert kinds(proto3(), proto3(package="q")) == ["PACKAGE_CHANGED"]
    two = 'syntax = "proto2"; message M {{ {} }}'
    required = two.format("required int32 a = 1;")
    assert kinds(two.format(""), required) == ["REQUIRED_FIELD_ADDED"]
    assert kinds(required, two.format("")) == ["REQUIRED_FIELD_REMOVED"]
    text = 'syntax = "proto3"; import "base.proto"; message M { shop.v1.Base b = 1; }'
    changed = [(Reference("base.proto", "base", 2), BASE.replace("int32", "string"))]
    sides = [ProtobufSchema.parse(text, known).side for known in (KNOWN, changed)]
    found = [kind for kind, _ in compare(*sides)]
    assert found == ["FIELD_SCALAR_KIND_CHANGED", "FIELD_NAMED_TYPE_CHANGED"]


def of_descriptor(name: bytes, *fields: pb.FieldDescriptorProto) -> str:
    """Return a descriptor in base64, with a message whose name may be no text."""
    file = pb.FileDescriptorProto(message_type=[pb.DescriptorProto(name="M", field=fields)])
    data = file.SerializeToString().replace(b"\n\x01M", b"\n\x01" + name)
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    "text",
    [
        "message",
        "message M {",
        'syntax = "proto4";',
        'edition = "2023";',
        'syntax = "proto3"; import "none.proto";',
        proto3("int32 a = 0;"),
        proto3("int32 a = 536870912;"),
        proto3("int32 a = 1; int32 b = 1;"),
        proto3("int32 a = 1; int32 a = 2;"),
        proto3("Unknown a = 1;"),
        proto3("required int32 a = 1;"),
        proto3("message N {} message N {}"),
        proto3("int32 a = 1 [deprecated = maybe];"),
        proto3("reserved 5 to 3;"),
        proto3("option (a = 1;"),
        proto3('string a = 1; string b = "'),
        "message M { int32 a = 1; }",
        "message M {" * 500 + "}" * 500,
        "é",
        "AAAA",
        of_descriptor(b"\xff"),
        of_descriptor(b"M", pb.FieldDescriptorProto(name="a", number=1, type=5, oneof_index=3)),
        "package " + "a" * 1_001 + "; message M {}",
        f"message {'A' * 600} {{ message {'B' * 600} {{}} }}",
        f"message {'A' * 600} {{ enum {'B' * 600} {{ X = 0; }} }}",
        "{" * 100_000,
    ],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchema):
        parse(SchemaType.PROTOBUF, text, ())


def test_a_message_with_thousands_of_fields_is_compared() -> None:
    fields = [f"M f{number} = {number};" for number in range(1, 3000)]
    assert kinds(proto3(*fields), proto3(*fields)) == []

"""JSON Schemas: what is one, and which changes data does not survive."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tidelog_core.schemas.json_schema.comparison import compare
from tidelog_core.schemas.json_schema.matching import largest_matching_size
from tidelog_core.schemas.json_schema.schema import JsonSchema
from tidelog_core.schemas.languages import parse, problems
from tidelog_core.schemas.model import Compatibility, Reference, SchemaType
from tidelog_core.schemas.parsed_schema import InvalidSchema, TooComplex


def of(document: Any) -> JsonSchema:
    return JsonSchema.parse(json.dumps(document))


def kinds(old: Any, new: Any) -> list[str]:
    return [kind for kind, _ in compare(of(old).root, of(new).root)]


def obj(properties: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties or {}, **more}


INT, TEXT = {"type": "integer"}, {"type": "string"}
OPEN, CLOSED = obj({"a": INT}), obj({"a": INT}, additionalProperties=False)
TREE = {"$ref": "#/definitions/T", "definitions": {"T": obj({"next": {"$ref": "#"}})}}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (INT, {}, []),
        (INT, True, []),
        (False, INT, []),
        ({}, INT, ["TYPE_CHANGED"]),
        (INT, TEXT, ["TYPE_CHANGED"]),
        (INT, {"type": "number"}, []),
        ({"type": "number"}, INT, ["TYPE_NARROWED"]),
        (TEXT, {"type": ["string", "null"]}, []),
        ({"type": ["string", "null"]}, TEXT, ["TYPE_CHANGED"]),
        (INT, {"oneOf": [TEXT, INT]}, []),
        ({"oneOf": [TEXT, INT]}, {"oneOf": [INT]}, ["SUM_TYPE_NARROWED"]),
        ({"oneOf": [TEXT, INT]}, {"anyOf": [INT, TEXT]}, []),
        ({"anyOf": [TEXT, INT]}, {"oneOf": [INT, TEXT]}, ["COMBINED_TYPE_CHANGED"]),
        ({"allOf": [OPEN]}, {"allOf": [OPEN, INT]}, ["PRODUCT_TYPE_EXTENDED"]),
        (
            {"oneOf": [TEXT, INT]},
            {"oneOf": [TEXT, {"type": "null"}]},
            ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"],
        ),
        ({"not": INT}, {"not": {"type": "number"}}, ["NOT_TYPE_EXTENDED"]),
        ({"not": {"type": "number"}}, {"not": INT}, []),
        ({"enum": [1, 2]}, {"enum": [2, 1, 3]}, []),
        ({"enum": [1, 2]}, {"enum": [1]}, ["ENUM_ARRAY_NARROWED"]),
        ({"enum": [1, 2]}, {"enum": [1, 3]}, ["ENUM_ARRAY_CHANGED"]),
        ({"const": 1}, {"const": 2}, ["ENUM_ARRAY_CHANGED"]),
        ({"maxLength": 5}, {"maxLength": 6}, []),
        ({"maxLength": 5}, {"maxLength": 4}, ["MAX_LENGTH_DECREASED"]),
        (TEXT, {**TEXT, "pattern": "a"}, ["PATTERN_ADDED"]),
        ({**INT, "minimum": 1}, {**INT, "minimum": 2}, ["MINIMUM_INCREASED"]),
        ({**INT, "multipleOf": 4}, {**INT, "multipleOf": 2}, []),
        ({**INT, "multipleOf": 2}, {**INT, "multipleOf": 4}, ["MULTIPLE_OF_EXPANDED"]),
        ({**INT, "multipleOf": 0.5}, {**INT, "multipleOf": 0.50}, []),
        (obj(), OPEN, ["OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
        (obj(), obj({"a": {}}), []),
        (obj(additionalProperties=False), CLOSED, []),
        (
            obj(additionalProperties=False),
            {**CLOSED, "required": ["a"]},
            ["REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"],
        ),
        (
            obj(additionalProperties=False),
            obj({"a": {**INT, "default": 1}}, required=["a"], additionalProperties=False),
            [],
        ),
        (OPEN, obj(), []),
        (CLOSED, obj(additionalProperties=False), ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
        (OPEN, {**OPEN, "required": ["a"]}, ["REQUIRED_ATTRIBUTE_ADDED"]),
        (OPEN, CLOSED, ["ADDITIONAL_PROPERTIES_REMOVED"]),
        (
            obj(additionalProperties=TEXT),
            obj({"a": INT}, additionalProperties=TEXT),
            ["TYPE_CHANGED", "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
        ),
        (
            obj(patternProperties={"^a": INT}, additionalProperties=False),
            obj({"ab": INT}, patternProperties={"^a": INT}, additionalProperties=False),
            [],
        ),
        (obj(dependencies={"a": ["b", "c"]}), obj(dependencies={"a": ["b"]}), []),
        (obj(), obj(dependencies={"a": ["b"]}), ["DEPENDENCY_ARRAY_ADDED"]),
        ({"items": INT}, {"items": {"type": "number"}}, []),
        ({"items": INT}, {"items": TEXT}, ["TYPE_CHANGED"]),
        (
            {"items": [INT], "additionalItems": False},
            {"items": [INT, TEXT], "additionalItems": False},
            [],
        ),
        ({"items": [INT]}, {"items": [INT, TEXT]}, ["ITEM_ADDED_TO_OPEN_CONTENT_MODEL"]),
        ({"items": [INT], "minItems": 1}, {"items": [INT], "minItems": 0}, []),
        (TREE, TREE, []),
        ({**TEXT, "connect.type": "bytes"}, {"type": "number", "connect.type": "bytes"}, []),
    ],
)
def test_a_change_is_compatible_if_all_data_survives_it(
    old: Any, new: Any, expected: list[str]
) -> None:
    assert kinds(old, new) == expected


def test_a_change_behind_a_cycle_is_found() -> None:
    changed = json.loads(json.dumps(TREE))
    changed["definitions"]["T"]["properties"]["value"] = INT
    assert set(kinds(TREE, changed)) == {"OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"}


def test_references_lead_to_other_schemas_by_name_pointer_anchor_and_id() -> None:
    other = json.dumps({"definitions": {"a/b": {"$anchor": "here", **INT}}})
    known = [(Reference("other.json", "o", 1), other)]
    for reference in ("other.json#/definitions/a~1b", "other.json#here"):
        text = json.dumps(obj({"a": {"$ref": reference}}))
        found = parse(SchemaType.JSON, text, known)
        assert found.canonical == text.replace(" ", "")
    base = {"$id": "http://x/root.json", **obj({"a": {"$ref": "other.json"}})}
    parse(SchemaType.JSON, json.dumps(base), [(Reference("http://x/other.json", "o", 1), other)])


@pytest.mark.parametrize(
    "document",
    [
        1,
        None,
        [],
        {"type": "text"},
        {"type": []},
        {"properties": []},
        {"properties": {"a": 1}},
        {"required": "a"},
        {"enum": []},
        {"anyOf": {}},
        {"maxLength": "1"},
        {"minimum": "1"},
        {"$ref": "#/definitions/none"},
        {"$ref": "unknown.json"},
        {"$ref": "#"},
        {"dependencies": {"a": [1]}},
        {"exclusiveMaximum": "1"},
        {"$id": "http://[x", "not": {"$ref": "a"}},
        {"$ref": "http://[x#a"},
        {"$id": "http://x/" + "a/" * 1_000, "not": {"$id": "a"}},
    ],
)
def test_what_is_no_schema_is_refused(document: Any) -> None:
    with pytest.raises(InvalidSchema):
        parse(SchemaType.JSON, json.dumps(document), ())


def test_deep_schemas_are_refused() -> None:
    text = '{"not":' * 500 + "{}" + "}" * 500
    with pytest.raises(InvalidSchema):
        parse(SchemaType.JSON, text, ())


def test_many_choices_within_each_other_end_the_comparison() -> None:
    def choices(count: int, start: int) -> dict[str, Any]:
        return {"oneOf": [{"const": start + one} for one in range(count)]}

    with pytest.raises(TooComplex):
        kinds(choices(230, 0), choices(230, 600))
    definitions: dict[str, Any] = {"D0": INT}
    for number in range(1, 30):
        reference = {"$ref": f"#/definitions/D{number - 1}"}
        definitions[f"D{number}"] = {"oneOf": [obj({"a": reference}), obj({"b": reference})]}
    tree = {"$ref": "#/definitions/D29", "definitions": definitions}
    assert kinds(tree, tree) == []


def test_messages_say_kind_and_place() -> None:
    found = problems(Compatibility.BACKWARD, of(obj()), [(2, of(CLOSED))])
    assert found == []
    found = problems(Compatibility.BACKWARD, of(CLOSED), [(2, of(obj({"a": INT, "b": INT})))])
    assert found[0] == (
        '{errorType:"PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", description:"A property or item'
        " at path '#/properties/b' differs between the new and the old schema'}"
    )


def test_normalizing_sorts_members() -> None:
    one, other = '{"type":"object","a":{"c":1,"b":2}}', '{"a":{"b":2,"c":1},"type":"object"}'
    assert JsonSchema.parse(one).normalized().canonical == other


@pytest.mark.parametrize(
    ("edges", "size"),
    [([], 0), ([[0], [0]], 1), ([[0, 1], [0]], 2), ([[0], [0, 1], [1, 2], [2]], 3), ([[], [1]], 1)],
)
def test_the_largest_matching_is_found(edges: list[list[int]], size: int) -> None:
    assert largest_matching_size(edges) == size


def test_required_may_be_true_as_in_draft_3() -> None:
    assert kinds(obj({"a": {**INT, "required": True}}), obj({"a": INT})) == []
    assert of({"type": "object", "required": True}).root.required == frozenset()


def test_types_that_are_named_many_times_count_once() -> None:
    """Otherwise each would have a list of all properties, gigabytes of them."""
    properties = {f"p{number}": {} for number in range(10_000)}
    document = {"type": ["object", "null"] * 5_000, "properties": properties}
    assert len(of(document).root.parts) == 2


MANY_OBJECTS = {"oneOf": [{"type": "object", "maxProperties": one} for one in range(5_000)]}
MANY_ENUMS = {"oneOf": [{"enum": [-one]} for one in range(1, 5_000)]}
MANY_NAMES = {
    "definitions": {"T": INT},
    "oneOf": [{"$ref": "#/definitions/T", "title": str(one)} for one in range(2_000)],
}
MANY_PATTERNS = {
    "type": "object",
    "patternProperties": {f"^x{one}": INT for one in range(100)},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (obj({f"p{one}": INT for one in range(9_000)}), MANY_OBJECTS),
        ({"enum": list(range(30_000))}, MANY_ENUMS),
        (MANY_NAMES, {**MANY_NAMES, "title": "x"}),
        (obj({f"p{one}": INT for one in range(3_000)}), MANY_PATTERNS),
    ],
    ids=["properties", "enum", "one of many names", "patterns"],
)
def test_large_parts_compared_with_many_small_ones_end_the_comparison(old: Any, new: Any) -> None:
    """Otherwise each of these takes minutes."""
    with pytest.raises(TooComplex):
        kinds(old, new)

"""Schemas with random changes: each is refused as one, or stored in a form that is read again."""

from __future__ import annotations

import json
import random

import pytest
from tidelog_core.schemas.languages import parse, problems
from tidelog_core.schemas.model import Compatibility, SchemaType
from tidelog_core.schemas.parsed_schema import InvalidSchema

from tests.core.schemas.test_protobuf import EVERYTHING

TEXTS = {
    SchemaType.AVRO: (
        '{"type":"record","name":"R","namespace":"a.b","doc":"d","aliases":["x"],"fields":['
        '{"name":"a","type":["null","R",{"type":"array","items":"int"}],"default":null},'
        '{"name":"e","type":{"type":"enum","name":"E","symbols":["A","B"],"default":"A"}},'
        '{"name":"f","type":{"type":"fixed","name":"F","size":4}},'
        '{"name":"m","type":{"type":"map","values":{"type":"bytes","logicalType":"decimal"}}}]}'
    ),
    SchemaType.JSON: json.dumps(
        {
            "$id": "x",
            "definitions": {
                "T": {
                    "type": ["object", "null"],
                    "properties": {"a": {"$ref": "#/definitions/T"}},
                    "required": ["a"],
                    "dependencies": {"a": ["b"], "c": {"type": "string"}},
                }
            },
            "oneOf": [{"$ref": "#/definitions/T"}, {"enum": [1]}, {"const": 2}],
            "not": {"type": "integer", "multipleOf": 0.5, "minimum": 1},
            "patternProperties": {"^a": {"items": [{"maxLength": 3}], "additionalItems": False}},
        }
    ),
    SchemaType.PROTOBUF: EVERYTHING.replace('import public "base.proto";\n', "").replace(
        " .shop.v1.Base base = 6;", ""
    ),
}
PIECES = (
    *('{"a":', "}", "[", "]", '"', ",", ":", "0", "-1", "null", "true", "1e999", "{}", "[]", '""'),
    *(";", "=", '"type":', "message M {}", "\\ud800", "é", "9" * 30, "map<string, M> x = 1;"),
    *("oneof o {", "[default = 1]", "option a = 1;", "reserved 1;", "extend R {}", "/*"),
)


def mutated(chance: random.Random, text: str) -> str:
    """Return the text with one to four changes."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            text = text[:at] + text[at + chance.randint(1, 12) :]
        elif kind == 1:
            text = text[:at] + chance.choice(PIECES) + text[at:]
        elif kind == 2:
            text = text[:at] + chr(chance.randrange(0x3000)) + text[at + 1 :]
        else:
            other = chance.choice(list(TEXTS.values()))
            start = chance.randrange(len(other))
            text = text[:at] + other[start : start + chance.randint(1, 60)] + text[at:]
    return text


@pytest.mark.parametrize("language", list(SchemaType))
def test_a_changed_schema_is_refused_or_stored_in_one_form(language: SchemaType) -> None:
    chance = random.Random(f"mutated {language}")
    old = parse(language, TEXTS[language], ())
    taken = 0
    for _ in range(1_000):
        text = mutated(chance, TEXTS[language])
        try:
            found = parse(language, text, ())
            problems(Compatibility.FULL, found, [(1, old)])
        except InvalidSchema:
            continue
        taken += 1
        for one in (found, found.normalized()):
            assert parse(language, one.canonical, ()).canonical == one.canonical, text
    assert taken > 20

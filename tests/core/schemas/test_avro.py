"""Avro schemas: what is one, how it is stored, and which reads data of which.

The judge of compatibility is ``avro.compatibility`` of PyPI's ``avro``, over random pairs.
"""

from __future__ import annotations

import json
import random
from typing import Any

import avro.compatibility
import avro.errors
import avro.schema
import pytest
from tidelog_core.schemas.avro.schema import AvroSchema
from tidelog_core.schemas.languages import parse, problems
from tidelog_core.schemas.model import Compatibility, Reference, SchemaType
from tidelog_core.schemas.parsed_schema import InvalidSchema, TooComplex

USER = {
    "type": "record",
    "name": "User",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}],
}


def canonical(text: str, *known: str) -> str:
    return AvroSchema.parse(text, known).canonical


def with_fields(*fields: Any) -> str:
    return json.dumps({**USER, "fields": [*USER["fields"], *fields]})


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("string", '"string"'),
        (' {"type" : "string"}', '"string"'),
        ('{"type":"int","logicalType":"date"}', '{"type":"int","logicalType":"date"}'),
        (
            '{"namespace":"a.b","name":"R","type":"record","doc":"d","fields":'
            '[{"type":["null","a.b.R"],"name":"next","default":null,"x":1,"doc":"more"}],'
            '"aliases":["Q"],"y":[1]}',
            '{"type":"record","name":"R","namespace":"a.b","doc":"d","fields":'
            '[{"name":"next","type":["null","R"],"doc":"more","default":null,"x":1}],'
            '"y":[1],"aliases":["Q"]}',
        ),
        (
            '{"type":"record","name":"a.R","fields":[{"name":"e","type":'
            '{"type":"enum","name":"E","symbols":["A","B"],"default":"A"}},'
            '{"name":"f","type":{"type":"fixed","name":"b.F","size":4},"order":"ignore"},'
            '{"name":"m","type":{"type":"map","values":"E"}},'
            '{"name":"n","type":{"type":"array","items":"b.F"}}]}',
            '{"type":"record","name":"R","namespace":"a","fields":[{"name":"e","type":'
            '{"type":"enum","name":"E","symbols":["A","B"],"default":"A"}},'
            '{"name":"f","type":{"type":"fixed","name":"F","namespace":"b","size":4},'
            '"order":"ignore"},'
            '{"name":"m","type":{"type":"map","values":"E"}},'
            '{"name":"n","type":{"type":"array","items":"b.F"}}]}',
        ),
    ],
)
def test_a_schema_is_stored_as_avro_java_prints_it(given: str, stored: str) -> None:
    assert canonical(given) == stored
    assert canonical(stored) == stored


def test_types_of_references_are_named_and_written_out_on_demand() -> None:
    text = '{"type":"record","name":"Order","fields":[{"name":"by","type":"shop.User"}]}'
    found = AvroSchema.parse(text, [json.dumps(USER)])
    assert found.canonical == text
    assert '"name":"User","namespace":"shop"' in found.formatted("resolved")


def test_normalizing_sorts_properties_and_aliases() -> None:
    one = '{"type":"bytes","z":1,"scale":2,"precision":4,"logicalType":"decimal","a":{"d":1,"c":2}}'
    other = (
        '{"type":"bytes","a":{"c":2,"d":1},"logicalType":"decimal","precision":4,"scale":2,"z":1}'
    )
    assert canonical(one) != canonical(other)
    normalized = AvroSchema.parse(one).normalized().canonical
    assert normalized == AvroSchema.parse(other).normalized().canonical
    assert normalized == (
        '{"type":"bytes","logicalType":"decimal","precision":4,"scale":2,"a":{"c":2,"d":1},"z":1}'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        '{"type":"int","x":1e999}',
        '{"type":"int","x":"\\ud800"}',
        '{"type":"array","items":' * 500 + '"int"' + "}" * 500,
        "null1",
        "1",
        '{"type":"record","name":"R"}',
        '{"type":"record","name":"1R","fields":[]}',
        '{"type":"record","name":"R","fields":[{"name":"a"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":2147483648}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"X"}]}',
        '{"type":"enum","name":"E","symbols":["A","A"]}',
        '{"type":"enum","name":"E","symbols":["A"],"default":"B"}',
        '{"type":"fixed","name":"F","size":-1}',
        '["int","int"]',
        '["int",["string"]]',
        '{"type":"int","x":NaN}',
        '{"type":{"type":"int"}}',
    ],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchema):
        parse(SchemaType.AVRO, text, ())


def test_messages_name_kind_place_and_both_sides() -> None:
    old = AvroSchema.parse(json.dumps(USER))
    new = AvroSchema.parse(with_fields({"name": "mail", "type": "string"}))
    found = problems(Compatibility.BACKWARD, new, [(3, old)])
    assert found == [
        "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'mail' at path"
        " '/fields/1' in the new schema has no default value and is missing in the old schema',"
        " additionalInfo:'mail'}",
        "{oldSchemaVersion: 3}",
        f"{{oldSchema: '{old.canonical}'}}",
        "{validateFields: 'false', compatibility: 'BACKWARD'}",
    ]


@pytest.mark.parametrize(
    ("level", "field", "is_allowed"),
    [
        ("BACKWARD", {"name": "a", "type": "string"}, False),
        ("BACKWARD", {"name": "a", "type": "string", "default": ""}, True),
        ("FORWARD", {"name": "a", "type": "string"}, True),
        ("FULL", {"name": "a", "type": "string"}, False),
        ("FULL", {"name": "a", "type": "string", "default": ""}, True),
        ("NONE", {"name": "a", "type": "string"}, True),
    ],
)
def test_levels_say_who_reads_whom(level: str, field: Any, is_allowed: bool) -> None:
    old, new = AvroSchema.parse(json.dumps(USER)), AvroSchema.parse(with_fields(field))
    assert (not problems(Compatibility(level), new, [(1, old)])) is is_allowed


def test_transitive_levels_look_at_all_versions() -> None:
    first = AvroSchema.parse(with_fields({"name": "a", "type": "string"}))
    second = AvroSchema.parse(json.dumps(USER))
    third = AvroSchema.parse(with_fields({"name": "a", "type": "int", "default": 1}))
    older = [(1, first), (2, second)]
    assert not problems(Compatibility.BACKWARD, third, older)
    assert problems(Compatibility.BACKWARD_TRANSITIVE, third, older)


def test_a_record_that_has_itself_is_compared_once() -> None:
    tree = (
        '{"type":"record","name":"T","fields":[{"name":"c","type":{"type":"array","items":"T"}}%s]}'
    )
    old = AvroSchema.parse(tree % "")
    new = AvroSchema.parse(tree % ',{"name":"v","type":"int","default":0}')
    assert new.problems_reading(old) == []


def test_many_paths_to_one_type_take_few_steps() -> None:
    """Forty types, each three times in the next: 3^40 paths."""
    types: list[Any] = [{"type": "record", "name": "R0", "fields": []}]
    for number in range(1, 40):
        fields = [{"name": f"f{i}", "type": f"R{number - 1}"} for i in range(3)]
        types.append({"type": "record", "name": f"R{number}", "fields": fields})
    text = json.dumps(types)
    assert AvroSchema.parse(text).problems_reading(AvroSchema.parse(text)) == []


def random_type(chance: random.Random, depth: int, names: list[int]) -> Any:
    simple = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    kinds = ["simple"] * 5 + (["array", "map", "union", "record", "enum", "fixed"] if depth else [])
    kind = chance.choice(kinds)
    if kind == "simple":
        return chance.choice(simple)
    if kind in ("array", "map"):
        member = "items" if kind == "array" else "values"
        return {"type": kind, member: random_type(chance, depth - 1, names)}
    if kind == "union":
        return chance.sample(simple, chance.randint(1, 4))
    names[0] += 1
    name = f"N{names[0]}"
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": chance.randint(1, 2)}
    if kind == "enum":
        made: dict[str, Any] = {"type": "enum", "name": name}
        made["symbols"] = chance.sample(["A", "B", "C"], chance.randint(1, 3))
        return made
    fields = []
    for field in chance.sample(["a", "b", "c"], chance.randint(0, 3)):
        of = random_type(chance, depth - 1, names)
        fields.append({"name": field, "type": of})
        if of in ("int", "long"):
            fields[-1].update({"default": 1} if chance.random() < 0.5 else {})
    return {"type": "record", "name": name, "fields": fields}


def test_random_pairs_are_judged_as_by_pypi_avro() -> None:
    chance = random.Random("pairs of avro schemas")
    verdicts = {True: 0, False: 0}
    for _ in range(1500):
        reader, writer = (random_type(chance, 3, [0]) for _ in range(2))
        if chance.random() < 0.5:
            writer = mutated(chance, reader)
        one, other = json.dumps(reader), json.dumps(writer)
        judged = avro.compatibility.ReaderWriterCompatibilityChecker().get_compatibility(
            avro.schema.parse(one), avro.schema.parse(other)
        )
        expected = judged.compatibility is avro.compatibility.SchemaCompatibilityType.compatible
        found = AvroSchema.parse(one).problems_reading(AvroSchema.parse(other))
        assert (not found) is expected, (one, other, found, judged)
        verdicts[expected] += 1
    assert min(verdicts.values()) > 200, verdicts


def mutated(chance: random.Random, of: Any) -> Any:
    """Return a type like it, with some parts changed."""
    if isinstance(of, str):
        return chance.choice([of, of, "int", "long", "string"])
    if isinstance(of, list):
        return chance.sample(of, chance.randint(1, len(of)))
    made = dict(of)
    for member in ("items", "values"):
        if member in made:
            made[member] = mutated(chance, made[member])
    if "fields" in made:
        kept = [one for one in made["fields"] if chance.random() < 0.8]
        made["fields"] = [{"name": f["name"], "type": mutated(chance, f["type"])} for f in kept]
    if "symbols" in made:
        made["symbols"] = chance.sample(["A", "B", "C"], chance.randint(1, 3))
    return made


def test_equal_schemas_have_one_guid_and_references_count() -> None:
    from tidelog_core.schemas.model import Schema

    plain = Schema(SchemaType.AVRO, '"int"')
    assert plain.guid == Schema(SchemaType.AVRO, '"int"').guid
    others = {
        Schema(SchemaType.AVRO, '"int"', (Reference("a", "b", 1),)).guid,
        Schema(SchemaType.AVRO, '"int"', metadata="{}").guid,
        Schema(SchemaType.AVRO, '"long"').guid,
    }
    assert len(others | {plain.guid}) == 4


def test_defaults_that_have_each_other_twice_are_refused() -> None:
    records = ['{"type":"record","name":"R0","fields":[]}']
    for number in range(1, 60):
        fields = ",".join(
            f'{{"name":"{name}","type":"R{number - 1}","default":{{}}}}' for name in "ab"
        )
        records.append(f'{{"type":"record","name":"R{number}","fields":[{fields}]}}')
    with pytest.raises(TooComplex):
        parse(SchemaType.AVRO, f"[{','.join(records)}]", ())


def test_wide_schemas_are_compared_in_time_in_proportion_to_them() -> None:
    """Otherwise this takes minutes."""
    symbols = [f"s{number}" for number in range(40_000)]
    one = json.dumps({"type": "enum", "name": "E", "symbols": symbols})
    other = json.dumps({"type": "enum", "name": "E", "symbols": symbols[::-1]})
    assert reading(one, other) == []
    fields = [{"name": f"f{number}", "type": "int"} for number in range(9_000)]
    one = json.dumps({"type": "record", "name": "R", "fields": fields})
    other = json.dumps({"type": "record", "name": "R", "fields": fields[::-1]})
    assert reading(one, other) == []


def test_a_wide_schema_compared_with_many_small_ones_ends_the_comparison() -> None:
    symbols = [f"s{number}" for number in range(30_000)]
    wide = json.dumps({"type": "enum", "name": "E", "symbols": symbols})
    small = [{"type": "enum", "name": f"E{number}", "symbols": ["a"]} for number in range(5_000)]
    with pytest.raises(TooComplex):
        reading(wide, json.dumps(small))
    aliases = [{"name": "f", "type": "int", "aliases": symbols}]
    wide = json.dumps({"type": "record", "name": "E", "fields": aliases})
    records = [{"type": "record", "name": f"E{number}", "fields": []} for number in range(5_000)]
    with pytest.raises(TooComplex):
        reading(wide, json.dumps(records))


def reading(reader: str, writer: str) -> list[str]:
    return AvroSchema.parse(reader).problems_reading(AvroSchema.parse(writer))

"""The checker of requests, held against a library's."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_functions.admin.contract import load_contract
from tidelog_functions.admin.schema import Checker, Schema

SCHEMAS: dict[str, Schema] = load_contract().document["components"]["schemas"]
ASKED = sorted(
    {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        for operations in load_contract().document["paths"].values()
        for operation in operations.values()
        if "requestBody" in operation
    }
)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below),
    max_leaves=4,
)


def values(schema: Schema, *, are_right: bool = False) -> st.SearchStrategy[Any]:
    """Values as the schema wants them; unless all are to be right, many are almost so."""
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    right: st.SearchStrategy[Any]
    match schema["type"]:
        case "object":
            properties = schema.get("properties", {}).items()
            fields = {name: values(one, are_right=are_right) for name, one in properties}
            required = schema.get("required", ())
            others = schema.get("additionalProperties")
            right = st.fixed_dictionaries(
                {name: fields[name] for name in required},
                optional={name: fields[name] for name in fields if name not in required},
            )
            if isinstance(others, dict):
                right = st.dictionaries(
                    st.text(max_size=3), values(others, are_right=are_right), max_size=3
                )
            wrong = st.builds(dict.__or__, right, st.dictionaries(st.text(max_size=3), anything))
            return right if are_right else st.one_of(right, right, right, wrong, anything)
        case "array":
            right = st.lists(values(schema["items"], are_right=are_right), max_size=3)
        case "string":
            right = st.sampled_from(schema["enum"]) if "enum" in schema else st.text(min_size=1)
        case "integer":
            low, high = schema["minimum"], schema["maximum"]
            # To JSON Schema 1.0 is a whole number too.
            floats = st.integers(low, high).filter(lambda n: abs(n) < 2**53).map(float)
            right = st.one_of(st.sampled_from([low, high]), st.integers(low, high), floats)
            wrong = st.sampled_from([low - 1, high + 1])
            return right if are_right else st.one_of(*[right] * 6, wrong, anything)
        case _:
            right = st.booleans()
    return right if are_right else st.one_of(*[right] * 10, anything)


@pytest.mark.parametrize("reference", ASKED)
def test_what_is_refused_is_what_a_library_refuses(reference: str) -> None:
    asked: Schema = {"$ref": reference}
    library = jsonschema_rs.Draft202012Validator({**asked, "components": {"schemas": SCHEMAS}})
    verdicts = set()

    @settings(deadline=None, max_examples=200, derandomize=True, database=None)
    @given(values(asked) | values(asked, are_right=True))
    def compare(value: Any) -> None:
        problems: list[str] = []
        Checker(SCHEMAS).check(asked, value, "body", problems)
        assert (not problems) == library.is_valid(value), problems
        verdicts.add(not problems)

    compare()
    assert verdicts == {True, False}

"""The document, and that what is served is what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog_core.security.operations import OPERATIONS as OPERATIONS_OF_NODES
from tidelog_functions.admin.api import GET_DOCUMENT, OPERATIONS
from tidelog_functions.admin.contract import load_contract
from tidelog_functions.admin.rights import RIGHTS
from tidelog_functions.admin.schema import ANNOTATIONS, CHECKED


def test_every_operation_of_the_document_is_served_and_no_other() -> None:
    assert load_contract().operation_names == OPERATIONS.keys() | {GET_DOCUMENT}


def test_what_requests_must_be_is_said_only_in_words_that_are_checked() -> None:
    document = load_contract().document
    schemas = document["components"]["schemas"]
    asked = [p["schema"] for p in document["components"]["parameters"].values()]
    asked += [
        operation["requestBody"]["content"]["application/json"]["schema"]
        for operations in document["paths"].values()
        for operation in operations.values()
        if "requestBody" in operation
    ]
    said = set()
    for schema in asked:
        for part in _parts(schema, schemas):
            said |= part.keys()
            if part.get("type") == "integer":
                assert {"minimum", "maximum"} <= part.keys(), part
            if part.get("type") == "object":
                assert "additionalProperties" in part, part
    assert said - ANNOTATIONS <= CHECKED


def test_every_operation_tells_of_missing_identities_and_stores_that_are_away() -> None:
    for operations in load_contract().document["paths"].values():
        for operation in operations.values():
            assert {"400", "401", "429", "500", "503"} <= operation["responses"].keys()
            needs = OPERATIONS_OF_NODES[RIGHTS[operation["operationId"]].api_key].needs
            assert ("403" in operation["responses"]) or not needs


def _parts(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    yield schema
    for below in (*schema.get("properties", {}).values(), schema.get("items")):
        if below is not None:
            yield from _parts(below, schemas)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _parts(schema["additionalProperties"], schemas)

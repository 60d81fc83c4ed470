"""The contract: a request's operation, parameters and body, checked by ``openapi.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from tidelog_functions.admin.caller import NOBODY, Caller
from tidelog_functions.admin.http import JSON_TYPE, HttpRequest
from tidelog_functions.admin.problems import HttpProblem
from tidelog_functions.admin.schema import Checker, Schema

DOCUMENT = Path(__file__).with_name("openapi.json")
QUERY_FIELDS_MAX = 20
PROBLEMS_REPORTED_MAX = 20


@dataclass(frozen=True, slots=True)
class Call:
    """A checked request of a known operation."""

    operation: str
    parameters: Mapping[str, Any]  # of path and query; includes defaults
    body: Mapping[str, Any]  # empty if the operation has none
    caller: Caller = NOBODY


@dataclass(frozen=True, slots=True)
class _Operation:
    name: str
    path_parameters: Mapping[str, Schema]
    query_parameters: Mapping[str, Schema]
    required: frozenset[str]
    body: Schema | None


@dataclass(frozen=True, slots=True)
class _Route:
    segments: tuple[str, ...]
    operations: Mapping[str, _Operation]  # by method

    def match(self, segments: tuple[str, ...]) -> dict[str, str] | None:
        """Return the path's parameters, or ``None`` if the path does not match."""
        if len(segments) != len(self.segments):
            return None
        found = {}
        for template, segment in zip(self.segments, segments, strict=True):
            if template.startswith("{") and segment:
                found[template[1:-1]] = segment
            elif template != segment:
                return None
        return found


class Contract:
    """The routes and schemas of an OpenAPI document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        components = document["components"]
        self._checker = Checker(components["schemas"])
        routes = [
            _Route(
                tuple(path.split("/")[1:]),
                {
                    method.upper(): _operation(operation, components["parameters"])
                    for method, operation in operations.items()
                },
            )
            for path, operations in document["paths"].items()
        ]
        # Fixed segments have precedence over parameters.
        self._routes = sorted(routes, key=lambda r: [s.startswith("{") for s in r.segments])

    @property
    def operation_names(self) -> frozenset[str]:
        """Return the names of all operations of the document."""
        return frozenset(
            operation.name for route in self._routes for operation in route.operations.values()
        )

    def read(self, request: HttpRequest) -> Call:
        """Return the call. Raises ``HttpProblem``."""
        operation, given = self._find(request)
        problems: list[str] = []
        parameters: dict[str, Any] = {}
        for name, schema in operation.path_parameters.items():
            parameters[name] = self._parameter(schema, given[name], name, problems)
        parameters |= self._read_query(operation, request.query, problems)
        if problems:
            raise HttpProblem(400, _sentence(problems))
        return Call(operation.name, parameters, self._read_body(operation, request))

    def _find(self, request: HttpRequest) -> tuple[_Operation, dict[str, str]]:
        segments = tuple(request.path.split("/")[1:])
        for route in self._routes:
            given = route.match(segments)
            if given is None:
                continue
            operation = route.operations.get(request.method)
            if operation is None:
                allowed = ", ".join(sorted(route.operations))
                raise HttpProblem(
                    405,
                    f"{request.path} takes {allowed}, not {request.method}.",
                    headers={"allow": allowed},
                )
            return operation, given
        raise HttpProblem(404, f"The path {request.path} does not exist; see /openapi.json.")

    def _read_query(self, operation: _Operation, query: str, problems: list[str]) -> dict[str, Any]:
        known = operation.query_parameters
        values = {name: schema["default"] for name, schema in known.items() if "default" in schema}
        try:
            pairs = parse_qsl(
                query,
                keep_blank_values=True,
                errors="strict",
                max_num_fields=QUERY_FIELDS_MAX,
            )
        except ValueError as error:
            problems.append(f"the query cannot be read: {error}")
            return values
        seen: set[str] = set()
        for name, text in pairs:
            schema = known.get(name)
            if schema is None:
                allowed = ", ".join(known) or "none"
                problems.append(f"unknown query parameter {name!r}; known are {allowed}")
            elif name in seen:
                problems.append(f"query parameter {name!r} is given more than once")
            else:
                values[name] = self._parameter(schema, text, name, problems)
            seen.add(name)
        problems += [
            f"query parameter {name!r} is required"
            for name in known
            if name in operation.required and name not in seen
        ]
        return values

    def _parameter(self, schema: Schema, text: str, name: str, problems: list[str]) -> Any:
        value: Any = text
        match schema["type"]:
            case "integer" if text.isascii() and text.removeprefix("-").isdigit():
                value = int(text) if len(text) <= 20 else text
            case "boolean" if text in ("true", "false"):
                value = text == "true"
        return self._checker.check(schema, value, name, problems)

    def _read_body(self, operation: _Operation, request: HttpRequest) -> Mapping[str, Any]:
        if operation.body is None:
            if request.body:
                raise HttpProblem(400, f"{request.method} {request.path} takes no body.")
            return {}
        if not request.body:
            raise HttpProblem(400, f"{request.method} {request.path} needs a body of JSON.")
        kind = (request.content_type or JSON_TYPE).partition(";")[0].strip().lower()
        if kind != JSON_TYPE:
            raise HttpProblem(415, f"The body must be {JSON_TYPE}, not {kind!r}.")
        problems: list[str] = []
        body = self._checker.check(operation.body, parse_json(request.body), "body", problems)
        if problems:
            raise HttpProblem(400, _sentence(problems))
        checked: Mapping[str, Any] = body
        return checked


@cache
def load_contract() -> Contract:
    """Return the contract of ``openapi.json``."""
    return Contract(json.loads(DOCUMENT.read_bytes()))


def parse_json(data: bytes) -> Any:
    """Return the value. Raises ``HttpProblem``, also for a repeated field."""
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise HttpProblem(400, f"The body is not JSON: {error}.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r} is given more than once")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def _operation(operation: Mapping[str, Any], known: Mapping[str, Any]) -> _Operation:
    parameters = [known[p["$ref"].rpartition("/")[2]] for p in operation.get("parameters", ())]
    body = operation.get("requestBody")
    return _Operation(
        name=operation["operationId"],
        path_parameters={p["name"]: p["schema"] for p in parameters if p["in"] == "path"},
        query_parameters={p["name"]: p["schema"] for p in parameters if p["in"] == "query"},
        required=frozenset(p["name"] for p in parameters if p["required"]),
        body=None if body is None else body["content"][JSON_TYPE]["schema"],
    )


def _sentence(problems: list[str]) -> str:
    text = "; ".join(problems[:PROBLEMS_REPORTED_MAX])
    more = len(problems) - PROBLEMS_REPORTED_MAX
    return f"{text}{f'; and {more} more' if more > 0 else ''}."

"""The HTTP calls of the registry, their answers, and what a caller may do. No I/O."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote

from tidelog_core.schema_registry.api.audited_changes import Change
from tidelog_core.schema_registry.reading import LATEST
from tidelog_core.schema_registry.registration import ANY_ID, NEXT_VERSION
from tidelog_core.schema_registry.registry import Wanted
from tidelog_core.schemas.model import (
    EXTRAS_CHARACTERS_MAX,
    ID_MAX,
    REFERENCES_MAX,
    Reference,
    Schema,
    SchemaType,
    compact_json,
)
from tidelog_core.schemas.refusals import (
    RegistryRefusal,
    invalid_schema,
    invalid_subject,
    invalid_version,
)
from tidelog_core.schemas.subject_names import is_valid_subject

V1_JSON = "application/vnd.schemaregistry.v1+json"
JSON_TYPES = (V1_JSON, "application/vnd.schemaregistry+json", "application/json")
FORBIDDEN = 40301
OCTETS = "application/octet-stream"
QUERY_FIELDS_MAX = 50
STRINGS_MAX = 10_000  # of a body; its schema is one
STRUCTURE_BYTES_MAX = 100_000  # of a body, beside its strings
EXTRAS_DEPTH_MAX = 50  # of metadata and rule sets, which every reader parses


class Right(Enum):
    """What a caller does to a subject, or to everything."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    READ_SETTINGS = "read settings"
    WRITE_SETTINGS = "write settings"


class Permissions(Protocol):
    """What the caller of one request may do."""

    def may(self, right: Right, subject: str) -> bool:
        """Return whether the caller may do it to the subject; "": to everything."""

    def sees(self, right: Right, subject: str) -> bool:
        """Return whether a list that the caller asked for shows the subject."""


class AllPermissions:
    """The permissions of a caller where there is no authorizer."""

    def may(self, right: Right, subject: str) -> bool:
        """Return true."""
        del right, subject
        return True

    def sees(self, right: Right, subject: str) -> bool:
        """Return true."""
        return self.may(right, subject)


@dataclass(frozen=True, slots=True)
class Call:
    """A request: its path without the query, and that, both as they were sent."""

    method: str
    path: str
    query: str = ""
    body: bytes = b""
    content_type: str = ""
    accept: str = ""
    permissions: Permissions = field(default_factory=AllPermissions)

    @property
    def segments(self) -> list[str]:
        """The decoded parts of the path."""
        parts = self.path.split("/")[1:]
        return [unquote(one) for one in parts if one]

    def options(self) -> Options:
        """Return the fields of the query. Raises ``RegistryRefusal``."""
        try:
            found = parse_qs(self.query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
        except ValueError:
            raise RegistryRefusal(400, "HTTP 400 Bad Request") from None
        return Options({name: values[-1] for name, values in found.items()}, found)

    def json(self) -> Mapping[str, Any]:
        """Return the object in the body. Raises ``RegistryRefusal``."""
        kind = self.content_type.partition(";")[0].strip().lower()
        if kind and kind not in (*JSON_TYPES, OCTETS):
            raise RegistryRefusal(415, "HTTP 415 Unsupported Media Type")
        if b"\0" in self.body:
            raise RegistryRefusal(400, "the body is no JSON in UTF-8")
        if _has_too_many_values(self.body):
            raise RegistryRefusal(413, "the body has more values than a schema can need")
        try:
            value = json.loads(self.body) if self.body else None
            compact_json(value).encode()  # Half of a surrogate pair is no text.
        except (ValueError, RecursionError) as error:
            raise RegistryRefusal(400, f"the body is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise RegistryRefusal(422, "the body must be a JSON object")
        return value

    def answer_type(self) -> str:
        """Return the type of the answer that the client takes. Raises ``RegistryRefusal``."""
        kinds = [one.partition(";")[0].strip().lower() for one in self.accept.split(",")]
        for kind in kinds:
            if kind in ("", "*/*", "application/*"):
                return V1_JSON
            if kind in JSON_TYPES:
                return kind
        raise RegistryRefusal(406, "HTTP 406 Not Acceptable")


@dataclass(frozen=True, slots=True)
class Options:
    """The fields of a query."""

    values: Mapping[str, str]  # the last of each name
    repeated: Mapping[str, Sequence[str]] = field(default_factory=dict)  # all of them

    def text(self, name: str, default: str = "") -> str:
        """Return a field's text."""
        return self.values.get(name, default)

    def is_set(self, name: str) -> bool:
        """Return whether a field is true, in letters of any case."""
        return self.values.get(name, "").lower() == "true"

    def number(self, name: str, default: int) -> int:
        """Return a number. Raises ``RegistryRefusal``."""
        text = self.values.get(name)
        return default if text is None else _number(text)

    def window(self, count_max: int) -> tuple[int, int]:
        """Return ``offset``, and ``limit`` up to a maximum; a limit below 0 is none."""
        start, limit = max(self.number("offset", 0), 0), self.number("limit", -1)
        return start, count_max if limit < 0 else min(limit, count_max)

    def page(self, found: Sequence[Any]) -> list[Any]:
        """Return the part that ``offset`` and ``limit`` name."""
        start, count_max = self.window(len(found))
        return list(found[start : start + count_max])


Handle = Callable[[Call, Options, list[str]], Awaitable[object]]
Require = Callable[[Call, Right, str], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. Its body is JSON, or a raw schema, which is sent as it is."""

    status: int
    body: bytes
    content_type: str = V1_JSON
    change: Change | None = None  # what the call has changed, or was not allowed to

    @classmethod
    def of(cls, value: object, content_type: str = V1_JSON, status: int = 200) -> Answer:
        """Return the answer with a value; one that is bytes is the body itself."""
        if isinstance(value, bytes):
            return cls(status, value, content_type)
        return cls(status, compact_json(value).encode(errors="replace"), content_type)

    @classmethod
    def refused(cls, error_code: int, message: str, content_type: str = V1_JSON) -> Answer:
        """Return the answer to a request that fails."""
        body = {"error_code": error_code, "message": message}
        return cls.of(body, content_type, int(str(error_code)[:3]))


def forbidden(right: Right, what: str) -> RegistryRefusal:
    """Return the refusal of a caller who has no right."""
    return RegistryRefusal(FORBIDDEN, f"User is denied operation {right.value} on {what}")


def parse_version(text: str) -> int:
    """Return a version, ``LATEST`` for «latest» and -1. Raises ``RegistryRefusal``."""
    if text.strip().lower() == "latest":
        return LATEST
    try:
        version = int(text) if text.strip().lstrip("+-").isascii() else 0
    except ValueError:
        version = 0
    if version != LATEST and not 1 <= version <= ID_MAX:
        raise invalid_version(text)
    return version


def parse_id(text: str) -> int:
    """Return the id in a path. Raises ``RegistryRefusal``."""
    return _number(text)


def _number(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        raise RegistryRefusal(404, "HTTP 404 Not Found")
    number = int(text)
    if number > ID_MAX:
        raise RegistryRefusal(404, "HTTP 404 Not Found")
    return number


def parse_wanted(body: Mapping[str, Any]) -> Wanted:
    """Return the schema of a request's body. Raises ``RegistryRefusal``."""
    text = body.get("schema")
    if text is not None and not isinstance(text, str):
        raise invalid_schema("the schema must be a text: JSON in a JSON string")
    name = body.get("schemaType") or SchemaType.AVRO.value
    if name not in SchemaType.__members__:
        types = ", ".join(SchemaType)
        raise invalid_schema(f"Invalid schema type {name!r}: there are {types}")
    schema = Schema(
        SchemaType(name),
        text or "",
        tuple(_reference(one) for one in _list(body.get("references"))),
        _extra(body, "metadata"),
        _extra(body, "ruleSet"),
    )
    return Wanted(schema, _int(body, "id", ANY_ID), max(_int(body, "version", 0), NEXT_VERSION))


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid_schema("references must be a list")
    if len(value) > REFERENCES_MAX:  # Before each is looked at.
        raise invalid_schema(
            f"{len(value)} references, allowed are {REFERENCES_MAX}: let one of them refer to"
            " others"
        )
    return value


def _reference(value: Any) -> Reference:
    if not isinstance(value, dict):
        raise invalid_schema("a reference must be an object")
    name, subject, version = (value.get(one) for one in ("name", "subject", "version"))
    if not (isinstance(name, str) and isinstance(subject, str) and type(version) is int):
        raise invalid_schema("a reference needs the texts name and subject, and the number version")
    if version != LATEST and not 1 <= version <= ID_MAX:
        raise invalid_version(str(version))
    if not is_valid_subject(subject):
        raise invalid_subject(subject)
    return Reference(name, subject, version)


def _extra(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, dict):
        raise RegistryRefusal(422, f"{name} must be an object")
    text = compact_json(value)
    if len(text) <= EXTRAS_CHARACTERS_MAX and _is_deep(value):  # Longer ones are refused anyway.
        raise RegistryRefusal(422, f"{name} nests more than {EXTRAS_DEPTH_MAX} times")
    return text


def _has_too_many_values(body: bytes) -> bool:
    """Return whether a body of JSON in UTF-8 is not mostly one schema's text.

    To parse millions of small values would hold up the event loop, in a thread too: the parser
    keeps the interpreter's lock.
    """
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * STRINGS_MAX:
        return True
    return sum(map(len, plain.split(b'"')[::2])) > STRUCTURE_BYTES_MAX


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(EXTRAS_DEPTH_MAX):
        parts = (one.values() if isinstance(one, dict) else one for one in level)
        level = [part for some in parts for part in some if isinstance(part, dict | list)]
    return bool(level)


def _int(body: Mapping[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or not -1 <= value <= ID_MAX:
        raise RegistryRefusal(422, f"{name} must be a whole number up to {ID_MAX}")
    return value

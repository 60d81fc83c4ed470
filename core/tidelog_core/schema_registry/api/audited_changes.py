"""The changes that calls of the registry make, as audit logs name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Operation(StrEnum):
    """What a call changes, as audit logs name it."""

    REGISTER = "RegisterSchema"
    DELETE_SUBJECT = "DeleteSubject"
    DELETE_VERSION = "DeleteSchemaVersion"
    SET_CONFIG = "SetSchemaConfig"
    DELETE_CONFIG = "DeleteSchemaConfig"
    SET_MODE = "SetSchemaMode"
    DELETE_MODE = "DeleteSchemaMode"


@dataclass(frozen=True, slots=True)
class Change:
    """A change, or an attempt at one."""

    operation: Operation
    subject: str  # "": everything
    data: Mapping[str, str] = field(default_factory=dict)
    error_code: int = 0  # 0: it was made


class Unchanged(dict[str, Any]):
    """The answer to a call that had nothing to change."""


def change_of(
    method: str, segments: list[str], options: Mapping[str, str], value: object, error_code: int
) -> Change | None:
    """Return the change of a call with its answer, ``None`` if it is to change nothing."""
    if isinstance(value, Unchanged):
        return None
    operation = _operation(method, segments)
    if operation is None:
        return None
    place = 0 if segments[0] in ("config", "mode") else 1
    subject = segments[1] if len(segments) > 1 or place else ""
    data = {} if error_code else _data(value)
    if operation is Operation.DELETE_VERSION:
        data["version"] = segments[3]
    if operation in (Operation.DELETE_VERSION, Operation.DELETE_SUBJECT):
        data["permanent"] = options.get("permanent", "false").lower()
    return Change(operation, subject, data, error_code)


_OPERATIONS = {
    ("POST", "subjects", 3): Operation.REGISTER,
    ("DELETE", "subjects", 2): Operation.DELETE_SUBJECT,
    ("DELETE", "subjects", 4): Operation.DELETE_VERSION,
    **{("PUT", "config", count): Operation.SET_CONFIG for count in (1, 2)},
    **{("DELETE", "config", count): Operation.DELETE_CONFIG for count in (1, 2)},
    **{("PUT", "mode", count): Operation.SET_MODE for count in (1, 2)},
    **{("DELETE", "mode", count): Operation.DELETE_MODE for count in (1, 2)},
}


def _operation(method: str, segments: list[str]) -> Operation | None:
    if not segments or (segments[0] == "subjects" and segments[2:3] not in ([], ["versions"])):
        return None
    return _OPERATIONS.get((method, segments[0], len(segments)))


def _data(value: object) -> dict[str, str]:
    """Return the data of a change in an answer, without schemas."""
    if isinstance(value, list):
        return {"versions": ", ".join(map(str, value))}
    if not isinstance(value, Mapping):
        return {}
    shown = ("id", "version", "schemaType", "compatibility", "compatibilityLevel", "mode")
    return {name: str(value[name]) for name in (*shown, "normalize") if name in value}

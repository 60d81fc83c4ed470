"""The kinds of calls of the registry, as metrics name them."""

from __future__ import annotations

from enum import StrEnum


class CallKind(StrEnum):
    """The kind of a call."""

    READ = "read"
    LOOK_UP = "look_up"  # whether, and as what, a schema is registered
    CHECK = "check"  # whether a schema is compatible
    REGISTER = "register"
    DELETE = "delete"
    READ_SETTINGS = "read_settings"
    CHANGE_SETTINGS = "change_settings"
    OTHER = "other"  # of paths or methods that there are not


def kind_of(method: str, segments: list[str]) -> CallKind:
    """Return the kind of a call."""
    first = segments[0] if segments else ""
    is_read = method in ("GET", "HEAD")
    if first in ("config", "mode"):
        if is_read:
            return CallKind.READ_SETTINGS
        return CallKind.CHANGE_SETTINGS if method in ("PUT", "DELETE") else CallKind.OTHER
    if first == "compatibility" and method == "POST":
        return CallKind.CHECK
    if first == "subjects" and method == "POST":
        return CallKind.REGISTER if segments[2:] == ["versions"] else CallKind.LOOK_UP
    if first == "subjects" and method == "DELETE":
        return CallKind.DELETE
    is_known = first in ("", "subjects", "schemas", "contexts", "v1")
    return CallKind.READ if is_read and is_known else CallKind.OTHER

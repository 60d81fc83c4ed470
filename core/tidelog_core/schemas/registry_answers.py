"""References of schemas, in the answers of a registry's REST API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidelog_core.schemas.model import RESOLVED_MAX, Reference
from tidelog_core.schemas.parsed_schema import InvalidSchema

FindVersion = Callable[[str, int], Mapping[str, Any]]
"""Returns the registry's answer for a version of a subject, which may be deleted."""


def resolve_answer(
    answer: Mapping[str, Any], find_version: FindVersion
) -> tuple[tuple[Reference, str], ...]:
    """Return the schemas that the schema refers to, the innermost first.

    A version is asked for once. Raises ``InvalidSchema`` if there are more than ``RESOLVED_MAX``,
    what ``find_version`` raises, and ``KeyError``, ``TypeError``, ``ValueError`` or
    ``AttributeError`` for a body that is no answer of a registry.
    """
    known: dict[tuple[str, int], tuple[Reference, str]] = {}
    _resolve(answer, find_version, known, set())
    return tuple(known.values())


def _resolve(
    answer: Mapping[str, Any],
    find_version: FindVersion,
    known: dict[tuple[str, int], tuple[Reference, str]],
    visited: set[tuple[str, int]],
) -> None:
    for one in answer.get("references") or ():
        reference = Reference(str(one["name"]), str(one["subject"]), int(one["version"]))
        key = reference.subject, reference.version
        if key in visited:
            continue
        visited.add(key)
        if len(visited) > RESOLVED_MAX:
            raise InvalidSchema(f"it refers to more than {RESOLVED_MAX} schemas")
        found = find_version(*key)
        _resolve(found, find_version, known, visited)
        known[key] = reference, str(found["schema"])

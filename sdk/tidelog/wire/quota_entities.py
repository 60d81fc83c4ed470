"""The entities of quotas in one form: programs and nodes may write an address differently."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tidelog_core.errors import InvalidRequest
from tidelog_core.quotas.quota_entity import DEFAULT, ENTITY_TYPES, QuotaEntity, quota_entity


def same_form(entity: QuotaEntity) -> QuotaEntity:
    """Return the entity as answers name it; one that cannot be is as it was."""
    try:
        return quota_entity(dict(entity.parts()))
    except (InvalidRequest, TypeError):  # The latter of a name that is no text.
        return entity


def answered_entity(parts: Mapping[str, str | None]) -> Hashable:
    """Return the entity of an answer, by the types of its names."""
    if not parts.keys() <= set(ENTITY_TYPES):
        return frozenset(parts.items())  # A type that came later.
    names = (parts[kind] or DEFAULT if kind in parts else None for kind in ENTITY_TYPES)
    return same_form(QuotaEntity(*names))

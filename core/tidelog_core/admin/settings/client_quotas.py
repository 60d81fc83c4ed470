"""Describes and alters clients' quotas.

Source: KIP-546; Kafka's ``ClientQuotaControlManager`` and ``ClientQuotasImage``, their codes and
messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelog_core.admin.batch_changes import commit_each
from tidelog_core.errors import (
    InvalidRequest,
    TidelogError,
    UnsupportedVersion,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import put
from tidelog_core.metadata.security.client_quotas import entity_quotas, quota_id, quota_key
from tidelog_core.metadata.store import ABSENT, ANY_VERSION, MetadataStore, Write
from tidelog_core.quotas.client_quotas import Quotas
from tidelog_core.quotas.quota_entity import (
    CLIENT_ID,
    ENTITY_TYPES,
    IP,
    USER,
    QuotaEntity,
    quota_entity,
)
from tidelog_core.quotas.quota_keys import checked_quota
from tidelog_core.turns import Turn

CHANGES_MAX = 10_000  # entities that one request alters

Names = Mapping[str, str | None]  # of an entity, by their types; ``None`` is the default
EntityKey = tuple[tuple[str, str | None], ...]  # the same, sorted


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """New values of an entity's quotas by their keys; ``None`` removes one."""

    names: Names
    values: Sequence[tuple[str, float | None]]


class QuotaAdmin:
    """Alters quotas. For the tasks of one event loop."""

    def __init__(self, store: MetadataStore, view: ClusterView) -> None:
        """The view shows quotas (``shows_security``)."""
        self._store = store
        self._view = view

    async def alter(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool
    ) -> dict[EntityKey, TidelogError | None]:
        """Make the alterations; return the error of each entity, ``None`` if it was altered.

        Each entity is altered wholly or not at all, independently of the others. One that is named
        twice is not altered. Durable on return, and the view's image shows them. Errors are
        ``InvalidRequest`` and those of the store.
        """
        wanted: dict[EntityKey, tuple[QuotaEntity, dict[str, float | None]]] = {}
        refused: dict[EntityKey, TidelogError] = {}
        turn = Turn()
        for one in alterations:
            await turn.step()
            key = entity_key(one.names)
            try:
                if key in wanted or key in refused:
                    wanted.pop(key, None)
                    raise InvalidRequest(f"Ignoring duplicate entity {_shown(one.names)}")
                if len(alterations) > CHANGES_MAX:
                    raise InvalidRequest(
                        f"{len(alterations)} entities in one request, allowed are {CHANGES_MAX}"
                    )
                wanted[key] = _checked(one)
            except InvalidRequest as error:
                refused[key] = error.with_traceback(None)
        done = await commit_each(
            self._store, self._view, wanted, _decide, validate_only=validate_only
        )
        return {**done, **refused}


def entity_key(names: Names) -> EntityKey:
    """Return the names as a key."""
    return tuple(sorted(names.items()))


def _shown(names: Names) -> str:
    parts = (f"{kind} {name or '<default>'}" for kind, name in sorted(names.items()))
    return ", ".join(parts)


def _checked(one: QuotaAlteration) -> tuple[QuotaEntity, dict[str, float | None]]:
    values = dict(one.values)
    if len(values) < len(one.values):
        raise InvalidRequest(f"A quota key twice for {_shown(one.names)}")
    entity = quota_entity(one.names)
    for name, value in one.values:
        if value is not None:
            checked_quota(entity, name, value)
    return entity, values


def _decide(
    image: ClusterImage, wanted: tuple[QuotaEntity, Mapping[str, float | None]]
) -> list[Write]:
    """Return the write that alters the entity's quotas, none if they are so."""
    entity, changes = wanted
    key = quota_key(quota_id(entity))
    record = image.quotas.records.get(key.key)
    before = {} if record is None else record.values
    after = {name: value for name, value in {**before, **changes}.items() if value is not None}
    is_damaged = key in image.unreadable
    if after == before and not is_damaged:
        return []
    version = ABSENT if record is None else record.version
    if is_damaged:
        version = ANY_VERSION
    if not after:
        return [Write(key, None, version)]
    return [put(entity_quotas(entity, after, version=version))]


# -- describing --


@dataclass(frozen=True, slots=True)
class EntityFilter:
    """The entities to describe, by type: those of this name, or of any.

    ``None`` as a name is the default. A ``strict`` filter leaves out entities that also have a part
    of another type.
    """

    exact: Mapping[str, str | None]
    any_name: frozenset[str]
    strict: bool

    def check(self) -> None:
        """Raise ``UnsupportedVersion`` or ``InvalidRequest`` for types that do not go together."""
        types = {*self.exact, *self.any_name}
        for kind in types:
            if not kind:
                raise InvalidRequest("Invalid empty entity type.")
            if kind not in ENTITY_TYPES:
                raise UnsupportedVersion(f"Unsupported entity type {kind}")
        if IP in types and types & {USER, CLIENT_ID}:
            raise InvalidRequest(
                "Invalid entity filter component combination. IP filter component should not be"
                " used with user or clientId filter component."
            )

    def matches(self, parts: Names) -> bool:
        """Return whether it fits an entity."""
        if self.strict and len(parts) != len(self.exact) + len(self.any_name):
            return False
        return (
            all(kind in parts and parts[kind] == name for kind, name in self.exact.items())
            and self.any_name <= parts.keys()
        )


async def find_quotas(
    image: ClusterImage, entity_filter: EntityFilter
) -> list[tuple[Names, Quotas]]:
    """Return the entities that the filter fits, with their quotas. Other tasks run in between."""
    found: list[tuple[Names, Quotas]] = []
    turn = Turn()
    for record in image.quotas.records.values():
        await turn.step()
        parts = dict(record.entity.parts())
        if entity_filter.matches(parts):
            found.append((parts, record.values))
    return found

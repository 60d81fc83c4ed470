"""The records of clients' quotas, and all of them in an image.

One item for each entity. Its key is a digest of the entity, because names may be longer than a key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from tidelog_core.errors import InvalidRequest
from tidelog_core.metadata.fields import Stored
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import ItemKey, JsonValue
from tidelog_core.quotas.client_quotas import ClientQuotas
from tidelog_core.quotas.quota_entity import QuotaEntity, quota_entity
from tidelog_core.quotas.quota_keys import checked_quota

QUOTA_COLLECTION = "client-quota"


@key_form
def quota_key(quota_id: str) -> ItemKey:
    """Return the key of the quotas of the entity with this digest."""
    return ItemKey(QUOTA_COLLECTION, f"{quota_id}")


def quota_id(entity: QuotaEntity) -> str:
    """Return the digest of an entity: SHA-256 of its stored form, in hexadecimal digits."""
    text = json.dumps(dict(entity.parts()), ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _read_entity(value: Any, before: Mapping[str, Any]) -> QuotaEntity:
    """Return a stored entity. Raises ``ValueError``."""
    if not isinstance(value, Mapping):
        raise ValueError("it has no entity")
    if not all(name is None or isinstance(name, str) for name in value.values()):
        raise ValueError("an entity's names must be texts or null")
    try:
        entity = quota_entity(value)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None
    if quota_id(entity) != before["quota_id"]:
        raise ValueError("it is not the entity of its key")
    return entity


def _write_entity(record: EntityQuotas) -> JsonValue:
    return dict(record.entity.parts())


def _read_values(value: Any, before: Mapping[str, Any]) -> Mapping[str, float]:
    """Return stored quotas. Raises ``ValueError``."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError("it has no quotas")
    for name, rate in value.items():
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise ValueError(f"{name} is not a number")
        try:
            checked_quota(before["entity"], name, rate)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
    return value


def _write_values(record: EntityQuotas) -> JsonValue:
    return dict(record.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityQuotas(Record):
    """The quotas of one entity, at least one. ``entity_quotas`` makes it."""

    KEY = quota_key

    quota_id: str
    entity: Annotated[QuotaEntity, Stored(_read_entity, _write_entity)]
    values: Annotated[Mapping[str, float], Stored(_read_values, _write_values)]


def entity_quotas(
    entity: QuotaEntity, values: Mapping[str, float], *, version: int
) -> EntityQuotas:
    """Return the record of an entity's quotas, which replaces the one of ``version``."""
    return EntityQuotas(
        quota_id=quota_id(entity),
        entity=entity,
        values=dict(sorted(values.items())),
        version=version,
    )


@dataclass(frozen=True)
class QuotaRecords:
    """The quotas of an image. Never changed."""

    records: Mapping[str, EntityQuotas] = field(default_factory=dict)  # by ``quota_id``
    quotas: ClientQuotas = field(default_factory=ClientQuotas)

    def with_changes(self, changed: Mapping[str, EntityQuotas | None]) -> QuotaRecords:
        """Return it with these records by their ``quota_id``; ``None`` removes one."""
        records = {**self.records, **changed}
        kept = {key: record for key, record in records.items() if record is not None}
        by_entity = {record.entity: record.values for record in kept.values()}
        return QuotaRecords(kept, ClientQuotas.of(by_entity))

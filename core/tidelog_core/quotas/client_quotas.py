"""All quotas of a cluster, and which of them counts for a client. Source: KIP-55, KIP-257."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog_core.quotas.quota_entity import DEFAULT, QuotaEntity
from tidelog_core.quotas.quota_keys import QuotaKey

Quotas = Mapping[str, float]  # the values by their keys' names

# Kafka accepts any quota above 0. At lower ones than this, times to wait would not be finite, and a
# node's part would be 0. At this one already, one unit means a wait of thousands of years.
RATE_MIN = 1e-12


class Limit(NamedTuple):
    """The rate that counts for a client, and those who share it."""

    # The user and the client id whose requests count together. An empty one means all: a user's
    # clients share the quota of the user, and all users of a client id its quota.
    shared_by: tuple[str, str]
    rate: float  # a second; at least ``RATE_MIN``


@dataclass(frozen=True)
class ClientQuotas:
    """The quotas of each entity. Never changed: ``with_changes`` returns others."""

    by_entity: Mapping[QuotaEntity, Quotas] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()  # of any entity

    @classmethod
    def of(cls, by_entity: Mapping[QuotaEntity, Quotas]) -> ClientQuotas:
        """Return these quotas. Entities without any are left out."""
        kept = {entity: quotas for entity, quotas in by_entity.items() if quotas}
        return cls(kept, frozenset(key for quotas in kept.values() for key in quotas))

    def limit(self, key: QuotaKey, user: str, client_id: str) -> Limit | None:
        """Return the limit of a client, ``None`` if it has none.

        The most specific entity counts, and a named user before a named client id. An empty
        client id belongs to no quota that is about client ids. Source: Kafka's
        ``ClientQuotaManager``.
        """
        name = key.value
        if name not in self.keys:
            return None
        entities = [QuotaEntity(user), QuotaEntity(DEFAULT)]
        if client_id:
            entities = [
                QuotaEntity(user, client_id),
                QuotaEntity(user, DEFAULT),
                QuotaEntity(user),
                QuotaEntity(DEFAULT, client_id),
                QuotaEntity(DEFAULT, DEFAULT),
                QuotaEntity(DEFAULT),
                QuotaEntity(None, client_id),
                QuotaEntity(None, DEFAULT),
            ]
        for entity in entities:
            rate = self.by_entity.get(entity, {}).get(name)
            if rate is not None:
                by_user = "" if entity.user is None else user
                shared_by = (by_user, "" if entity.client_id is None else client_id)
                return Limit(shared_by, max(rate, RATE_MIN))
        return None

    def connection_rate(self, address: str) -> float | None:
        """Return how many connections a second may come from an address, ``None``: any number."""
        name = QuotaKey.CONNECTION_CREATION_RATE.value
        if name not in self.keys:
            return None
        for entity in (QuotaEntity(ip=address), QuotaEntity(ip=DEFAULT)):
            rate = self.by_entity.get(entity, {}).get(name)
            if rate is not None:
                return max(rate, RATE_MIN)
        return None

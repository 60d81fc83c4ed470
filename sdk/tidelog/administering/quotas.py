"""Admin calls for clients' quotas. Source: KIP-546."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kio.schema.alter_client_quotas.v1.request import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from kio.schema.describe_client_quotas.v1.request import ComponentData, DescribeClientQuotasRequest
from tidelog_core.errors import InvalidRequest
from tidelog_core.quota_messages import USES_MAX, DescribeQuotaUseRequest
from tidelog_core.quotas.quota_entity import QuotaEntity, quota_entity
from tidelog_core.wire_messages import build

from tidelog.administering.calls import AdminCalls
from tidelog.administering.results import QuotaUse
from tidelog.errors import MalformedResponse
from tidelog.given_values import instance, integer, mapping
from tidelog.wire.quota_entities import same_form
from tidelog.wire.requests import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS, DESCRIBE_QUOTA_USE

EVERY_ENTITY = QuotaEntity()
_EXACT, _DEFAULT = 0, 1  # match types


class QuotaCalls(AdminCalls):
    """Admin calls for quotas."""

    async def describe_quotas(
        self, wanted: QuotaEntity = EVERY_ENTITY
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas by their names, of all entities that have the parts of ``wanted``.

        ``QuotaEntity(user="alice")`` wants those of alice, and of her clients too.
        """
        instance(wanted, QuotaEntity, "wanted")
        request = build(
            DescribeClientQuotasRequest,
            components=tuple(
                build(
                    ComponentData,
                    entity_type=kind,
                    match_type=_DEFAULT if name is None else _EXACT,
                    match=name,
                )
                for kind, name in wanted.parts()
            ),
            strict=False,
        )

        response = await self._ask(DESCRIBE_CLIENT_QUOTAS, request, about="quotas")
        return {
            _entity(entry): {one.key: float(one.value) for one in entry.values}
            for entry in response.entries or ()
        }

    async def alter_quotas(
        self,
        alterations: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Set quotas by their names; ``None`` removes one. They count within the poll interval.

        Each entity is altered wholly or not at all. Raises ``InvalidRequest`` for one that cannot
        be, ``SeveralFailed`` for several.
        """
        wanted: dict[QuotaEntity, dict[str, float | None]] = {}
        for entity, values in mapping(alterations, "alterations", "an entity: its quotas").items():
            instance(entity, QuotaEntity, "each entity")
            quotas = mapping(values, "the quotas of an entity", "a name: a value or None")
            wanted.setdefault(same_form(entity), {}).update(quotas)

        def request_for(left: list[QuotaEntity]) -> object:
            return build(
                AlterClientQuotasRequest,
                entries=tuple(_alteration(entity, wanted[entity]) for entity in left),
                validate_only=validate_only,
            )

        await self._ask_for_each(ALTER_CLIENT_QUOTAS, wanted, request_for, what="quotas of")

    async def describe_quota_use(self, *, count: int = 20) -> list[QuotaUse]:
        """Return the quotas that clients use most on any node, the most used first.

        At most ``count`` of each node, up to 1,000. Each node measures for itself. Raises
        ``UnsupportedVersion`` for Kafka's brokers, which do not tell it.
        """
        if not 1 <= integer(count, "count") <= USES_MAX:
            raise InvalidRequest(f"count {count} must be from 1 to {USES_MAX}")
        await self.start()
        request = build(DescribeQuotaUseRequest, count=count)

        async def ask(node_id: int) -> list[QuotaUse]:
            about = f"quotas of node {node_id}"
            response = await self._ask(DESCRIBE_QUOTA_USE, request, about=about, node_id=node_id)
            return [
                QuotaUse(
                    node_id,
                    one.key,
                    one.user,
                    one.client_id,
                    float(one.quota),
                    float(one.part),
                    float(one.rate),
                    int(one.throttle_time_ms),
                )
                for one in response.uses
            ]

        of_nodes = await asyncio.gather(*map(ask, sorted(self._cluster.nodes)))
        uses = [use for of_node in of_nodes for use in of_node]
        return sorted(uses, key=lambda one: one.rate / one.part, reverse=True)


def _alteration(entity: QuotaEntity, values: Mapping[str, float | None]) -> object:
    return build(
        EntryData,
        entity=tuple(
            build(EntityData, entity_type=kind, entity_name=name) for kind, name in entity.parts()
        ),
        ops=tuple(
            build(
                OpData,
                key=key,
                value=0.0 if value is None else float(value),
                remove=value is None,
            )
            for key, value in values.items()
        ),
    )


def _entity(entry: Any) -> QuotaEntity:
    """Return the entity. Raises ``MalformedResponse`` for one of types that came later."""
    try:
        return quota_entity({part.entity_type: part.entity_name for part in entry.entity})
    except InvalidRequest as error:
        raise MalformedResponse(f"an entity of the node: {error}") from error

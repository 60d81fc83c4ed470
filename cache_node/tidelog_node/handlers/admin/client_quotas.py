"""DescribeClientQuotas, AlterClientQuotas, and DescribeQuotaUse, which is Tidelog's own.

Source: KIP-546; Kafka's ``ClientQuotasImage``.
"""

from __future__ import annotations

import heapq

from kio.schema.alter_client_quotas.v1 import request as alter_request
from kio.schema.alter_client_quotas.v1 import response as alter_response
from kio.schema.describe_client_quotas.v1 import request as describe_request
from kio.schema.describe_client_quotas.v1 import response as describe_response
from tidelog_core.admin.settings.client_quotas import (
    EntityFilter,
    QuotaAdmin,
    QuotaAlteration,
    entity_key,
    find_quotas,
)
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import InvalidRequest, StoreUnavailable, UnsupportedVersion
from tidelog_core.quota_messages import (
    DESCRIBE_QUOTA_USE_KEY,
    USES_MAX,
    DescribeQuotaUseRequest,
    DescribeQuotaUseResponse,
    QuotaUse,
)

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.administration import admin_outcome
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.throttling.rate_limit import RateLimit
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.wire.messages import build

INT_32_MAX = 2**31 - 1
_EXACT, _DEFAULT, _ANY = 0, 1, 2  # match types
_MATCH_NAMES = {_DEFAULT: "MATCH_TYPE_DEFAULT", _ANY: "MATCH_TYPE_SPECIFIED"}


class QuotaHandlers:
    """Shows and changes clients' quotas, and shows their use."""

    def __init__(self, node: NodeContext, *, throttle: Throttle) -> None:
        self._view = node.view
        self._throttle = throttle
        self._admin = QuotaAdmin(node.store, node.view)

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, self.describe),
            Route(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, self.alter),
            Route(DESCRIBE_QUOTA_USE_KEY, 0, 0, self.describe_use),
        ]

    async def describe(
        self, request: describe_request.DescribeClientQuotasRequest, _: RequestContext
    ) -> describe_response.DescribeClientQuotasResponse:
        """Answer DescribeClientQuotas."""
        try:
            wanted = _filter(request)
        except (InvalidRequest, UnsupportedVersion) as error:
            return admin_outcome(
                describe_response.DescribeClientQuotasResponse, error, entries=None
            )
        try:
            image = await self._view.refresh()
        except StoreUnavailable:
            image = self._view.image
        found = await find_quotas(image, wanted)
        turn = RequestTurn()
        return admin_outcome(
            describe_response.DescribeClientQuotasResponse,
            None,
            entries=tuple(
                [
                    build(
                        describe_response.EntryData,
                        entity=tuple(
                            build(describe_response.EntityData, entity_type=kind, entity_name=name)
                            for kind, name in names.items()
                        ),
                        values=tuple(
                            build(describe_response.ValueData, key=key, value=float(value))
                            for key, value in quotas.items()
                        ),
                    )
                    async for names, quotas in turn.each(found)
                ]
            ),
        )

    async def alter(
        self, request: alter_request.AlterClientQuotasRequest, _: RequestContext
    ) -> alter_response.AlterClientQuotasResponse:
        """Answer AlterClientQuotas once the quotas are in the store and in this node's image."""
        turn = RequestTurn()
        alterations = [
            QuotaAlteration(
                {part.entity_type: part.entity_name for part in entry.entity},
                [(op.key, None if op.remove else op.value) for op in entry.ops],
            )
            async for entry in turn.each(request.entries)
        ]
        outcomes = await self._admin.alter(alterations, validate_only=request.validate_only)
        # One entry for each entity, even if the request names it twice: so does Kafka.
        entities = {entity_key(one.names): one.names for one in alterations}
        return build(
            alter_response.AlterClientQuotasResponse,
            entries=tuple(
                [
                    admin_outcome(
                        alter_response.EntryData,
                        outcomes[key],
                        entity=tuple(
                            build(alter_response.EntityData, entity_type=kind, entity_name=name)
                            for kind, name in names.items()
                        ),
                    )
                    async for key, names in turn.each(entities.items())
                ]
            ),
        )

    async def describe_use(
        self, request: DescribeQuotaUseRequest, _: RequestContext
    ) -> DescribeQuotaUseResponse:
        """Answer DescribeQuotaUse. Limits that nobody has used in the windows are left out."""
        now_ms, turn = self._throttle.now_ms(), RequestTurn()
        count = min(max(request.count, 0), USES_MAX)
        # A heap of the most used ones so far: a whole sort would be one long turn. No two have
        # the same key, so limits are never compared.
        most: list[tuple[float, str, str, str, float, RateLimit]] = []
        async for limit in turn.each(self._throttle.limits() if count else ()):
            rate = limit.meter.rate(now_ms) if limit.rate else 0.0
            if rate <= 0:
                continue
            used = (rate / limit.rate, *limit.key[1], limit.key[0].value, rate, limit)
            if len(most) < count:
                heapq.heappush(most, used)
            else:
                heapq.heappushpop(most, used)
        most.sort(reverse=True)
        return admin_outcome(
            DescribeQuotaUseResponse,
            None,
            uses=tuple(
                [
                    build(
                        QuotaUse,
                        key=key,
                        user=user,
                        client_id=client_id,
                        quota=limit.quota,
                        part=limit.rate,
                        rate=rate,
                        throttle_time_ms=min(
                            limit.meter.throttle_ms(limit.rate, now_ms), INT_32_MAX
                        ),
                    )
                    async for _, user, client_id, key, rate, limit in turn.each(most)
                ]
            ),
        )


def _filter(request: describe_request.DescribeClientQuotasRequest) -> EntityFilter:
    """Return the filter. Raises ``InvalidRequest`` and ``UnsupportedVersion``."""
    exact: dict[str, str | None] = {}
    any_name: set[str] = set()
    for component in request.components:
        kind, match_type, name = component.entity_type, component.match_type, component.match
        if kind in exact or kind in any_name:
            raise InvalidRequest(f"Entity type {kind} cannot appear more than once in the filter.")
        if match_type == _EXACT and name is None:
            raise InvalidRequest(
                "Request specified MATCH_TYPE_EXACT, but set match string to null."
            )
        if match_type in _MATCH_NAMES and name is not None:
            raise InvalidRequest(
                f"Request specified {_MATCH_NAMES[match_type]}, but also specified a match string."
            )
        if match_type in (_EXACT, _DEFAULT):
            exact[kind] = name
        elif match_type == _ANY:
            any_name.add(kind)
        else:
            raise InvalidRequest(f"Unknown match type {match_type}")
    wanted = EntityFilter(exact, frozenset(any_name), request.strict)
    wanted.check()
    return wanted

"""DescribeTransactions and ListTransactions, for administrators.

Source: ``KafkaApis`` of Kafka 4.1; KIP-664, KIP-994, KIP-1152.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Sequence

from kio.schema.describe_transactions.v0 import request as describe_request
from kio.schema.describe_transactions.v0 import response as describe_response
from kio.schema.list_transactions.v2 import request as list_request
from kio.schema.list_transactions.v2 import response as list_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.metadata.coordination.transactions import TransactionRecord, TransactionState

from tidelog_node.coordinator.failures import error_code
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.groups.consumer.topic_pattern import InvalidPattern, TopicPattern
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.transactions.coordinator import TransactionCoordinator
from tidelog_node.wire.messages import build

# Valid states of Kafka's coordinators that no transaction here is in.
PASSING_STATES = frozenset({"Dead", "PrepareEpochFence"})
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class TransactionDescriptionHandlers:
    """Shows the transactions of the shards that this node leads."""

    def __init__(self, node: NodeContext, *, coordinator: TransactionCoordinator) -> None:
        self._node = node
        self._coordinator = coordinator

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, self.describe_transactions),
            # Version 2 has a pattern for ids. ``TopicPattern`` matches it: with Python's own engine
            # a client's pattern could block the event loop forever.
            Route(ApiKey.LIST_TRANSACTIONS, 0, 2, self.list_transactions),
        ]

    async def describe_transactions(
        self, request: describe_request.DescribeTransactionsRequest, _: RequestContext
    ) -> describe_response.DescribeTransactionsResponse:
        """Return the state of each transaction."""
        described = [
            await self._describe(each)
            async for each in RequestTurn().each(request.transactional_ids)
        ]
        return build(
            describe_response.DescribeTransactionsResponse, transaction_states=tuple(described)
        )

    async def _describe(self, transactional_id: str) -> describe_response.TransactionState:
        record: TransactionRecord | None = None
        error = ErrorCode.transactional_id_not_found
        try:
            record = await self._coordinator.describe(transactional_id)
        except TidelogError as problem:
            error = error_code(problem)
        if record is None:
            return build(
                describe_response.TransactionState,
                error_code=error,
                transactional_id=transactional_id,
                transaction_start_time=_EPOCH,
            )
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(record.partitions):
            topics.setdefault(topic, []).append(index)
        return build(
            describe_response.TransactionState,
            error_code=ErrorCode.none,
            transactional_id=transactional_id,
            transaction_state=record.state.value,
            transaction_timeout=datetime.timedelta(milliseconds=record.timeout_ms),
            transaction_start_time=_EPOCH + datetime.timedelta(milliseconds=record.started_ms),
            producer_id=record.producer_id,
            producer_epoch=record.producer_epoch,
            topics=tuple(
                build(describe_response.TopicData, topic=topic, partitions=tuple(indexes))
                for topic, indexes in topics.items()
            ),
        )

    async def list_transactions(
        self, request: list_request.ListTransactionsRequest, _: RequestContext
    ) -> list_response.ListTransactionsResponse:
        """List this node's transactional ids by state, producer, age and pattern."""
        try:
            pattern = _pattern(request.transactional_id_pattern)
        except InvalidPattern:
            return build(
                list_response.ListTransactionsResponse,
                error_code=ErrorCode.invalid_regular_expression,
            )
        wanted = _wanted(request, now_ms=self._node.clock_ms())
        try:
            records = await self._coordinator.list_transactions()
        except TidelogError as problem:
            return build(list_response.ListTransactionsResponse, error_code=error_code(problem))
        found = [record for record in records if wanted(record)]
        if pattern is not None:
            found = await _matching(found, pattern)
        known = {state.value for state in TransactionState} | PASSING_STATES
        return build(
            list_response.ListTransactionsResponse,
            unknown_state_filters=tuple(s for s in request.state_filters if s not in known),
            transaction_states=tuple(
                build(
                    list_response.TransactionState,
                    transactional_id=record.transactional_id,
                    producer_id=record.producer_id,
                    transaction_state=record.state.value,
                )
                for record in found
            ),
        )


def _wanted(
    request: list_request.ListTransactionsRequest, *, now_ms: int
) -> Callable[[TransactionRecord], bool]:
    """Return the predicate of the request's filters."""
    states = frozenset(request.state_filters)
    producer_ids = frozenset(request.producer_id_filters)

    def wanted(record: TransactionRecord) -> bool:
        age_ms = now_ms - record.started_ms
        return (
            (not producer_ids or record.producer_id in producer_ids)
            and (not states or record.state.value in states)
            and (request.duration_filter < 0 or age_ms > request.duration_filter)
        )

    return wanted


def _pattern(text: str | None) -> TopicPattern | None:
    """Return the pattern for the transactional ids. Raises ``InvalidPattern``."""
    return TopicPattern(text) if text else None


async def _matching(
    records: Sequence[TransactionRecord], pattern: TopicPattern
) -> list[TransactionRecord]:
    """Return the records whose id matches; yields to the event loop after each."""
    found = []
    for record in records:
        if pattern.matches(record.transactional_id):
            found.append(record)
        await asyncio.sleep(0)
    return found

"""InitProducerId: ids for idempotent producers.

A node takes a block of ids from the metadata store at once and hands them out one by
one. What is left of a block when the node stops is never used; there are 2**63 ids.
Source: ``ProducerIdManager`` and ``TransactionCoordinator.handleInitProducerId`` of Kafka.
"""

from __future__ import annotations

import asyncio

from kio.schema.init_producer_id.v6 import request as init_request
from kio.schema.init_producer_id.v6 import response as init_response
from tidelog_core.errors import ErrorCode, OutcomeUnknown, StoreUnavailable
from tidelog_core.metadata.records import PRODUCER_ID_COUNTER
from tidelog_core.metadata.store import MetadataStore

from tidelog_node.routes import RequestContext, Route
from tidelog_node.wire.messages import build

INIT_PRODUCER_ID_KEY = 22

PRODUCER_ID_BLOCK = 1000  # Kafka's size


class ProducerIdHandlers:
    """Gives every producer that asks an id of its own."""

    def __init__(self, *, store: MetadataStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._next_id = 0
        self._end_id = 0  # exclusive

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [Route(INIT_PRODUCER_ID_KEY, 0, 6, self.init_producer_id)]

    async def init_producer_id(
        self, request: init_request.InitProducerIdRequest, _: RequestContext
    ) -> init_response.InitProducerIdResponse:
        """Return a new id with epoch 0; transactional producers are turned away."""
        if request.transactional_id == "":
            return _failed(ErrorCode.invalid_request)
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            return _failed(ErrorCode.invalid_request)  # a producer has both or neither
        if request.transactional_id is not None:
            # Clients take only a few codes as final, and librdkafka asks for ever after
            # any other: of those, this is the one that is about the transactional id.
            return _failed(ErrorCode.transactional_id_authorization_failed)
        try:
            producer_id = await self._take()
        except (StoreUnavailable, OutcomeUnknown):
            # Retried without looking for a coordinator, which such a producer has not.
            return _failed(ErrorCode.coordinator_load_in_progress)
        return build(
            init_response.InitProducerIdResponse,
            producer_id=producer_id,
            producer_epoch=0,
            ongoing_txn_producer_id=-1,
            ongoing_txn_producer_epoch=-1,
        )

    async def _take(self) -> int:
        async with self._lock:
            if self._next_id == self._end_id:
                end_id = await self._store.increment(PRODUCER_ID_COUNTER, PRODUCER_ID_BLOCK)
                self._next_id, self._end_id = end_id - PRODUCER_ID_BLOCK, end_id
            producer_id = self._next_id
            self._next_id += 1
            return producer_id


def _failed(error: ErrorCode) -> init_response.InitProducerIdResponse:
    return build(
        init_response.InitProducerIdResponse,
        error_code=error,
        producer_id=-1,
        producer_epoch=-1,
        ongoing_txn_producer_id=-1,
        ongoing_txn_producer_epoch=-1,
    )

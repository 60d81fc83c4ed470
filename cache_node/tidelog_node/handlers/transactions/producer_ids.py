"""InitProducerId: ids for idempotent producers, ids and epochs for transactional ones.

Source: ``KafkaApis.handleInitProducerIdRequest`` of Kafka.
"""

from __future__ import annotations

import datetime

from kio.schema.init_producer_id.v6 import request as init_request
from kio.schema.init_producer_id.v6 import response as init_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, OutcomeUnknown, StoreUnavailable, TidelogError

from tidelog_node.coordinator.failures import error_code
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.transactions.coordinator import TransactionCoordinator
from tidelog_node.transactions.producer_ids import ProducerIds
from tidelog_node.transactions.state import Decision, ProducerIdAndEpoch
from tidelog_node.wire.messages import build

FENCED_FROM = 4  # earlier versions have only INVALID_PRODUCER_EPOCH

_MILLISECOND = datetime.timedelta(milliseconds=1)


class ProducerIdHandlers:
    """Gives each producer an unused id, or the one of its transactional id."""

    def __init__(self, *, producer_ids: ProducerIds, coordinator: TransactionCoordinator) -> None:
        self._producer_ids = producer_ids
        self._coordinator = coordinator

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [Route(ApiKey.INIT_PRODUCER_ID, 0, 6, self.init_producer_id)]

    async def init_producer_id(
        self, request: init_request.InitProducerIdRequest, context: RequestContext
    ) -> init_response.InitProducerIdResponse:
        """Return the id and epoch for the producer's batches."""
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            return _failed(ErrorCode.invalid_request)  # a producer has both or neither
        transactional_id = request.transactional_id
        if transactional_id is None:
            return await self._init_idempotent()
        if request.keep_prepared_txn or request.enable2_pc:
            # This cluster has no two-phase transactions (KIP-939), like Kafka unless
            # transaction.two.phase.commit.enable is set.
            return _failed(ErrorCode.transactional_id_authorization_failed)
        return await self._init_transactional(transactional_id, request, context)

    async def _init_transactional(
        self,
        transactional_id: str,
        request: init_request.InitProducerIdRequest,
        context: RequestContext,
    ) -> init_response.InitProducerIdResponse:
        expected = None
        if request.producer_id >= 0:
            expected = ProducerIdAndEpoch(int(request.producer_id), int(request.producer_epoch))
        try:
            decision = await self._coordinator.init_producer_id(
                transactional_id, request.transaction_timeout // _MILLISECOND, expected
            )
        except TidelogError as problem:
            decision = Decision(error_code(problem))
        if decision.error is ErrorCode.producer_fenced and context.api_version < FENCED_FROM:
            return _failed(ErrorCode.invalid_producer_epoch)
        if decision.error is not ErrorCode.none:
            return _failed(decision.error)
        return _given(decision.producer_id, decision.producer_epoch)

    async def _init_idempotent(self) -> init_response.InitProducerIdResponse:
        try:
            return _given(await self._producer_ids.take(), 0)
        except (StoreUnavailable, OutcomeUnknown):
            # The client retries without looking for a coordinator: idempotent producers have none.
            return _failed(ErrorCode.coordinator_load_in_progress)


def _given(producer_id: int, producer_epoch: int) -> init_response.InitProducerIdResponse:
    return build(
        init_response.InitProducerIdResponse,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        ongoing_txn_producer_id=-1,
        ongoing_txn_producer_epoch=-1,
    )


def _failed(error: ErrorCode) -> init_response.InitProducerIdResponse:
    return build(
        init_response.InitProducerIdResponse,
        error_code=error,
        producer_id=-1,
        producer_epoch=-1,
        ongoing_txn_producer_id=-1,
        ongoing_txn_producer_epoch=-1,
    )

"""ShareAcknowledge: takes the acknowledgements of a member of a share group (KIP-932).

The final epoch closes the session and releases all records that the member has not acknowledged.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from kio.schema.share_acknowledge.v2 import request as acknowledge_request
from kio.schema.share_acknowledge.v2 import response as acknowledge_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.groups.share.service import ShareService
from tidelog_node.groups.share.sessions import FINAL_EPOCH
from tidelog_node.replicas.leaders import CurrentLeader
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build
from tidelog_node.wire.share_fetch import Acknowledgement, PartitionKey

_NO_TOPIC = bytes(16)


class ShareAcknowledgeHandler:
    """Serves ShareAcknowledge on the partitions that this node leads."""

    def __init__(self, *, service: ShareService) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, self.handle)]

    async def handle(
        self, request: acknowledge_request.ShareAcknowledgeRequest, context: RequestContext
    ) -> acknowledge_response.ShareAcknowledgeResponse:
        """Answer once the acknowledgements are stored."""
        service, group_id = self._service, request.group_id or ""
        acknowledged: dict[PartitionKey, list[Acknowledgement]] = {}
        turn = RequestTurn()
        async for topic in turn.each(request.topics):
            topic_id = _NO_TOPIC if topic.topic_id is None else topic.topic_id.bytes
            async for partition in turn.each(topic.partitions):
                batches = acknowledged.setdefault((topic_id, partition.partition_index), [])
                batches += [_acknowledgement(batch) for batch in partition.acknowledgement_batches]
        try:
            session = service.follow_session(
                group_id, request.member_id or "", request.share_session_epoch
            )
        except TidelogError as error:
            return build(
                acknowledge_response.ShareAcknowledgeResponse,
                error_code=error.code,
                error_message=str(error),
            )
        outcome = await service.acknowledge(session, acknowledged, may_renew=request.is_renew_ack)
        if request.share_session_epoch == FINAL_EPOCH:
            await service.end_session(session)
        lock_ms = service.partitions.settings(group_id).share_record_lock_duration_ms
        return self._response(outcome, lock_ms, context.session.listener)

    def _response(
        self, outcome: dict[PartitionKey, TidelogError | None], lock_ms: int, listener: str
    ) -> acknowledge_response.ShareAcknowledgeResponse:
        leader_ids: set[int] = set()
        topics: dict[bytes, list[acknowledge_response.PartitionData]] = {}
        for key, error in outcome.items():
            leader = self._service.leader_hint(key, error)
            if leader is not None:
                leader_ids.add(leader.leader_id)
            topics.setdefault(key[0], []).append(_partition(key[1], error, leader))
        return build(
            acknowledge_response.ShareAcknowledgeResponse,
            error_code=ErrorCode.none,
            responses=tuple(
                build(
                    acknowledge_response.ShareAcknowledgeTopicResponse,
                    topic_id=UUID(bytes=topic),
                    partitions=tuple(rows),
                )
                for topic, rows in topics.items()
            ),
            node_endpoints=tuple(
                build(
                    acknowledge_response.NodeEndpoint,
                    node_id=endpoint.broker_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=endpoint.rack,
                )
                for endpoint in self._service.replicas.leaders.endpoints(leader_ids, listener)
            ),
            acquisition_lock_timeout=timedelta(milliseconds=lock_ms),
        )


def _partition(
    index: int, error: TidelogError | None, leader: CurrentLeader | None
) -> acknowledge_response.PartitionData:
    return build(
        acknowledge_response.PartitionData,
        partition_index=index,
        error_code=ErrorCode.none if error is None else error.code,
        error_message=None if error is None else str(error),
        current_leader=build(
            acknowledge_response.LeaderIdAndEpoch,
            leader_id=-1 if leader is None else leader.leader_id,
            leader_epoch=-1 if leader is None else leader.leader_epoch,
        ),
    )


def _acknowledgement(batch: acknowledge_request.AcknowledgementBatch) -> Acknowledgement:
    # A type below 0 becomes one above the last type; both are invalid.
    types = bytes(kind & 0xFF for kind in batch.acknowledge_types)
    return Acknowledgement(batch.first_offset, batch.last_offset, types)

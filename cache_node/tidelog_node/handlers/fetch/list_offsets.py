"""ListOffsets: offsets by time, and the named ones.

A new leader's high watermark may lag behind the offsets that the last leader committed. Until it
has reached the start of the leader's epoch, the end of the partition is not returned.
Source: KIP-79, KIP-207, KIP-734 (max timestamp), KIP-405 (earliest local), KIP-1005 (latest
tiered), KIP-1023 (earliest pending upload).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from kio.schema.list_offsets.v11 import request as list_request
from kio.schema.list_offsets.v11 import response as list_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import (
    ErrorCode,
    InvalidRequest,
    LeaderNotAvailable,
    OffsetNotAvailable,
    TidelogError,
    UnsupportedVersion,
)
from tidelog_core.log.local_log import LocalLog
from tidelog_core.model import TopicPartition

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build

logger = logging.getLogger(__name__)

READ_COMMITTED = 1
OFFSET_NOT_AVAILABLE_FROM = 5
CONSUMER = -1


class Named(IntEnum):
    """The timestamps that name an offset. The numbers are the wire's."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


SINCE_VERSION: Mapping[int, int] = {
    Named.MAX_TIMESTAMP: 7,
    Named.EARLIEST_LOCAL: 8,
    Named.LATEST_TIERED: 9,
    Named.EARLIEST_PENDING_UPLOAD: 11,
}


class _Found(NamedTuple):
    """A record's timestamp and offset; a named offset has no timestamp."""

    timestamp_ms: int
    offset: int


_NOT_FOUND = _Found(-1, -1)


class ListOffsetsHandler:
    """Serves ListOffsets on the partitions that this node leads."""

    def __init__(
        self, node: NodeContext, *, replicas: ReplicaManager, inspector: BatchInspector
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._inspector = inspector

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route(ApiKey.LIST_OFFSETS, 1, 11, self.handle)]

    async def handle(
        self, request: list_request.ListOffsetsRequest, context: RequestContext
    ) -> list_response.ListOffsetsResponse:
        """Return an offset for every partition of the request."""
        turn = RequestTurn()
        seen: dict[TopicPartition, int] = {}
        async for topic in turn.each(request.topics):
            async for wanted in turn.each(topic.partitions):
                partition = TopicPartition(topic.name, wanted.partition_index)
                seen[partition] = seen.get(partition, 0) + 1
        topics = []
        async for topic in turn.each(request.topics):
            answers = []
            async for wanted in turn.each(topic.partitions):
                partition = TopicPartition(topic.name, wanted.partition_index)
                answers.append(
                    await self._answer(
                        partition, wanted, request, context, is_repeated=seen[partition] > 1
                    )
                )
            topics.append(
                build(
                    list_response.ListOffsetsTopicResponse,
                    name=topic.name,
                    partitions=tuple(answers),
                )
            )
        return build(list_response.ListOffsetsResponse, topics=tuple(topics))

    async def _answer(
        self,
        partition: TopicPartition,
        wanted: list_request.ListOffsetsPartition,
        request: list_request.ListOffsetsRequest,
        context: RequestContext,
        *,
        is_repeated: bool,
    ) -> list_response.ListOffsetsPartitionResponse:
        code, found, epoch = ErrorCode.none, _NOT_FOUND, -1
        try:
            if is_repeated:
                raise InvalidRequest(f"{partition} is named twice")
            timestamp = wanted.timestamp
            is_unknown = timestamp < min(Named)
            if is_unknown or context.api_version < SINCE_VERSION.get(timestamp, 1):
                raise UnsupportedVersion(f"timestamp {timestamp} has no meaning in this version")
            replica = self._replicas.leader(partition, wanted.current_leader_epoch)
            self._node.require_serving()
            replica.require_readable()
            bound = _bound(replica, request)
            found = await self._find(replica, timestamp, bound, host=context.session.client_host)
            if request.replica_id == CONSUMER:
                _require_settled(replica, timestamp, found, context.api_version)
            if found != _NOT_FOUND:
                epoch = _epoch_of(replica, timestamp, found.offset)
        except TidelogError as error:
            code = error.code
        except OSError as error:
            logger.error(
                "offset of a timestamp could not be read",
                extra={"partition": str(partition), "reason": str(error)},
            )
            code = ErrorCode.kafka_storage_error
        return build(
            list_response.ListOffsetsPartitionResponse,
            partition_index=partition.partition,
            error_code=code,
            timestamp=found.timestamp_ms,
            offset=found.offset,
            leader_epoch=epoch,
        )

    async def _find(self, replica: Replica, timestamp: int, bound: int, *, host: str) -> _Found:
        """Return the offset, ``_NOT_FOUND`` if no record matches."""
        if timestamp < 0 and timestamp != Named.MAX_TIMESTAMP:
            return _Found(-1, _named_offset(replica.log, Named(timestamp), bound))
        unified, search = replica.unified_log, partial(self._inspector.search, host=host)
        if timestamp == Named.MAX_TIMESTAMP:
            found = await unified.max_timestamp(search)
        else:
            found = await unified.offset_for_timestamp(timestamp, search)
        if found is None or found[1] >= bound:
            return _NOT_FOUND
        return _Found(*found)


def _epoch_of(replica: Replica, timestamp: int, offset: int) -> int:
    """Return the leader epoch of the record at the offset; -1 if it is not known.

    At the end of the log it is the leader's own epoch.
    """
    if timestamp == Named.LATEST or offset >= replica.log.log_end_offset:
        return replica.leader_epoch
    return replica.unified_log.leader_epoch_for(offset)


def _bound(replica: Replica, request: list_request.ListOffsetsRequest) -> int:
    """Return the end of the offsets that the caller may see."""
    log = replica.log
    if request.replica_id != CONSUMER:
        return log.log_end_offset
    if request.isolation_level == READ_COMMITTED:
        return log.last_stable_offset
    return log.high_watermark


def _require_settled(replica: Replica, timestamp: int, found: _Found, api_version: int) -> None:
    """Raise if a new leader does not know the answer yet."""
    leader = replica.leader
    if leader is None or leader.is_high_watermark_settled:
        return
    is_search = timestamp >= 0 or timestamp == Named.MAX_TIMESTAMP
    if timestamp == Named.LATEST or (is_search and found == _NOT_FOUND):
        problem = f"the end of {replica.partition} is not known to its new leader yet"
        if api_version >= OFFSET_NOT_AVAILABLE_FROM:
            raise OffsetNotAvailable(problem)
        raise LeaderNotAvailable(problem)


def _named_offset(log: LocalLog, name: Named, bound: int) -> int:
    match name:
        case Named.LATEST:
            return bound
        case Named.EARLIEST:
            return log.log_start_offset
        case Named.EARLIEST_LOCAL:
            return log.local_log_start_offset
        case Named.LATEST_TIERED:
            return log.tiered_up_to - 1
        case Named.EARLIEST_PENDING_UPLOAD:
            return max(log.tiered_up_to, log.log_start_offset)
    raise AssertionError(f"{name} is searched for")

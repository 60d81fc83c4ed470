"""FindCoordinator: the leader of the shard that a group or transactional id belongs to.

The first request of a cluster's life creates the topic whose partitions are the shards.
Source: ``KafkaApis.getCoordinator``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from kio.schema.find_coordinator.v3 import request as single_request
from kio.schema.find_coordinator.v3 import response as single_response
from kio.schema.find_coordinator.v6 import request as batched_request
from kio.schema.find_coordinator.v6 import response as batched_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidRequest,
    TidelogError,
)
from tidelog_core.metadata.coordination.groups import shard_of_group
from tidelog_core.metadata.endpoints import BrokerEndpoint
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.administration import topic_admin
from tidelog_node.handlers.cluster.reachable_brokers import ReachableBrokers
from tidelog_node.handlers.shard_topics import ensure_shards
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build


class KeyType(IntEnum):
    """The kind of key. The numbers are the wire's."""

    GROUP = 0
    TRANSACTION = 1


class _Coordinator(NamedTuple):
    """The broker that coordinates, as the client can reach it."""

    broker_id: int
    endpoint: BrokerEndpoint


class FindCoordinatorHandlers:
    """Serves FindCoordinator."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._reachable_brokers = ReachableBrokers(node.membership)
        self._admin = topic_admin(node)

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        # Version 4 replaced the one key by a list of keys: two shapes, two routes.
        return [
            Route(ApiKey.FIND_COORDINATOR, 0, 3, self.find_one),
            Route(ApiKey.FIND_COORDINATOR, 4, 6, self.find_many),
        ]

    async def find_one(
        self, request: single_request.FindCoordinatorRequest, context: RequestContext
    ) -> single_response.FindCoordinatorResponse:
        """Answer the versions with one key."""
        found = await self._find(request.key_type, request.key, context)
        return build(single_response.FindCoordinatorResponse, **_fields(found))

    async def find_many(
        self, request: batched_request.FindCoordinatorRequest, context: RequestContext
    ) -> batched_response.FindCoordinatorResponse:
        """Answer the versions with many keys."""
        coordinators = []
        async for key in RequestTurn().each(request.coordinator_keys):
            found = await self._find(request.key_type, key, context)
            coordinators.append(build(batched_response.Coordinator, key=key, **_fields(found)))
        return build(batched_response.FindCoordinatorResponse, coordinators=tuple(coordinators))

    async def _find(
        self, key_type: int, key: str, context: RequestContext
    ) -> _Coordinator | TidelogError:
        try:
            return await self._coordinator(key_type, key, context.session.listener)
        except TidelogError as error:
            return error.with_traceback(None)

    async def _coordinator(self, key_type: int, key: str, listener: str) -> _Coordinator:
        match key_type:
            case KeyType.GROUP:
                topic = CONSUMER_OFFSETS_TOPIC
            case KeyType.TRANSACTION:
                topic = TRANSACTION_STATE_TOPIC
            case _:
                raise InvalidRequest(f"unknown coordinator key type {key_type}")
        await ensure_shards(self._admin, topic)
        image = self._node.view.image
        partitions = image.partitions(topic)
        if not partitions:
            raise CoordinatorNotAvailable(f"{topic} was deleted")
        leader = partitions[shard_of_group(key, len(partitions))].leader
        broker = self._reachable_brokers(image, listener).get(leader)
        endpoint = None if broker is None else broker.endpoint_of(listener)
        if endpoint is None:
            raise CoordinatorNotAvailable("the coordinator is not available")
        return _Coordinator(leader, endpoint)


def _fields(found: _Coordinator | TidelogError) -> dict[str, object]:
    """Return the fields of the answer that every version has."""
    if isinstance(found, TidelogError):
        return {
            "error_code": found.code,
            "error_message": str(found),
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    return {
        "error_code": ErrorCode.none,
        "node_id": found.broker_id,
        "host": found.endpoint.host,
        "port": found.endpoint.port,
    }

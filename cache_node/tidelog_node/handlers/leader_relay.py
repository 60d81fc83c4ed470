"""Asks leaders on behalf of clients that ask the replica in their zone.

Metadata names that replica as the leader. So a client sends ListOffsets, OffsetForLeaderEpoch,
DeleteRecords and DescribeProducers to this node too. The partitions that this node follows as a
gateway are asked of their leaders, in the client's version. All others, and those whose leader does
not answer, are left to this node's own handler: it says NOT_LEADER_OR_FOLLOWER, and the client
tries again. Requests of nodes are never passed on. Which topics a client may name is decided
before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple

from tidelog.wire.requests import Api
from tidelog_core.errors import TidelogError
from tidelog_core.model import NO_LEADER, TopicPartition

from tidelog_node.dialing.peers import Peers
from tidelog_node.diskless.gateway.gateway_topics import may_pass
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.requests.session import NO_NODE

logger = logging.getLogger(__name__)

ANSWER_SECONDS_MAX = 20.0


class _Names(NamedTuple):
    """The fields of an API's messages that name a topic and a partition."""

    topic: str
    partition: str
    asked: str = "partitions"  # of a topic in a request; they may be numbers alone


_NAMES: Mapping[int, _Names] = {
    2: _Names("name", "partition_index"),  # ListOffsets
    21: _Names("name", "partition_index"),  # DeleteRecords
    23: _Names("topic", "partition"),  # OffsetForLeaderEpoch
    61: _Names("name", "partition_index", "partition_indexes"),  # DescribeProducers
}


class _Answer(NamedTuple):
    """A leader's answer about a partition, and the topic that it is in."""

    topic: Any
    partition: Any


class LeaderRelay:
    """Passes requests of clients on to leaders. For the node's event loop."""

    def __init__(self, node: NodeContext, *, replicas: ReplicaManager, peers: Peers) -> None:
        self._node = node
        self._replicas = replicas
        self._peers = peers

    def wrap(self, routes: Iterable[Route]) -> Iterator[Route]:
        """Yield the routes; some of them ask leaders first."""
        for route in routes:
            yield self._wrapped(route) if route.api_key in _NAMES else route

    def _wrapped(self, route: Route) -> Route:
        async def handle(request: Any, context: RequestContext) -> object:
            if context.session.node_id != NO_NODE:
                return await route.handle(request, context)
            return await self._handle(route, request, context)

        return replace(route, handle=handle)

    async def _handle(self, route: Route, request: Any, context: RequestContext) -> object:
        names, turn = _NAMES[route.api_key], RequestTurn()
        counts: Counter[TopicPartition] = Counter()
        async for topic in turn.each(request.topics):
            async for one in turn.each(getattr(topic, names.asked)):
                counts[_key(topic, one, names)] += 1
        by_leader: dict[int, set[TopicPartition]] = defaultdict(set)
        async for key in turn.each(counts):
            leader = self._leader_of(key)
            if leader is not None and counts[key] == 1:
                by_leader[leader].add(key)
        if not by_leader:
            return await route.handle(request, context)
        asked = [
            (leader, await _only(request, wanted, names, turn))
            for leader, wanted in by_leader.items()
        ]
        found: dict[TopicPartition, _Answer] = {}
        for answers in await asyncio.gather(
            *(self._ask(leader, part, route, context) for leader, part in asked)
        ):
            found |= answers
        rest = counts.keys() - found.keys()
        own: Any = await route.handle(await _only(request, rest, names, turn), context)
        return replace(own, topics=await _merged(request.topics, own.topics, found, names, turn))

    def _leader_of(self, partition: TopicPartition) -> int | None:
        """Return the leader to ask, ``None`` if this node answers itself."""
        replica = self._replicas.get(partition)
        if replica is None or not (replica.is_diskless and replica.is_follower):
            return None
        stored = self._node.view.image.partition(partition)
        if stored is None or stored.leader in (NO_LEADER, self._node.broker_id):
            return None
        return stored.leader if may_pass(replica) else None

    async def _ask(
        self, leader: int, request: Any, route: Route, context: RequestContext
    ) -> dict[TopicPartition, _Answer]:
        """Return the leader's answers, none if it does not answer."""
        names = _NAMES[route.api_key]
        api = Api(route.api_key, context.api_version, context.api_version)
        try:
            response = await self._peers.request(leader, api, request, timeout_s=ANSWER_SECONDS_MAX)
        except (TidelogError, OSError) as error:
            logger.warning(
                "a leader does not answer for a client of this zone",
                extra={"broker_id": leader, "reason": str(error)},
            )
            return {}
        return {
            TopicPartition(getattr(topic, names.topic), getattr(one, names.partition)): _Answer(
                topic, one
            )
            for topic in response.topics
            for one in topic.partitions
        }


def _key(topic: Any, partition: Any, names: _Names) -> TopicPartition:
    index = partition if isinstance(partition, int) else getattr(partition, names.partition)
    return TopicPartition(getattr(topic, names.topic), index)


async def _only(request: Any, wanted: Set[TopicPartition], names: _Names, turn: RequestTurn) -> Any:
    """Return the request with these partitions alone, and the topics that name none."""
    topics = []
    async for topic in turn.each(request.topics):
        asked = getattr(topic, names.asked)
        some = [one async for one in turn.each(asked) if _key(topic, one, names) in wanted]
        if some or not asked:
            topics.append(replace(topic, **{names.asked: tuple(some)}))
    return replace(request, topics=tuple(topics))


async def _merged(
    asked: Iterable[Any],
    own: Sequence[Any],
    found: Mapping[TopicPartition, _Answer],
    names: _Names,
    turn: RequestTurn,
) -> tuple[Any, ...]:
    """Return the answers in the order of the request; this node's own come in that order."""
    topics = []
    own_topics = iter(own)
    async for topic in turn.each(asked):
        partitions = getattr(topic, names.asked)
        keys = [_key(topic, one, names) async for one in turn.each(partitions)]
        known = [found[key] for key in keys if key in found]
        answer = known[0].topic if len(known) == len(keys) and known else next(own_topics)
        own_partitions = iter(answer.partitions if len(known) < len(keys) else ())
        answered = tuple(
            found[key].partition if key in found else next(own_partitions) for key in keys
        )
        topics.append(replace(answer, partitions=answered))
    return tuple(topics)

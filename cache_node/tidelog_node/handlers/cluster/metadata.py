"""Metadata: the topics as the image shows them.

Building a Metadata response costs about 1 ms per 100 partitions, and thousands of clients ask for
the same one. So encoded responses are kept until the image changes, and the topics in them until
those topics change (``encoded_metadata``). A topic that the image does not have may just have been
created through another node: the store is read before the topic is refused or created.
Source: ``KafkaApis.handleTopicMetadataRequest``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from kio.schema.describe_topic_partitions.v0 import request as describe_request
from kio.schema.describe_topic_partitions.v0 import response as describe_response
from kio.schema.metadata.v10 import request as request_v10
from kio.schema.metadata.v10 import response as response_v10
from kio.schema.metadata.v13 import request as request_v13
from kio.schema.metadata.v13 import response as response_v13
from tidelog_core.admin.names import is_internal
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, StoreUnavailable
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Broker, Partition, Topic
from tidelog_core.model import NO_LEADER
from tidelog_core.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from tidelog_core.security.operations import ON_CLUSTER, ON_TOPIC, OPERATIONS_NOT_REQUESTED

from tidelog_node.authorization.access import Access
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.chain_store_check import ChainStoreCheck
from tidelog_node.handlers.cluster.described_partitions import describe_partitions
from tidelog_node.handlers.cluster.encoded_metadata import (
    Encoded,
    EncodedResponses,
    EncodedTopics,
    ResponseKey,
    TopicKey,
    encode_partition,
    encode_topic,
    join_partitions,
    join_topics,
)
from tidelog_node.handlers.cluster.reachable_brokers import ReachableBrokers
from tidelog_node.handlers.cluster.shown_topics import shown_partition, shown_topic
from tidelog_node.handlers.cluster.topic_auto_creation import TopicAutoCreation
from tidelog_node.node_context import NodeContext
from tidelog_node.replication.zone_leaders import ZoneLeaders
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.wire.messages import build, write_response

logger = logging.getLogger(__name__)

TOPIC_IDS_FROM = 12  # versions 10 and 11 have ids and null names on the wire, but allow neither
NO_CLUSTER_OPERATIONS_FROM = 11

MetadataRequest: TypeAlias = "request_v10.MetadataRequest | request_v13.MetadataRequest"


class MetadataHandlers:
    """Serves the topics and brokers of the cluster."""

    def __init__(
        self,
        node: NodeContext,
        *,
        throttle: Throttle,
        access: Access | None,
        chain_store: ChainStoreCheck,
    ) -> None:
        """Without ``access`` every client sees all topics, and may create some."""
        self._node = node
        self._access = access
        self._reachable_brokers = ReachableBrokers(node.membership)
        self._auto_creation = TopicAutoCreation(
            node, throttle=throttle, access=access, chain_store=chain_store
        )
        self._zones = ZoneLeaders(node)
        self._cache = EncodedResponses()
        self._topics = EncodedTopics()

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        # Version 11 removed the cluster's authorized operations: two shapes, two routes.
        return [
            Route(ApiKey.METADATA, 0, NO_CLUSTER_OPERATIONS_FROM - 1, self.metadata),
            Route(ApiKey.METADATA, NO_CLUSTER_OPERATIONS_FROM, 13, self.metadata),
            Route(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, self.describe_topic_partitions),
        ]

    async def metadata(self, request: MetadataRequest, context: RequestContext) -> object:
        """Answer Metadata, encoded if the response can be shared."""
        version = context.api_version
        topics: Sequence[Any] | None = request.topics  # of either version
        turn = RequestTurn()
        names, ids = await _named(topics or (), turn)
        if version < TOPIC_IDS_FROM and (ids or None in names):
            return await self._invalid(topics or (), request, context)
        if topics is None or (version == 0 and not topics):
            return await self._all(request, context, turn)
        if ids:
            return await self._by_id(ids, request, context)
        asked = [name or "" async for name in turn.each(names)]
        return await self._by_name(asked, request, context, turn)

    async def _all(
        self, request: MetadataRequest, context: RequestContext, turn: RequestTurn
    ) -> object:
        """Return the answer for all topics that the client may see."""
        image = await self._refreshed()
        everyone = tuple(image.topics)
        shown = await self._visible(everyone, context, turn, is_asked=False)
        return await self._existing(
            image, shown, request, context, is_all=len(shown) == len(everyone)
        )

    async def _by_name(
        self,
        asked: Sequence[str],
        request: MetadataRequest,
        context: RequestContext,
        turn: RequestTurn,
    ) -> object:
        """Return the answer for the named topics; missing ones are created if they may be."""
        wanted = await self._visible(asked, context, turn, is_asked=True)
        image = self._node.view.image
        if not all([name in image.topics async for name in turn.each(wanted)]):
            image = await self._refreshed()
        unknown = [name async for name in turn.each(wanted) if name not in image.topics]
        hidden = dict.fromkeys(asked).keys() - set(wanted)
        if not unknown and not hidden:
            return await self._existing(image, wanted, request, context)
        errors = await self._auto_creation.create(
            unknown, context, turn, is_allowed=request.allow_auto_topic_creation
        )
        image = self._node.view.image
        answers = [
            await self._topic(image, image.topics[name], request, context, turn)
            if name in image.topics
            else self._topic_error(
                errors.get(name, ErrorCode.unknown_topic_or_partition),
                name=name,
                operations=self._operations(name, request, context),
            )
            async for name in turn.each(wanted)
        ]
        answers += [
            self._topic_error(ErrorCode.topic_authorization_failed, name=name)
            async for name in turn.each(sorted(hidden))
        ]
        return self._response(image, answers, request, context)

    async def _visible(
        self, names: Sequence[str], context: RequestContext, turn: RequestTurn, *, is_asked: bool
    ) -> tuple[str, ...]:
        """Return the names that the client may describe, of those it asked for or of all topics."""
        access = self._access
        if access is None:
            return tuple(names)
        may, session = access.may if is_asked else access.sees, context.session
        return tuple(
            [
                name
                async for name in turn.each(names)
                if may(session, AclOperation.DESCRIBE, ResourceType.TOPIC, name)
            ]
        )

    def _may_describe(self, context: RequestContext, topic: str) -> bool:
        return self._access is None or self._access.may(
            context.session, AclOperation.DESCRIBE, ResourceType.TOPIC, topic
        )

    async def describe_topic_partitions(
        self, request: describe_request.DescribeTopicPartitionsRequest, context: RequestContext
    ) -> describe_response.DescribeTopicPartitionsResponse:
        """Answer DescribeTopicPartitions."""
        return await describe_partitions(
            request,
            current=lambda: self._node.view.image,
            refreshed=self._refreshed,
            brokers_of=lambda image: self._brokers(image, context),
            vanished=lambda: self._reachable_brokers.vanished,
        )

    def _brokers(self, image: ClusterImage, context: RequestContext) -> Mapping[int, Broker]:
        return self._reachable_brokers(image, context.session.listener)

    async def _refreshed(self) -> ClusterImage:
        """Return the newest image, or the current one while the store is unavailable."""
        try:
            return await self._node.view.refresh()
        except StoreUnavailable as error:
            logger.warning("answers from an older image", extra={"reason": str(error)})
            return self._node.view.image

    async def _by_id(
        self, ids: Collection[UUID], request: MetadataRequest, context: RequestContext
    ) -> object:
        image = self._node.view.image
        if not all(topic_id in image.topic_names for topic_id in ids):
            image = await self._refreshed()
        answers: list[object] = []
        turn = RequestTurn()
        async for topic_id in turn.each(ids):
            topic = image.topic_by_id(topic_id)
            if topic is not None and not self._may_describe(context, topic.name):
                code = ErrorCode.topic_authorization_failed
                answers.append(self._topic_error(code, topic_id=topic_id))
                continue
            answers.append(
                self._topic_error(ErrorCode.unknown_topic_id, topic_id=topic_id)
                if topic is None
                else await self._topic(image, topic, request, context, turn)
            )
        return self._response(image, answers, request, context)

    async def _existing(
        self,
        image: ClusterImage,
        names: tuple[str, ...],
        request: MetadataRequest,
        context: RequestContext,
        *,
        is_all: bool = False,
    ) -> object:
        """Return the answer for topics that exist, encoded if another client may get the same."""
        if self._access is not None and request.include_topic_authorized_operations:
            # Another client's answer has other operations.
            turn = RequestTurn()
            answers = [
                await self._topic(image, image.topics[name], request, context, turn)
                async for name in turn.each(names)
            ]
            return self._response(image, answers, request, context)
        has_operations = request.include_topic_authorized_operations
        key = ResponseKey(
            context.api_version,
            context.session.listener,
            has_operations,
            getattr(request, "include_cluster_authorized_operations", False),
            None if is_all else names,
            self._zones.zone_of(context.session),
        )
        brokers = self._brokers(image, context)
        encoded = self._cache.get(image, brokers, key)
        if encoded is None:
            encoded = await self._encode(image, brokers, names, request, context)
            self._cache.put(image, brokers, key, encoded)
        for code, count in encoded.error_counts.items():
            self._node.counters.note_errors(ApiKey.METADATA, code, count)
        return encoded.data

    async def _encode(
        self,
        image: ClusterImage,
        brokers: Mapping[int, Broker],
        names: Sequence[str],
        request: MetadataRequest,
        context: RequestContext,
    ) -> Encoded:
        """Return the encoded answer for topics that exist, joined from encoded topics."""
        version, turn = context.api_version, RequestTurn()
        topics = [
            await self._topics.get(
                image,
                brokers,
                TopicKey(
                    name,
                    version,
                    request.include_topic_authorized_operations,
                    self._zones.zone_of_topic(context.session, image, name),
                ),
                partial(self._encoded_topic, image, brokers, request, context, turn),
            )
            async for name in turn.each(names)
        ]
        nothing = write_response(
            ApiKey.METADATA, version, self._response(image, (), request, context)
        )
        errors: Counter[ErrorCode] = Counter()
        for topic in topics:
            errors.update(topic.error_counts)
        return Encoded(join_topics(nothing, [topic.data for topic in topics], version), errors)

    async def _invalid(
        self, topics: Sequence[Any], request: MetadataRequest, context: RequestContext
    ) -> object:
        answers = [
            self._topic_error(
                ErrorCode.invalid_request,
                name=topic.name or "",
                topic_id=getattr(topic, "topic_id", None),
            )
            async for topic in RequestTurn().each(topics)
        ]
        return self._response(self._node.view.image, answers, request, context)

    async def _topic(
        self,
        image: ClusterImage,
        topic: Topic,
        request: MetadataRequest,
        context: RequestContext,
        turn: RequestTurn,
    ) -> object:
        show = self._partition_view(image, self._brokers(image, context), topic, context)
        partitions = [show(one) async for one in turn.each(image.partitions(topic.name))]
        operations = self._operations(topic.name, request, context)
        return shown_topic(topic, tuple(partitions), operations)

    def _operations(self, topic: str, request: MetadataRequest, context: RequestContext) -> int:
        if not request.include_topic_authorized_operations:
            return OPERATIONS_NOT_REQUESTED
        if self._access is None:
            return ON_TOPIC
        return self._access.operations(context.session, ResourceType.TOPIC, topic)

    async def _encoded_topic(  # noqa: PLR0917
        self,
        image: ClusterImage,
        brokers: Mapping[int, Broker],
        request: MetadataRequest,
        context: RequestContext,
        turn: RequestTurn,
        topic: Topic,
    ) -> Encoded:
        version = context.api_version
        show = self._partition_view(image, brokers, topic, context)
        partitions = []
        errors: Counter[ErrorCode] = Counter()
        async for partition in turn.each(image.partitions(topic.name)):
            shown = show(partition)
            if shown.error_code is not ErrorCode.none:
                errors[shown.error_code] += 1
            partitions.append(encode_partition(shown, version))
        operations = (
            ON_TOPIC if request.include_topic_authorized_operations else OPERATIONS_NOT_REQUESTED
        )
        empty = encode_topic(shown_topic(topic, (), operations), version)
        return Encoded(join_partitions(empty, partitions, version), errors)

    def _partition_view(
        self,
        image: ClusterImage,
        brokers: Mapping[int, Broker],
        topic: Topic,
        context: RequestContext,
    ) -> Callable[[Partition], response_v13.MetadataResponsePartition]:
        """Return a function that shows the topic's partitions as this client is to see them."""
        vanished, unfit = self._reachable_brokers.vanished, self._reachable_brokers.unfit
        zone = self._zones.zone_of_topic(context.session, image, topic.name)

        def show(partition: Partition) -> response_v13.MetadataResponsePartition:
            return shown_partition(
                brokers, partition, context.api_version, vanished, zone=zone, unfit=unfit
            )

        return show

    def _topic_error(
        self,
        error: ErrorCode,
        *,
        name: str | None = None,
        topic_id: UUID | None = None,
        operations: int = OPERATIONS_NOT_REQUESTED,
    ) -> object:
        return build(
            response_v13.MetadataResponseTopic,
            error_code=error,
            name=name,
            topic_id=topic_id,
            is_internal=name is not None and is_internal(name),
            topic_authorized_operations=operations,
        )

    def _response(
        self,
        image: ClusterImage,
        topics: Sequence[object],
        request: MetadataRequest,
        context: RequestContext,
    ) -> object:
        brokers = self._brokers(image, context)
        shared = {
            "brokers": tuple(
                build(
                    response_v13.MetadataResponseBroker,
                    node_id=broker.broker_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                )
                for broker in brokers.values()
                if (endpoint := broker.endpoint_of(context.session.listener)) is not None
            ),
            "cluster_id": image.cluster_id,
            "controller_id": controller_id(brokers, self._node.broker_id),
            "topics": tuple(topics),
        }
        if context.api_version >= NO_CLUSTER_OPERATIONS_FROM:
            return build(response_v13.MetadataResponse, error_code=ErrorCode.none, **shared)
        requested = getattr(request, "include_cluster_authorized_operations", False)
        operations = self._cluster_operations(context) if requested else OPERATIONS_NOT_REQUESTED
        return build(
            response_v10.MetadataResponse, cluster_authorized_operations=operations, **shared
        )

    def _cluster_operations(self, context: RequestContext) -> int:
        access, session = self._access, context.session
        if access is None:
            return ON_CLUSTER
        if not access.has_right_to_cluster(session, AclOperation.DESCRIBE):
            return 0
        return access.operations(session, ResourceType.CLUSTER, CLUSTER_NAME)


def controller_id(brokers: Mapping[int, Broker], broker_id: int) -> int:
    """Return the broker for admin requests. Any will do: this one, if it is live."""
    if broker_id in brokers:
        return broker_id
    return min(brokers, default=NO_LEADER)


async def _named(
    topics: Sequence[Any], turn: RequestTurn
) -> tuple[dict[str | None, None], dict[UUID, None]]:
    """Return the names and the ids of topics, in order."""
    names: dict[str | None, None] = {}
    ids: dict[UUID, None] = {}
    async for topic in turn.each(topics):
        names[topic.name] = None
        topic_id = getattr(topic, "topic_id", None)
        if topic_id is not None:
            ids[topic_id] = None
    return names, ids

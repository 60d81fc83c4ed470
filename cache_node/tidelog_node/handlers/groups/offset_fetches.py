"""OffsetFetch: topics are named up to version 9, and given by id from version 10 on.

Pending offsets of transactions are left out, or answered as unstable.
Source: ``KafkaApis`` and ``OffsetMetadataManager`` of Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from kio.schema.offset_fetch.v7 import request as fetch_request_v7
from kio.schema.offset_fetch.v7 import response as fetch_response_v7
from kio.schema.offset_fetch.v9 import request as fetch_request_v9
from kio.schema.offset_fetch.v9 import response as fetch_response_v9
from kio.schema.offset_fetch.v10 import request as fetch_request
from kio.schema.offset_fetch.v10 import response as fetch_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.metadata.coordination.groups import CommittedOffset
from tidelog_core.model import TopicPartition

from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.failures import offset_fetch_error_code
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.groups.offset_commits import NO_TOPIC_ID, Named
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.transactions.pending_group_offsets import TransactionalOffsets
from tidelog_node.wire.messages import build

HAS_GROUP_ERROR_FROM = 2  # earlier versions report an error with each partition

R = TypeVar("R")
_RequestGroup = fetch_request_v9.OffsetFetchRequestGroup | fetch_request.OffsetFetchRequestGroup


@dataclass(frozen=True, slots=True)
class _ResponseClasses(Generic[R]):
    """kio's classes of a response with several groups."""

    response: type[R]
    group: type[Any]
    topic: type[Any]
    partition: type[Any]
    has_topic_ids: bool  # instead of topic names


_BY_NAME = _ResponseClasses(
    fetch_response_v9.OffsetFetchResponse,
    fetch_response_v9.OffsetFetchResponseGroup,
    fetch_response_v9.OffsetFetchResponseTopics,
    fetch_response_v9.OffsetFetchResponsePartitions,
    has_topic_ids=False,
)
_BY_ID = _ResponseClasses(
    fetch_response.OffsetFetchResponse,
    fetch_response.OffsetFetchResponseGroup,
    fetch_response.OffsetFetchResponseTopics,
    fetch_response.OffsetFetchResponsePartitions,
    has_topic_ids=True,
)


class _RequestedTopic(NamedTuple):
    """A topic of an OffsetFetch."""

    named: Named
    name: str | None  # None: the id is unknown
    indexes: list[int]


class _FetchedOffsets(NamedTuple):
    """A group's offsets, or an error."""

    error: ErrorCode
    found: Mapping[TopicPartition, CommittedOffset] = MappingProxyType({})
    unstable: Set[TopicPartition] = frozenset()

    def topics(self) -> dict[str, list[int]]:
        """Return the partitions that have offsets, by topic."""
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(self.found):
            topics.setdefault(topic, []).append(partition)
        return topics

    async def answer(
        self,
        topics: Iterable[_RequestedTopic],
        turn: RequestTurn,
        *,
        topic_class: type[Any],
        partition_class: type[Any],
        error: ErrorCode = ErrorCode.none,
    ) -> tuple[Any, ...]:
        """Return the response's topics; with an ``error`` every partition has it."""
        return tuple(
            [
                build(
                    topic_class,
                    **topic.named,
                    partitions=tuple(
                        [
                            self._partition(partition_class, topic.name, index, error)
                            async for index in turn.each(topic.indexes)
                        ]
                    ),
                )
                async for topic in turn.each(topics)
            ]
        )

    def _partition(
        self, partition_class: type[Any], topic: str | None, index: int, error: ErrorCode
    ) -> Any:
        offset = None
        if topic is None:
            error = ErrorCode.unknown_topic_id
        elif error is ErrorCode.none:
            partition = TopicPartition(topic, index)
            if partition in self.unstable:
                error = ErrorCode.unstable_offset_commit
            else:
                offset = self.found.get(partition)
        return build(
            partition_class,
            partition_index=index,
            committed_offset=-1 if offset is None else offset.offset,
            committed_leader_epoch=-1 if offset is None else offset.leader_epoch,
            metadata="" if offset is None else offset.metadata,
            error_code=error,
        )


class OffsetFetchHandlers:
    """Returns committed offsets."""

    def __init__(
        self,
        node: NodeContext,
        *,
        coordinator: GroupCoordinator,
        transactional: TransactionalOffsets,
    ) -> None:
        self._node = node
        self._coordinator = coordinator
        self._transactional = transactional

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.OFFSET_FETCH, 1, 7, self.fetch_one_group),
            Route(ApiKey.OFFSET_FETCH, 8, 9, self.fetch_by_name),
            Route(ApiKey.OFFSET_FETCH, 10, 10, self.fetch),
        ]

    async def fetch_one_group(
        self, request: fetch_request_v7.OffsetFetchRequest, context: RequestContext
    ) -> fetch_response_v7.OffsetFetchResponse:
        """Return one group's offsets, all of them if the request has no topics."""
        wanted = None if request.topics is None else _by_name(request.topics)
        fetched = await self._fetch(request.group_id, wanted, require_stable=request.require_stable)
        turn = RequestTurn()
        topics: tuple[fetch_response_v7.OffsetFetchResponseTopic, ...] = ()
        has_group_error = context.api_version >= HAS_GROUP_ERROR_FROM
        if fetched.error is ErrorCode.none or not has_group_error:
            topics = await fetched.answer(
                _requested_by_name(wanted or fetched.topics()),
                turn,
                topic_class=fetch_response_v7.OffsetFetchResponseTopic,
                partition_class=fetch_response_v7.OffsetFetchResponsePartition,
                error=ErrorCode.none if has_group_error else fetched.error,
            )
        return build(fetch_response_v7.OffsetFetchResponse, error_code=fetched.error, topics=topics)

    async def fetch_by_name(
        self, request: fetch_request_v9.OffsetFetchRequest, _: RequestContext
    ) -> fetch_response_v9.OffsetFetchResponse:
        """Return the offsets of several groups, topics by name."""
        return await self._fetch_groups(request, _BY_NAME)

    async def fetch(
        self, request: fetch_request.OffsetFetchRequest, _: RequestContext
    ) -> fetch_response.OffsetFetchResponse:
        """Return the offsets of several groups, topics by id."""
        return await self._fetch_groups(request, _BY_ID)

    async def _fetch_groups(
        self,
        request: fetch_request_v9.OffsetFetchRequest | fetch_request.OffsetFetchRequest,
        classes: _ResponseClasses[R],
    ) -> R:
        turn = RequestTurn()
        asked: Iterable[_RequestGroup] = request.groups
        groups = [
            await self._fetch_group(group, turn, classes, require_stable=request.require_stable)
            async for group in turn.each(asked)
        ]
        return build(classes.response, groups=tuple(groups))

    async def _fetch_group(
        self,
        group: _RequestGroup,
        turn: RequestTurn,
        classes: _ResponseClasses[R],
        *,
        require_stable: bool,
    ) -> Any:
        topics, wanted = self._requested(group), None
        if topics is not None:
            wanted = {topic.name: topic.indexes for topic in topics if topic.name is not None}
        fetched = await self._fetch_as_member(group, wanted, require_stable=require_stable)
        if fetched.error is not ErrorCode.none:
            topics = []
        elif topics is None:
            topics = self._all_fetched(fetched, classes)
        return build(
            classes.group,
            group_id=group.group_id,
            error_code=fetched.error,
            topics=await fetched.answer(
                topics, turn, topic_class=classes.topic, partition_class=classes.partition
            ),
        )

    def _requested(self, group: _RequestGroup) -> list[_RequestedTopic] | None:
        """Return the topics of a request; ``None`` asks for all that have offsets."""
        if group.topics is None:
            return None
        if isinstance(group, fetch_request_v9.OffsetFetchRequestGroup):
            return _requested_by_name(_by_name(group.topics))
        requested = []
        for asked in group.topics:
            topic = self._node.view.image.topic_by_id(asked.topic_id or NO_TOPIC_ID)
            name = None if topic is None else topic.name
            indexes: list[int] = list(asked.partition_indexes)
            requested.append(_RequestedTopic({"topic_id": asked.topic_id}, name, indexes))
        return requested

    def _all_fetched(
        self, fetched: _FetchedOffsets, classes: _ResponseClasses[R]
    ) -> list[_RequestedTopic]:
        requested = _requested_by_name(fetched.topics())
        if not classes.has_topic_ids:
            return requested
        image = self._node.view.image
        return [
            _RequestedTopic({"topic_id": topic.topic_id}, topic.name, indexes)
            for _, name, indexes in requested
            if name is not None and (topic := image.topic(name)) is not None
        ]

    async def _fetch_as_member(
        self,
        group: _RequestGroup,
        wanted: Mapping[str, list[int]] | None,
        *,
        require_stable: bool,
    ) -> _FetchedOffsets:
        try:
            error = await self._coordinator.validate_fetch(
                group.group_id, group.member_id, group.member_epoch
            )
        except TidelogError as problem:
            error = offset_fetch_error_code(problem)
        if error is not ErrorCode.none:
            return _FetchedOffsets(error)
        return await self._fetch(group.group_id, wanted, require_stable=require_stable)

    async def _fetch(
        self, group_id: str, wanted: Mapping[str, list[int]] | None, *, require_stable: bool
    ) -> _FetchedOffsets:
        try:
            # The pending ones first: those committed since are found below.
            unstable = await self._unstable(group_id) if require_stable else frozenset()
            found = await self._coordinator.fetch_offsets(group_id, wanted)
        except TidelogError as error:
            return _FetchedOffsets(offset_fetch_error_code(error))
        return _FetchedOffsets(ErrorCode.none, found, unstable)

    async def _unstable(self, group_id: str) -> frozenset[TopicPartition]:
        image = self._node.view.image
        return frozenset(
            TopicPartition(name, index)
            for name, topic_id, index in await self._transactional.unstable(group_id)
            if (topic := image.topic(name)) is not None and topic.topic_id == topic_id
        )


def _by_name(
    topics: Iterable[
        fetch_request_v7.OffsetFetchRequestTopic | fetch_request_v9.OffsetFetchRequestTopics
    ],
) -> dict[str, list[int]]:
    wanted: dict[str, list[int]] = {}
    for topic in topics:
        wanted.setdefault(topic.name, []).extend(topic.partition_indexes)
    return wanted


def _requested_by_name(topics: Mapping[str, list[int]]) -> list[_RequestedTopic]:
    return [_RequestedTopic({"name": name}, name, indexes) for name, indexes in topics.items()]

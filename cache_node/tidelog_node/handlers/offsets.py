"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

Topics are named up to version 9 of the first two, and given by id from version 10 on. The
coordinator stores both, so that a topic created again never inherits offsets.
Source: ``KafkaApis`` and ``OffsetMetadataManager`` of Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from kio.schema.offset_commit.v4 import request as commit_request_v4
from kio.schema.offset_commit.v9 import request as commit_request_v9
from kio.schema.offset_commit.v9 import response as commit_response_v9
from kio.schema.offset_commit.v10 import request as commit_request
from kio.schema.offset_commit.v10 import response as commit_response
from kio.schema.offset_delete.v0 import request as delete_request
from kio.schema.offset_delete.v0 import response as delete_response
from kio.schema.offset_fetch.v7 import request as fetch_request_v7
from kio.schema.offset_fetch.v7 import response as fetch_response_v7
from kio.schema.offset_fetch.v9 import request as fetch_request_v9
from kio.schema.offset_fetch.v9 import response as fetch_response_v9
from kio.schema.offset_fetch.v10 import request as fetch_request
from kio.schema.offset_fetch.v10 import response as fetch_response
from kio.schema.txn_offset_commit.v5 import request as txn_request
from kio.schema.txn_offset_commit.v5 import response as txn_response
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.metadata.groups import CommittedOffset
from tidelog_core.metadata.records import Topic
from tidelog_core.model import TopicPartition

from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.failures import offset_commit_error_code, offset_fetch_error_code
from tidelog_node.node_context import NodeContext
from tidelog_node.request_turns import RequestTurn
from tidelog_node.routes import RequestContext, Route
from tidelog_node.transactions.group_offsets import TransactionalOffsets
from tidelog_node.transactions.verifier import TransactionVerifier
from tidelog_node.wire.messages import build

OFFSET_COMMIT_KEY = 8
OFFSET_FETCH_KEY = 9
TXN_OFFSET_COMMIT_KEY = 28
OFFSET_DELETE_KEY = 47

NO_TOPIC_ID = UUID(int=0)

_Named = Mapping[str, object]  # a topic's ``name`` or ``topic_id``, depending on the version

_MILLISECOND = timedelta(milliseconds=1)


class _CommitPartition(Protocol):
    """A partition of an OffsetCommit request, of any version."""

    @property
    def partition_index(self) -> int: ...
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


@dataclass(slots=True)
class _TopicCommit:
    """A topic's commit: its refused partitions and the offsets to store."""

    named: _Named
    topic: Topic | None
    errors: dict[int, ErrorCode] = field(default_factory=dict)  # by partition, in order
    offsets: dict[int, CommittedOffset] = field(default_factory=dict)


class _RequestedTopic(NamedTuple):
    """A topic of an OffsetFetch."""

    named: _Named
    name: str | None  # None: the id is unknown
    indexes: Iterable[int]


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


class OffsetHandlers:
    """Serves committed offsets."""

    def __init__(
        self,
        node: NodeContext,
        *,
        coordinator: GroupCoordinator,
        transactional: TransactionalOffsets,
        verifier: TransactionVerifier,
    ) -> None:
        self._node = node
        self._coordinator = coordinator
        self._transactional = transactional
        self._verifier = verifier

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(OFFSET_COMMIT_KEY, 2, 4, self.commit_with_retention),
            Route(OFFSET_COMMIT_KEY, 5, 9, self.commit_by_name),
            Route(OFFSET_COMMIT_KEY, 10, 10, self.commit),
            Route(OFFSET_FETCH_KEY, 1, 7, self.fetch_one_group),
            Route(OFFSET_FETCH_KEY, 8, 9, self.fetch_by_name),
            Route(OFFSET_FETCH_KEY, 10, 10, self.fetch),
            Route(TXN_OFFSET_COMMIT_KEY, 0, 5, self.commit_with_transaction),
            Route(OFFSET_DELETE_KEY, 0, 0, self.delete),
        ]

    # -- OffsetCommit --

    async def commit_with_retention(
        self, request: commit_request_v4.OffsetCommitRequest, context: RequestContext
    ) -> commit_response_v9.OffsetCommitResponse:
        """Store offsets with the client's retention, if the request has one."""
        retention_ms = request.retention_time // _MILLISECOND
        return await self._commit_by_name(
            request, context, retention_ms=None if retention_ms < 0 else retention_ms
        )

    async def commit_by_name(
        self, request: commit_request_v9.OffsetCommitRequest, context: RequestContext
    ) -> commit_response_v9.OffsetCommitResponse:
        """Store offsets for the group's lifetime and the retention after it."""
        return await self._commit_by_name(request, context, retention_ms=None)

    async def commit(
        self, request: commit_request.OffsetCommitRequest, context: RequestContext
    ) -> commit_response.OffsetCommitResponse:
        """Store offsets of topics given by id."""
        turn = RequestTurn()
        commits = [
            await self._check_commit(
                turn,
                {"topic_id": topic.topic_id},
                self._node.view.image.topic_by_id(topic.topic_id or NO_TOPIC_ID),
                topic.partitions,
                unknown=ErrorCode.unknown_topic_id,
            )
            async for topic in turn.each(request.topics)
        ]
        await self._store(request, context, commits, turn)
        topics = await _committed(
            commits,
            turn,
            topic_class=commit_response.OffsetCommitResponseTopic,
            partition_class=commit_response.OffsetCommitResponsePartition,
        )
        return build(commit_response.OffsetCommitResponse, topics=topics)

    async def _commit_by_name(
        self,
        request: commit_request_v4.OffsetCommitRequest | commit_request_v9.OffsetCommitRequest,
        context: RequestContext,
        *,
        retention_ms: int | None,
    ) -> commit_response_v9.OffsetCommitResponse:
        turn = RequestTurn()
        commits = await self._check_commits_by_name(turn, request.topics, retention_ms=retention_ms)
        await self._store(request, context, commits, turn)
        topics = await _committed(
            commits,
            turn,
            topic_class=commit_response_v9.OffsetCommitResponseTopic,
            partition_class=commit_response_v9.OffsetCommitResponsePartition,
        )
        return build(commit_response_v9.OffsetCommitResponse, topics=topics)

    async def _check_commits_by_name(
        self, turn: RequestTurn, topics: Iterable[Any], *, retention_ms: int | None = None
    ) -> list[_TopicCommit]:
        """Check the topics of a request that names them."""
        return [
            await self._check_commit(
                turn,
                {"name": topic.name},
                self._node.view.image.topic(topic.name),
                topic.partitions,
                unknown=ErrorCode.unknown_topic_or_partition,
                retention_ms=retention_ms,
            )
            async for topic in turn.each(topics)
        ]

    async def _check_commit(
        self,
        turn: RequestTurn,
        named: _Named,
        topic: Topic | None,
        partitions: Iterable[_CommitPartition],
        *,
        unknown: ErrorCode,
        retention_ms: int | None = None,
    ) -> _TopicCommit:
        now_ms = self._node.clock_ms()
        metadata_max_bytes = self._node.config().offset_metadata_max_bytes
        commit = _TopicCommit(named, topic)
        async for partition in turn.each(partitions):
            index = partition.partition_index
            metadata = partition.committed_metadata or ""
            if topic is None:
                commit.errors[index] = unknown
            elif not 0 <= index < topic.partition_count:
                commit.errors[index] = ErrorCode.unknown_topic_or_partition
            elif len(metadata.encode()) > metadata_max_bytes:
                commit.errors[index] = ErrorCode.offset_metadata_too_large
            else:
                commit.errors[index] = ErrorCode.none
                commit.offsets[index] = CommittedOffset(
                    offset=partition.committed_offset,
                    leader_epoch=getattr(partition, "committed_leader_epoch", -1),
                    metadata=metadata,
                    committed_ms=now_ms,
                    expires_ms=None if retention_ms is None else now_ms + retention_ms,
                )
        return commit

    async def _store(
        self,
        request: commit_request_v4.OffsetCommitRequest
        | commit_request_v9.OffsetCommitRequest
        | commit_request.OffsetCommitRequest,
        context: RequestContext,
        commits: Iterable[_TopicCommit],
        turn: RequestTurn,
    ) -> None:
        """Store the accepted offsets and note the outcome in the commits."""
        offsets = await _accepted(commits, turn)
        if not offsets and any(commit.errors for commit in commits):
            return
        try:
            error = await self._coordinator.commit_offsets(
                request.group_id,
                offsets,
                member_id=request.member_id,
                group_instance_id=getattr(request, "group_instance_id", None),
                generation=request.generation_id_or_member_epoch,
                knows_epochs=context.api_version >= 9,
            )
        except TidelogError as problem:
            error = offset_commit_error_code(problem)
        async for commit in turn.each(commits):
            commit.errors.update(dict.fromkeys(commit.offsets, error))

    # -- TxnOffsetCommit --

    async def commit_with_transaction(
        self, request: txn_request.TxnOffsetCommitRequest, context: RequestContext
    ) -> txn_response.TxnOffsetCommitResponse:
        """Store offsets as pending until the producer's transaction ends."""
        turn = RequestTurn()
        commits = await self._check_commits_by_name(turn, request.topics)
        offsets = await _accepted(commits, turn)
        if offsets:
            try:
                error = await self._transactional.commit(
                    request.group_id,
                    offsets,
                    transactional_id=request.transactional_id,
                    producer_id=request.producer_id,
                    producer_epoch=request.producer_epoch,
                    member_id=request.member_id,
                    group_instance_id=request.group_instance_id,
                    generation=request.generation_id,
                    verifier=self._verifier,
                    api_version=context.api_version,
                )
            except TidelogError as problem:
                error = offset_commit_error_code(problem)
            if error is ErrorCode.coordinator_load_in_progress and context.api_version < 2:
                error = ErrorCode.coordinator_not_available
            async for commit in turn.each(commits):
                commit.errors.update(dict.fromkeys(commit.offsets, error))
        topics = await _committed(
            commits,
            turn,
            topic_class=txn_response.TxnOffsetCommitResponseTopic,
            partition_class=txn_response.TxnOffsetCommitResponsePartition,
        )
        return build(txn_response.TxnOffsetCommitResponse, topics=topics)

    # -- OffsetFetch --

    # Pending offsets of transactions are left out, or answered as unstable.

    async def fetch_one_group(
        self, request: fetch_request_v7.OffsetFetchRequest, context: RequestContext
    ) -> fetch_response_v7.OffsetFetchResponse:
        """Return one group's offsets, all of them if the request has no topics."""
        wanted = None if request.topics is None else _by_name(request.topics)
        fetched = await self._fetch(request.group_id, wanted, require_stable=request.require_stable)
        turn = RequestTurn()
        topics: tuple[fetch_response_v7.OffsetFetchResponseTopic, ...] = ()
        # Version 1 can report an error with the partitions only.
        has_group_error = context.api_version >= 2
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
        """Return the offsets of several groups."""
        turn = RequestTurn()
        groups = [
            await self._fetch_group_by_name(group, turn, require_stable=request.require_stable)
            async for group in turn.each(request.groups)
        ]
        return build(fetch_response_v9.OffsetFetchResponse, groups=tuple(groups))

    async def _fetch_group_by_name(
        self,
        group: fetch_request_v9.OffsetFetchRequestGroup,
        turn: RequestTurn,
        *,
        require_stable: bool,
    ) -> fetch_response_v9.OffsetFetchResponseGroup:
        wanted = None if group.topics is None else _by_name(group.topics)
        fetched = await self._fetch_as_member(group, wanted, require_stable=require_stable)
        topics: Mapping[str, list[int]] = {}
        if fetched.error is ErrorCode.none:
            topics = fetched.topics() if wanted is None else wanted
        return build(
            fetch_response_v9.OffsetFetchResponseGroup,
            group_id=group.group_id,
            error_code=fetched.error,
            topics=await fetched.answer(
                _requested_by_name(topics),
                turn,
                topic_class=fetch_response_v9.OffsetFetchResponseTopics,
                partition_class=fetch_response_v9.OffsetFetchResponsePartitions,
            ),
        )

    async def fetch(
        self, request: fetch_request.OffsetFetchRequest, _: RequestContext
    ) -> fetch_response.OffsetFetchResponse:
        """Return the offsets of several groups, topics by id."""
        turn = RequestTurn()
        groups = [
            await self._fetch_group_by_id(group, turn, require_stable=request.require_stable)
            async for group in turn.each(request.groups)
        ]
        return build(fetch_response.OffsetFetchResponse, groups=tuple(groups))

    async def _fetch_group_by_id(
        self,
        group: fetch_request.OffsetFetchRequestGroup,
        turn: RequestTurn,
        *,
        require_stable: bool,
    ) -> fetch_response.OffsetFetchResponseGroup:
        image = self._node.view.image
        names: dict[UUID, str] = {}
        for asked in group.topics or ():
            topic = image.topic_by_id(asked.topic_id or NO_TOPIC_ID)
            if topic is not None:
                names[topic.topic_id] = topic.name
        wanted: dict[str, list[int]] | None = None
        if group.topics is not None:
            wanted = {
                names[asked.topic_id]: list(asked.partition_indexes)
                for asked in group.topics
                if asked.topic_id in names
            }
        fetched = await self._fetch_as_member(group, wanted, require_stable=require_stable)
        topics: list[_RequestedTopic] = []
        if fetched.error is not ErrorCode.none:
            pass
        elif group.topics is not None:
            topics = [
                _RequestedTopic(
                    {"topic_id": t.topic_id},
                    names.get(t.topic_id or NO_TOPIC_ID),
                    t.partition_indexes,
                )
                for t in group.topics
            ]
        else:
            topics = [
                _RequestedTopic({"topic_id": topic.topic_id}, name, indexes)
                for name, indexes in fetched.topics().items()
                if (topic := image.topic(name)) is not None
            ]
        return build(
            fetch_response.OffsetFetchResponseGroup,
            group_id=group.group_id,
            error_code=fetched.error,
            topics=await fetched.answer(
                topics,
                turn,
                topic_class=fetch_response.OffsetFetchResponseTopics,
                partition_class=fetch_response.OffsetFetchResponsePartitions,
            ),
        )

    async def _fetch_as_member(
        self,
        group: fetch_request_v9.OffsetFetchRequestGroup | fetch_request.OffsetFetchRequestGroup,
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

    # -- OffsetDelete --

    async def delete(
        self, request: delete_request.OffsetDeleteRequest, _: RequestContext
    ) -> delete_response.OffsetDeleteResponse:
        """Remove offsets of topics that no member consumes."""
        wanted: dict[str, list[int]] = {}
        results: list[tuple[str, int, ErrorCode]] = []
        turn = RequestTurn()
        async for asked in turn.each(request.topics):
            topic = self._node.view.image.topic(asked.name)
            async for partition in turn.each(asked.partitions):
                index = partition.partition_index
                error = ErrorCode.unknown_topic_or_partition
                if topic is not None and 0 <= index < topic.partition_count:
                    wanted.setdefault(asked.name, []).append(index)
                    error = ErrorCode.none
                results.append((asked.name, index, error))
        try:
            failure, consumed = await self._coordinator.delete_offsets(request.group_id, wanted)
        except TidelogError as problem:
            failure, consumed = offset_commit_error_code(problem), frozenset()
        if failure is not ErrorCode.none:
            return build(delete_response.OffsetDeleteResponse, error_code=failure)
        topics: dict[str, list[delete_response.OffsetDeleteResponsePartition]] = {}
        async for name, partition_index, outcome in turn.each(results):
            is_consumed = outcome is ErrorCode.none and name in consumed
            topics.setdefault(name, []).append(
                build(
                    delete_response.OffsetDeleteResponsePartition,
                    partition_index=partition_index,
                    error_code=ErrorCode.group_subscribed_to_topic if is_consumed else outcome,
                )
            )
        return build(
            delete_response.OffsetDeleteResponse,
            topics=tuple(
                [
                    build(
                        delete_response.OffsetDeleteResponseTopic,
                        name=name,
                        partitions=tuple(partitions),
                    )
                    async for name, partitions in turn.each(topics.items())
                ]
            ),
        )


async def _accepted(
    commits: Iterable[_TopicCommit], turn: RequestTurn
) -> dict[tuple[str, UUID], dict[int, CommittedOffset]]:
    offsets: dict[tuple[str, UUID], dict[int, CommittedOffset]] = {}
    async for commit in turn.each(commits):
        if commit.topic is not None and commit.offsets:
            key = (commit.topic.name, commit.topic.topic_id)
            offsets.setdefault(key, {}).update(commit.offsets)
    return offsets


async def _committed(
    commits: Iterable[_TopicCommit],
    turn: RequestTurn,
    *,
    topic_class: type[Any],
    partition_class: type[Any],
) -> tuple[Any, ...]:
    """Return the response's topics."""
    return tuple(
        [
            build(
                topic_class,
                **commit.named,
                partitions=tuple(
                    [
                        build(partition_class, partition_index=index, error_code=error)
                        async for index, error in turn.each(commit.errors.items())
                    ]
                ),
            )
            async for commit in turn.each(commits)
        ]
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


def _requested_by_name(topics: Mapping[str, Iterable[int]]) -> Iterator[_RequestedTopic]:
    return (_RequestedTopic({"name": name}, name, indexes) for name, indexes in topics.items())

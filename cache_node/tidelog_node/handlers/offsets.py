"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

Topics go by name up to version 9 of the first two and by id from version 10 on; the
coordinator stores both, so that a topic made anew never inherits offsets.
Source: ``KafkaApis`` and ``OffsetMetadataManager`` of Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol
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
    """What is left of a topic's commit after its own faults are taken out."""

    topic: Topic | None
    errors: dict[int, ErrorCode] = field(default_factory=dict)  # by partition, in order
    offsets: dict[int, CommittedOffset] = field(default_factory=dict)


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

    # OffsetCommit.

    async def commit_with_retention(
        self, request: commit_request_v4.OffsetCommitRequest, context: RequestContext
    ) -> commit_response_v9.OffsetCommitResponse:
        """Store offsets; the client may say for how long."""
        retention_ms = request.retention_time // _MILLISECOND
        return await self._commit_by_name(
            request, context, retention_ms=None if retention_ms < 0 else retention_ms
        )

    async def commit_by_name(
        self, request: commit_request_v9.OffsetCommitRequest, context: RequestContext
    ) -> commit_response_v9.OffsetCommitResponse:
        """Store offsets for as long as the group lives, and the retention after it."""
        return await self._commit_by_name(request, context, retention_ms=None)

    async def commit(
        self, request: commit_request.OffsetCommitRequest, context: RequestContext
    ) -> commit_response.OffsetCommitResponse:
        """Store offsets of topics given by id."""
        turn = RequestTurn()
        commits = [
            await self._check_commit(
                turn,
                self._node.view.image.topic_by_id(topic.topic_id or NO_TOPIC_ID),
                topic.partitions,
                unknown=ErrorCode.unknown_topic_id,
            )
            async for topic in turn.each(request.topics)
        ]
        await self._store(request, context, commits, turn)
        return build(
            commit_response.OffsetCommitResponse,
            topics=tuple(
                [
                    build(
                        commit_response.OffsetCommitResponseTopic,
                        topic_id=topic.topic_id,
                        partitions=await _commit_results(commit, commit_response, turn),
                    )
                    async for topic, commit in turn.each(zip(request.topics, commits, strict=True))
                ]
            ),
        )

    async def _commit_by_name(
        self,
        request: commit_request_v4.OffsetCommitRequest | commit_request_v9.OffsetCommitRequest,
        context: RequestContext,
        *,
        retention_ms: int | None,
    ) -> commit_response_v9.OffsetCommitResponse:
        turn = RequestTurn()
        topics: Sequence[Any] = request.topics  # of either version
        names = [topic.name for topic in topics]
        commits = [
            await self._check_commit(
                turn,
                self._node.view.image.topic(topic.name),
                topic.partitions,
                unknown=ErrorCode.unknown_topic_or_partition,
                retention_ms=retention_ms,
            )
            async for topic in turn.each(topics)
        ]
        await self._store(request, context, commits, turn)
        return build(
            commit_response_v9.OffsetCommitResponse,
            topics=tuple(
                [
                    build(
                        commit_response_v9.OffsetCommitResponseTopic,
                        name=name,
                        partitions=await _commit_results(commit, commit_response_v9, turn),
                    )
                    async for name, commit in turn.each(zip(names, commits, strict=True))
                ]
            ),
        )

    async def _check_commit(
        self,
        turn: RequestTurn,
        topic: Topic | None,
        partitions: Iterable[_CommitPartition],
        *,
        unknown: ErrorCode,
        retention_ms: int | None = None,
    ) -> _TopicCommit:
        now_ms = self._node.clock_ms()
        metadata_max_bytes = self._node.config().offset_metadata_max_bytes
        commit = _TopicCommit(topic)
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
        """Store what can be stored and note the outcome in the commits."""
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

    # TxnOffsetCommit.

    async def commit_with_transaction(
        self, request: txn_request.TxnOffsetCommitRequest, context: RequestContext
    ) -> txn_response.TxnOffsetCommitResponse:
        """Keep offsets until the producer's transaction ends."""
        turn = RequestTurn()
        commits = [
            await self._check_commit(
                turn,
                self._node.view.image.topic(topic.name),
                topic.partitions,
                unknown=ErrorCode.unknown_topic_or_partition,
            )
            async for topic in turn.each(request.topics)
        ]
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
        return build(
            txn_response.TxnOffsetCommitResponse,
            topics=tuple(
                [
                    build(
                        txn_response.TxnOffsetCommitResponseTopic,
                        name=topic.name,
                        partitions=tuple(
                            [
                                build(
                                    txn_response.TxnOffsetCommitResponsePartition,
                                    partition_index=index,
                                    error_code=code,
                                )
                                async for index, code in turn.each(commit.errors.items())
                            ]
                        ),
                    )
                    async for topic, commit in turn.each(zip(request.topics, commits, strict=True))
                ]
            ),
        )

    # OffsetFetch. Offsets that wait for a transaction's end are left out, or told as unstable.

    async def fetch_one_group(
        self, request: fetch_request_v7.OffsetFetchRequest, context: RequestContext
    ) -> fetch_response_v7.OffsetFetchResponse:
        """Return one group's offsets, all of them where no topics are given."""
        wanted = None if request.topics is None else _by_name(request.topics)
        error, found, unstable = await self._fetch(
            request.group_id, wanted, require_stable=request.require_stable
        )
        turn = RequestTurn()
        # Version 1 has no place for an error but the partitions.
        partition_error = error if context.api_version < 2 else ErrorCode.none
        return build(
            fetch_response_v7.OffsetFetchResponse,
            error_code=error,
            topics=tuple(
                [
                    build(
                        fetch_response_v7.OffsetFetchResponseTopic,
                        name=topic,
                        partitions=tuple(
                            [
                                _fetched(
                                    fetch_response_v7.OffsetFetchResponsePartition,
                                    index,
                                    found.get(TopicPartition(topic, index)),
                                    _stability(unstable, topic, index, partition_error),
                                )
                                async for index in turn.each(indexes)
                            ]
                        ),
                    )
                    async for topic, indexes in turn.each((wanted or _topics_of(found)).items())
                ]
            )
            if error is ErrorCode.none or context.api_version < 2
            else (),
        )

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
        error, found, unstable = await self._fetch_as_member(
            group, wanted, require_stable=require_stable
        )
        topics = {} if error is not ErrorCode.none else wanted
        return build(
            fetch_response_v9.OffsetFetchResponseGroup,
            group_id=group.group_id,
            error_code=error,
            topics=tuple(
                [
                    build(
                        fetch_response_v9.OffsetFetchResponseTopics,
                        name=topic,
                        partitions=tuple(
                            [
                                _fetched(
                                    fetch_response_v9.OffsetFetchResponsePartitions,
                                    index,
                                    found.get(TopicPartition(topic, index)),
                                    _stability(unstable, topic, index),
                                )
                                async for index in turn.each(indexes)
                            ]
                        ),
                    )
                    async for topic, indexes in turn.each(
                        (_topics_of(found) if topics is None else topics).items()
                    )
                ]
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
        error, found, unstable = await self._fetch_as_member(
            group, wanted, require_stable=require_stable
        )
        if error is not ErrorCode.none:
            topics: list[tuple[UUID | None, str | None, Iterable[int]]] = []
        elif group.topics is not None:
            topics = [
                (t.topic_id, names.get(t.topic_id or NO_TOPIC_ID), t.partition_indexes)
                for t in group.topics
            ]
        else:
            topics = [
                (topic.topic_id, name, indexes)
                for name, indexes in _topics_of(found).items()
                if (topic := image.topic(name)) is not None
            ]
        return build(
            fetch_response.OffsetFetchResponseGroup,
            group_id=group.group_id,
            error_code=error,
            topics=tuple(
                [
                    build(
                        fetch_response.OffsetFetchResponseTopics,
                        topic_id=topic_id,
                        partitions=tuple(
                            [
                                _fetched(
                                    fetch_response.OffsetFetchResponsePartitions,
                                    index,
                                    None
                                    if name is None
                                    else found.get(TopicPartition(name, index)),
                                    ErrorCode.unknown_topic_id
                                    if name is None
                                    else _stability(unstable, name, index),
                                )
                                async for index in turn.each(indexes)
                            ]
                        ),
                    )
                    async for topic_id, name, indexes in turn.each(topics)
                ]
            ),
        )

    async def _fetch_as_member(
        self,
        group: fetch_request_v9.OffsetFetchRequestGroup | fetch_request.OffsetFetchRequestGroup,
        wanted: Mapping[str, list[int]] | None,
        *,
        require_stable: bool,
    ) -> tuple[ErrorCode, dict[TopicPartition, CommittedOffset], frozenset[TopicPartition]]:
        try:
            error = await self._coordinator.validate_fetch(
                group.group_id, group.member_id, group.member_epoch
            )
        except TidelogError as problem:
            error = offset_fetch_error_code(problem)
        if error is not ErrorCode.none:
            return error, {}, frozenset()
        return await self._fetch(group.group_id, wanted, require_stable=require_stable)

    async def _fetch(
        self, group_id: str, wanted: Mapping[str, list[int]] | None, *, require_stable: bool
    ) -> tuple[ErrorCode, dict[TopicPartition, CommittedOffset], frozenset[TopicPartition]]:
        try:
            # First what is pending: what has been committed since is found below.
            unstable = await self._unstable(group_id) if require_stable else frozenset()
            found = await self._coordinator.fetch_offsets(group_id, wanted)
        except TidelogError as error:
            return offset_fetch_error_code(error), {}, frozenset()
        return ErrorCode.none, found, unstable

    async def _unstable(self, group_id: str) -> frozenset[TopicPartition]:
        image = self._node.view.image
        return frozenset(
            TopicPartition(name, index)
            for name, topic_id, index in await self._transactional.unstable(group_id)
            if (topic := image.topic(name)) is not None and topic.topic_id == topic_id
        )

    # OffsetDelete.

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


async def _commit_results(
    commit: _TopicCommit, module: Any, turn: RequestTurn
) -> tuple[object, ...]:
    return tuple(
        [
            build(module.OffsetCommitResponsePartition, partition_index=index, error_code=error)
            async for index, error in turn.each(commit.errors.items())
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


def _stability(
    unstable: Set[TopicPartition],
    topic: str,
    partition: int,
    error: ErrorCode = ErrorCode.none,
) -> ErrorCode:
    if error is ErrorCode.none and TopicPartition(topic, partition) in unstable:
        return ErrorCode.unstable_offset_commit
    return error


def _topics_of(found: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(found):
        topics.setdefault(topic, []).append(partition)
    return topics


def _fetched(
    partition_class: type[Any],
    index: int,
    offset: CommittedOffset | None,
    error: ErrorCode = ErrorCode.none,
) -> object:
    if offset is None or error is not ErrorCode.none:
        return build(
            partition_class,
            partition_index=index,
            committed_offset=-1,
            committed_leader_epoch=-1,
            metadata="",
            error_code=error,
        )
    return build(
        partition_class,
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=error,
    )

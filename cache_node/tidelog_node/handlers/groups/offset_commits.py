"""OffsetCommit and TxnOffsetCommit.

Topics are named up to version 9 of OffsetCommit, and given by id from version 10 on. The
coordinator stores both, so that a topic created again never inherits offsets.
Source: ``KafkaApis`` and ``OffsetMetadataManager`` of Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from kio.schema.offset_commit.v4 import request as commit_request_v4
from kio.schema.offset_commit.v9 import request as commit_request_v9
from kio.schema.offset_commit.v9 import response as commit_response_v9
from kio.schema.offset_commit.v10 import request as commit_request
from kio.schema.offset_commit.v10 import response as commit_response
from kio.schema.txn_offset_commit.v5 import request as txn_request
from kio.schema.txn_offset_commit.v5 import response as txn_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.metadata.coordination.groups import CommittedOffset
from tidelog_core.metadata.records import Topic

from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.failures import offset_commit_error_code
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.groups.classic_messages import GroupCaller
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.transactions.pending_group_offsets import TransactionalOffsets
from tidelog_node.transactions.verifier import TransactionVerifier
from tidelog_node.wire.messages import build

KNOWS_EPOCHS_FROM = 9  # of OffsetCommit: it has an error for a stale member epoch (KIP-848)
KNOWS_LOADING_FROM = 2  # of TxnOffsetCommit: it retries COORDINATOR_LOAD_IN_PROGRESS

NO_TOPIC_ID = UUID(int=0)

Named = Mapping[str, object]  # a topic's ``name`` or ``topic_id``, depending on the version

R = TypeVar("R")
_CommitRequest = (
    commit_request_v4.OffsetCommitRequest
    | commit_request_v9.OffsetCommitRequest
    | commit_request.OffsetCommitRequest
)

_MILLISECOND = timedelta(milliseconds=1)


class _CommitPartition(Protocol):
    """A partition of an OffsetCommit request, of any version."""

    @property
    def partition_index(self) -> int: ...
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class _ResponseClasses(Generic[R]):
    """kio's classes of a response, which differ between topics by name and topics by id."""

    response: type[R]
    topic: type[Any]
    partition: type[Any]


_BY_NAME = _ResponseClasses(
    commit_response_v9.OffsetCommitResponse,
    commit_response_v9.OffsetCommitResponseTopic,
    commit_response_v9.OffsetCommitResponsePartition,
)
_BY_ID = _ResponseClasses(
    commit_response.OffsetCommitResponse,
    commit_response.OffsetCommitResponseTopic,
    commit_response.OffsetCommitResponsePartition,
)
_TRANSACTIONAL = _ResponseClasses(
    txn_response.TxnOffsetCommitResponse,
    txn_response.TxnOffsetCommitResponseTopic,
    txn_response.TxnOffsetCommitResponsePartition,
)


@dataclass(slots=True)
class _TopicCommit:
    """A topic's commit: its refused partitions and the offsets to store."""

    named: Named
    topic: Topic | None
    unknown: ErrorCode  # of its partitions, if there is no such topic
    errors: dict[int, ErrorCode] = field(default_factory=dict)  # by partition, in order
    offsets: dict[int, CommittedOffset] = field(default_factory=dict)


class OffsetCommitHandlers:
    """Stores offsets, at once or with a transaction."""

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
            Route(ApiKey.OFFSET_COMMIT, 2, 4, self.commit_with_retention),
            Route(ApiKey.OFFSET_COMMIT, 5, 9, self.commit_by_name),
            Route(ApiKey.OFFSET_COMMIT, 10, 10, self.commit),
            Route(ApiKey.TXN_OFFSET_COMMIT, 0, 5, self.commit_with_transaction),
        ]

    # -- OffsetCommit --

    async def commit_with_retention(
        self, request: commit_request_v4.OffsetCommitRequest, context: RequestContext
    ) -> commit_response_v9.OffsetCommitResponse:
        """Store offsets with the client's retention, if the request has one."""
        retention_ms = request.retention_time // _MILLISECOND
        return await self._commit(
            request, context, _BY_NAME, retention_ms=None if retention_ms < 0 else retention_ms
        )

    async def commit_by_name(
        self, request: commit_request_v9.OffsetCommitRequest, context: RequestContext
    ) -> commit_response_v9.OffsetCommitResponse:
        """Store offsets for the group's lifetime and the retention after it."""
        return await self._commit(request, context, _BY_NAME)

    async def commit(
        self, request: commit_request.OffsetCommitRequest, context: RequestContext
    ) -> commit_response.OffsetCommitResponse:
        """Store offsets of topics given by id."""
        return await self._commit(request, context, _BY_ID)

    async def _commit(
        self,
        request: _CommitRequest,
        context: RequestContext,
        classes: _ResponseClasses[R],
        *,
        retention_ms: int | None = None,
    ) -> R:
        turn = RequestTurn()
        commits = await self._check(request.topics, turn, retention_ms=retention_ms)
        await self._store(request, context, commits, turn)
        return await _response(commits, turn, classes)

    async def _check(
        self, topics: Iterable[Any], turn: RequestTurn, *, retention_ms: int | None = None
    ) -> list[_TopicCommit]:
        """Return the commit of every topic of a request of any version."""
        commits = []
        async for asked in turn.each(topics):
            commit = self._find(asked)
            await self._check_partitions(commit, asked.partitions, turn, retention_ms=retention_ms)
            commits.append(commit)
        return commits

    def _find(self, asked: Any) -> _TopicCommit:
        image = self._node.view.image
        if isinstance(asked, commit_request.OffsetCommitRequestTopic):
            topic_id = asked.topic_id
            topic = image.topic_by_id(topic_id or NO_TOPIC_ID)
            return _TopicCommit({"topic_id": topic_id}, topic, ErrorCode.unknown_topic_id)
        topic = image.topic(asked.name)
        return _TopicCommit({"name": asked.name}, topic, ErrorCode.unknown_topic_or_partition)

    async def _check_partitions(
        self,
        commit: _TopicCommit,
        partitions: Iterable[_CommitPartition],
        turn: RequestTurn,
        *,
        retention_ms: int | None,
    ) -> None:
        now_ms = self._node.clock_ms()
        metadata_max_bytes = self._node.config().offset_metadata_max_bytes
        topic = commit.topic
        async for partition in turn.each(partitions):
            index = partition.partition_index
            metadata = partition.committed_metadata or ""
            if topic is None:
                commit.errors[index] = commit.unknown
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

    async def _store(
        self,
        request: _CommitRequest,
        context: RequestContext,
        commits: Iterable[_TopicCommit],
        turn: RequestTurn,
    ) -> None:
        """Store the accepted offsets and note the outcome in the commits."""
        offsets = await _accepted(commits, turn)
        if not offsets and any(commit.errors for commit in commits):
            return
        caller = GroupCaller(
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id_or_member_epoch,
        )
        try:
            error = await self._coordinator.commit_offsets(
                request.group_id,
                offsets,
                caller,
                knows_epochs=context.api_version >= KNOWS_EPOCHS_FROM,
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
        commits = await self._check(request.topics, turn)
        offsets = await _accepted(commits, turn)
        if offsets:
            caller = GroupCaller(
                request.member_id, request.group_instance_id, request.generation_id
            )
            try:
                error = await self._transactional.commit(
                    request.group_id,
                    offsets,
                    caller,
                    transactional_id=request.transactional_id,
                    producer_id=request.producer_id,
                    producer_epoch=request.producer_epoch,
                    verifier=self._verifier,
                    api_version=context.api_version,
                )
            except TidelogError as problem:
                error = offset_commit_error_code(problem)
            is_loading = error is ErrorCode.coordinator_load_in_progress
            if is_loading and context.api_version < KNOWS_LOADING_FROM:
                error = ErrorCode.coordinator_not_available
            async for commit in turn.each(commits):
                commit.errors.update(dict.fromkeys(commit.offsets, error))
        return await _response(commits, turn, _TRANSACTIONAL)


async def _accepted(
    commits: Iterable[_TopicCommit], turn: RequestTurn
) -> dict[tuple[str, UUID], dict[int, CommittedOffset]]:
    offsets: dict[tuple[str, UUID], dict[int, CommittedOffset]] = {}
    async for commit in turn.each(commits):
        if commit.topic is not None and commit.offsets:
            key = (commit.topic.name, commit.topic.topic_id)
            offsets.setdefault(key, {}).update(commit.offsets)
    return offsets


async def _response(
    commits: Iterable[_TopicCommit], turn: RequestTurn, classes: _ResponseClasses[R]
) -> R:
    topics = [
        build(
            classes.topic,
            **commit.named,
            partitions=tuple(
                [
                    build(classes.partition, partition_index=index, error_code=error)
                    async for index, error in turn.each(commit.errors.items())
                ]
            ),
        )
        async for commit in turn.each(commits)
    ]
    return build(classes.response, topics=tuple(topics))

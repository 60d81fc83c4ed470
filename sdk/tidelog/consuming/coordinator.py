"""``Coordinator`` finds a group's or transaction's coordinator and sends it requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v9.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v9.request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build

from tidelog.cluster import Cluster, CoordinatorKind
from tidelog.connections import Lane
from tidelog.consuming.group_protocol import NO_GENERATION, group_by_topic, topic_entries
from tidelog.consuming.records import OffsetAndMetadata
from tidelog.errors import EntryNotAnswered, RequestTimedOut, TidelogError, error_for
from tidelog.wire.answers import LACKING_ANSWERS_MAX, entries_of, find_entries, find_within
from tidelog.wire.requests import OFFSET_COMMIT, OFFSET_FETCH, Api

T = TypeVar("T")

# Errors after which the coordinator is looked up again.
COORDINATOR_MOVED = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
    }
)


class Coordinator:
    """The coordinator of one group or transactional id."""

    def __init__(
        self, cluster: Cluster, group_id: str, kind: CoordinatorKind = CoordinatorKind.GROUP
    ) -> None:
        self._cluster = cluster
        self.group_id = group_id  # or the transactional id
        self._kind = kind
        self.node_id: int | None = None  # None: unknown

    def __str__(self) -> str:
        return f"{self._kind} {self.group_id!r}"

    def forget(self) -> None:
        """Look the coordinator up again before the next request."""
        self.node_id = None

    async def request(
        self, api: Api, message: object, *, lane: Lane = Lane.SHARED, timeout_s: float | None = None
    ) -> Any:
        """Send one request to the coordinator. One attempt, the lookup included."""
        try:
            if self.node_id is None:
                self.node_id = await self._cluster.find_coordinator(self.group_id, self._kind)
            return await self._cluster.request(
                api, message, node_id=self.node_id, lane=lane, timeout_s=timeout_s
            )
        except TidelogError as error:
            self.note(error.code)
            raise

    def note(self, code: ErrorCode) -> None:
        """Forget the coordinator if an answer's error means that it has moved."""
        if code in COORDINATOR_MOVED:
            self.forget()

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        generation: int = NO_GENERATION,
        member_id: str = "",
        group_instance_id: str | None = None,
        timeout_s: float,
        gives_up_on: Collection[ErrorCode] = (),
    ) -> None:
        """Commit the offsets; retries until the timeout while the coordinator moves.

        Raises the first partition's error that is not retriable or that ``give_up_on`` names.
        """
        if not offsets:
            return
        topics = topic_entries(
            OffsetCommitRequestTopic,
            offsets,
            lambda partition: build(
                OffsetCommitRequestPartition,
                partition_index=partition.partition,
                committed_offset=offsets[partition].offset,
                committed_leader_epoch=offsets[partition].leader_epoch,
                committed_metadata=offsets[partition].metadata,
            ),
        )
        request = build(
            OffsetCommitRequest,
            group_id=self.group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=group_instance_id,
            topics=topics,
        )

        await self.retried(
            OFFSET_COMMIT,
            request,
            lambda response: self._raise_worst(find_entries(OFFSET_COMMIT, response, offsets)),
            timeout_s=timeout_s,
            gives_up_on=gives_up_on,
        )

    async def committed(
        self, partitions: Iterable[TopicPartition] | None, *, timeout_s: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return committed offsets, of all partitions if None; omits those without a commit."""
        topics = None
        if partitions is not None:
            partitions = frozenset(partitions)
            topics = tuple(
                build(OffsetFetchRequestTopics, name=topic, partition_indexes=tuple(numbers))
                for topic, numbers in group_by_topic(partitions).items()
            )
        request = build(
            OffsetFetchRequest,
            groups=(
                build(
                    OffsetFetchRequestGroup,
                    group_id=self.group_id,
                    member_id=None,
                    member_epoch=-1,
                    topics=topics,
                ),
            ),
            require_stable=True,
        )

        def read(response: Any) -> dict[TopicPartition, Any]:
            wanted = [self.group_id]
            (group,) = entries_of(OFFSET_FETCH, response, wanted, about="offsets", depth=1).values()
            if group.error_code is not ErrorCode.none:
                raise error_for(group.error_code, None, about=self)
            there = _partitions_in(group.topics) if partitions is None else partitions
            # A partition that is left out would be read from its beginning or end.
            entries = find_within(OFFSET_FETCH, group, there)
            self._raise_worst(entries)
            return entries

        found = await self.retried(OFFSET_FETCH, request, read, timeout_s=timeout_s)
        return {
            partition: OffsetAndMetadata(
                int(answer.committed_offset),
                int(answer.committed_leader_epoch),
                answer.metadata or "",
            )
            for partition, answer in found.items()
            if answer.committed_offset >= 0
        }

    async def retried(
        self,
        api: Api,
        message: object,
        read: Callable[[Any], T],
        *,
        timeout_s: float,
        gives_up_on: Collection[ErrorCode] = (),
    ) -> T:
        """Repeat a request until the timeout while its errors are retriable.

        ``read`` raises the response's errors; what it returns is returned. An answer that lacks
        entries may be that of a former coordinator, so the request is repeated once for it.
        """
        backoff = self._cluster.backoff()
        failure: TidelogError | None = None
        lacking_count = 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return read(await self.request(api, message))
                    except TidelogError as error:
                        failure = error
                        self.note(error.code)
                        if not error.retriable or error.code in gives_up_on:
                            raise
                        if isinstance(error, EntryNotAnswered):
                            lacking_count += 1
                            if lacking_count == LACKING_ANSWERS_MAX:
                                raise
                        await asyncio.sleep(backoff.next_s())
        except TimeoutError:
            raise failure or RequestTimedOut(
                f"the coordinator of {self} did not answer within {timeout_s:g} s"
            ) from None

    def _raise_worst(self, entries: Mapping[TopicPartition, Any]) -> None:
        """Raise an entry's error, preferably one that is not retriable, if there is one."""
        errors = [
            error_for(entry.error_code, None, about=f"{self}, {partition}")
            for partition, entry in entries.items()
            if entry is not None and entry.error_code is not ErrorCode.none
        ]
        left_out = [partition for partition, entry in entries.items() if entry is None]
        if left_out:
            errors.append(EntryNotAnswered(left_out, about=str(self)))
        if errors:
            raise min(errors, key=lambda error: error.retriable)


def _partitions_in(topics: Iterable[Any]) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, int(answer.partition_index))
        for topic in topics
        for answer in topic.partitions
    ]

"""Admin calls for topics, partitions and their records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_topics.v7.request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kio.schema.delete_records.v2.request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.request import MetadataRequest, MetadataRequestTopic
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build

from tidelog.administering.calls import AdminCalls, failures_in, raise_failures
from tidelog.administering.results import (
    CreatedTopic,
    ListedOffset,
    NewTopic,
    OffsetSpec,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from tidelog.consuming.group_protocol import topic_entries
from tidelog.errors import InvalidRequest, error_for
from tidelog.given_values import instance, mapping, partition_of, several, text
from tidelog.metadata import topic_id_or_none
from tidelog.offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    list_offsets,
)
from tidelog.wire.answers import find_entries
from tidelog.wire.requests import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    METADATA,
)

_TIMESTAMPS: Mapping[str, int] = {
    "earliest": EARLIEST_TIMESTAMP,
    "latest": LATEST_TIMESTAMP,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_LOCAL_TIMESTAMP,
    "latest-tiered": LATEST_TIERED_TIMESTAMP,
}


class TopicCalls(AdminCalls):
    """Admin calls for topics."""

    async def create_topic(
        self,
        name: str,
        *,
        partition_count: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
    ) -> CreatedTopic:
        """Create one topic. Raises ``TopicAlreadyExists``, ``InvalidTopic`` and others."""
        given = mapping(configs or {}, "configs", "a name: a value")
        topic = NewTopic(text(name, "name"), partition_count, replication_factor, given)
        return (await self.create_topics([topic]))[name]

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic]:
        """Create topics, each independently of the others' failures. Durable on return."""
        given = [instance(topic, NewTopic, "each of topics") for topic in several(topics, "topics")]
        wanted = {topic.name: topic for topic in given}

        def request_for(names: list[str]) -> object:
            return build(
                CreateTopicsRequest,
                topics=tuple(_creatable(wanted[name]) for name in names),
                timeout=self._request_timeout,
                validate_only=validate_only,
            )

        created = await self._ask_for_each(CREATE_TOPICS, wanted, request_for, what="topic")
        return {
            name: CreatedTopic(
                name,
                topic_id_or_none(topic.topic_id),
                int(topic.num_partitions),
                int(topic.replication_factor),
            )
            for name, topic in created.items()
        }

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with all their records. Raises ``UnknownTopicOrPartition``."""

        def request_for(left: list[str]) -> object:
            return build(
                DeleteTopicsRequest,
                topics=tuple(build(DeleteTopicState, name=name, topic_id=None) for name in left),
                timeout=self._request_timeout,
            )

        wanted = several(names, "topics")
        await self._ask_for_each(DELETE_TOPICS, wanted, request_for, what="topic")

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """Return all topics sorted by name."""
        request = build(MetadataRequest, topics=None, allow_auto_topic_creation=False)
        topics = (await self._ask(METADATA, request, about="topics")).topics
        return [
            TopicListing(
                topic.name,
                topic_id_or_none(topic.topic_id),
                bool(topic.is_internal),
                len(topic.partitions),
            )
            for topic in sorted(topics, key=lambda topic: str(topic.name))
            if include_internal or not topic.is_internal
        ]

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Return topics with their partitions. Raises ``UnknownTopicOrPartition``."""

        def request_for(left: list[str]) -> object:
            topics = tuple(build(MetadataRequestTopic, name=name) for name in left)
            return build(MetadataRequest, topics=topics, allow_auto_topic_creation=False)

        wanted = several(names, "topics")
        topics = await self._ask_for_each(METADATA, wanted, request_for, what="topic")
        return {name: _describe(topic) for name, topic in topics.items()}

    async def create_partitions(
        self, partition_counts: Mapping[str, int], *, validate_only: bool = False
    ) -> None:
        """Increase topics' partition counts to the given ones. Raises ``InvalidPartitions``."""
        partition_counts = mapping(partition_counts, "partition_counts", "a topic: a count")

        def request_for(names: list[str]) -> object:
            return build(
                CreatePartitionsRequest,
                topics=tuple(
                    build(
                        CreatePartitionsTopic,
                        name=name,
                        count=partition_counts[name],
                        assignments=None,
                    )
                    for name in names
                ),
                timeout=self._request_timeout,
                validate_only=validate_only,
            )

        await self._ask_for_each(CREATE_PARTITIONS, partition_counts, request_for, what="topic")

    async def delete_records(
        self, before: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, int]:
        """Delete the records before each partition's offset; return the new log start offsets.

        Offset -1 deletes all records. Raises ``NodeError`` with code
        ``offset_out_of_range`` for offsets beyond the high watermark.
        """
        given = mapping(before, "before", "a partition: an offset")
        left = {partition_of(partition): offset for partition, offset in given.items()}
        done: dict[TopicPartition, int] = {}

        async def attempt() -> None:
            by_leader: dict[int, list[TopicPartition]] = {}
            for partition in left.keys() - done.keys():
                await self._cluster.wait_for_topic(partition.topic, timeout_s=self._timeout_s)
                leader = self._cluster.leader(partition)
                if leader is None:
                    topic = self._cluster.topic(partition.topic)
                    exists = topic is not None and partition.partition in topic.partitions
                    code = ErrorCode.unknown_topic_or_partition
                    raise error_for(
                        ErrorCode.leader_not_available if exists else code, None, about=partition
                    )
                by_leader.setdefault(leader.leader, []).append(partition)
            answers = await asyncio.gather(
                *(
                    self._delete_records(node_id, {p: left[p] for p in partitions})
                    for node_id, partitions in by_leader.items()
                )
            )
            entries = {partition: entry for part in answers for partition, entry in part.items()}
            failures = failures_in(entries, "")
            done.update(
                (partition, int(entry.low_watermark))
                for partition, entry in entries.items()
                if partition not in failures
            )
            raise_failures(failures)

        await self._retried(attempt)
        return done

    async def list_offsets(
        self, specs: Mapping[tuple[str, int], OffsetSpec], *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset]:
        """Return one offset per partition: an end by name, or the first at or after a time."""
        given = mapping(specs, "specs", "a partition: an end or a time")
        timestamps = {partition_of(p): timestamp_of(spec) for p, spec in given.items()}
        await self.start()
        found = await list_offsets(
            self._cluster,
            timestamps,
            read_committed=read_committed,
            timeout_s=self._timeout_s,
        )
        return {partition: ListedOffset(*at) for partition, at in found.items()}

    async def _delete_records(
        self, node_id: int, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Any]:
        request = build(
            DeleteRecordsRequest,
            topics=topic_entries(
                DeleteRecordsTopic,
                before,
                lambda p: build(
                    DeleteRecordsPartition, partition_index=p.partition, offset=before[p]
                ),
            ),
            timeout=self._request_timeout,
        )
        response = await self._cluster.request(DELETE_RECORDS, request, node_id=node_id)
        return find_entries(DELETE_RECORDS, response, before)


def timestamp_of(spec: OffsetSpec) -> int:
    """Return the timestamp that a ListOffsets request uses for the offset."""
    if isinstance(spec, int):
        if spec < 0:
            raise InvalidRequest(f"a time must not be negative, is {spec}")
        return spec
    if not isinstance(spec, str) or spec not in _TIMESTAMPS:
        raise InvalidRequest(
            f"an offset is one of {', '.join(_TIMESTAMPS)} or a time in ms, not {spec!r}"
        )
    return _TIMESTAMPS[spec]


def _creatable(topic: NewTopic) -> Any:
    return build(
        CreatableTopic,
        name=topic.name,
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            build(CreatableReplicaAssignment, partition_index=number, broker_ids=tuple(replicas))
            for number, replicas in topic.assignments.items()
        ),
        configs=tuple(
            build(CreatableTopicConfig, name=name, value=value)
            for name, value in topic.configs.items()
        ),
    )


def _describe(topic: Any) -> TopicDescription:
    partitions = sorted(topic.partitions, key=lambda partition: int(partition.partition_index))
    return TopicDescription(
        topic.name,
        topic_id_or_none(topic.topic_id),
        bool(topic.is_internal),
        tuple(
            PartitionDescription(
                int(p.partition_index),
                int(p.leader_id),
                int(p.leader_epoch),
                tuple(map(int, p.replica_nodes)),
                tuple(map(int, p.isr_nodes)),
            )
            for p in partitions
        ),
    )

"""Admin calls for the replicas and leaders of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kio.schema.alter_partition_reassignments.v1.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build

from tidelog.administering.calls import AdminCalls, failures_in
from tidelog.administering.results import Reassignment
from tidelog.consuming.group_protocol import topic_entries
from tidelog.errors import TidelogError
from tidelog.given_values import mapping, partition_of, partitions_of, several
from tidelog.wire.answers import find_entries
from tidelog.wire.requests import (
    ALTER_PARTITION_REASSIGNMENTS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
)

PREFERRED, UNCLEAN = 0, 1


class PartitionCalls(AdminCalls):
    """Admin calls for reassignments and elections."""

    async def alter_reassignments(
        self, replicas: Mapping[tuple[str, int], Sequence[int] | None]
    ) -> dict[TopicPartition, TidelogError | None]:
        """Move partitions to other replicas, ``None``: cancel the move; return each one's error.

        The first replica is the preferred leader. The moves go on after the call:
        ``list_reassignments`` shows those that are not complete. Source: KIP-455.
        """
        given = mapping(replicas, "replicas", "a partition: its replicas or None")
        wanted = {partition_of(partition): target for partition, target in given.items()}
        request = build(
            AlterPartitionReassignmentsRequest,
            timeout=self._request_timeout,
            topics=topic_entries(
                ReassignableTopic,
                wanted,
                lambda p: build(
                    ReassignablePartition,
                    partition_index=p.partition,
                    replicas=None
                    if (target := wanted[p]) is None
                    else tuple(several(target, "replicas")),
                ),
            ),
        )

        api = ALTER_PARTITION_REASSIGNMENTS
        response = await self._ask(api, request, about="reassignment")
        failures = failures_in(find_entries(api, response, wanted), "")
        return {partition: failures.get(partition) for partition in wanted}

    async def list_reassignments(self) -> dict[TopicPartition, Reassignment]:
        """Return the moves that are not complete."""
        request = build(
            ListPartitionReassignmentsRequest, timeout=self._request_timeout, topics=None
        )

        response = await self._ask(LIST_PARTITION_REASSIGNMENTS, request, about="reassignments")
        return {
            TopicPartition(topic.name, int(p.partition_index)): Reassignment(
                tuple(map(int, p.replicas)),
                tuple(map(int, p.adding_replicas)),
                tuple(map(int, p.removing_replicas)),
            )
            for topic in response.topics
            for p in topic.partitions
        }

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, is_unclean: bool = False
    ) -> dict[TopicPartition, TidelogError | None]:
        """Have the preferred replicas lead; return the partitions with an election, and its error.

        Without ``partitions``, in all partitions that another replica leads. ``is_unclean``: where
        there is no leader, have any live replica lead, which may lose records. The error
        ``ElectionNotNeeded`` says that the right replica leads already. Source: KIP-460.
        """
        wanted = None if partitions is None else partitions_of(partitions)
        topics = None
        if wanted is not None:
            by_topic: dict[str, list[int]] = {}
            for partition in wanted:
                by_topic.setdefault(partition.topic, []).append(partition.partition)
            topics = tuple(
                build(TopicPartitions, topic=name, partitions=tuple(numbers))
                for name, numbers in by_topic.items()
            )
        request = build(
            ElectLeadersRequest,
            election_type=UNCLEAN if is_unclean else PREFERRED,
            topic_partitions=topics,
            timeout=self._request_timeout,
        )

        response = await self._ask(ELECT_LEADERS, request, about="election")
        if wanted is None:
            wanted = [
                TopicPartition(topic.topic, int(result.partition_id))
                for topic in response.replica_election_results
                for result in topic.partition_result
            ]
        failures = failures_in(find_entries(ELECT_LEADERS, response, wanted), "")
        return {partition: failures.get(partition) for partition in wanted}

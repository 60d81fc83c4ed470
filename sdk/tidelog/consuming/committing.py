"""Commits of a consumer's offsets, explicit and automatic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from tidelog_core.model import TopicPartition

from tidelog.cluster import Cluster
from tidelog.consuming.coordinator import Coordinator
from tidelog.consuming.group_protocol import NO_GENERATION
from tidelog.consuming.membership import Membership
from tidelog.consuming.positions import UNKNOWN, PartitionState, Positions
from tidelog.consuming.records import GroupMetadata, OffsetAndMetadata
from tidelog.errors import CommitFailed, ErrorCode, TidelogError
from tidelog.options import ConsumerOptions

logger = logging.getLogger(__name__)

_EPOCHS_MAX = 10  # of the member, that one commit is tried with
_MOVED_ON = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.fenced_member_epoch,
        ErrorCode.stale_member_epoch,
    }
)


class Commits:
    """Runs one consumer's commits one after the other, so that the last one wins."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        coordinator: Coordinator,
        options: ConsumerOptions,
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._coordinator = coordinator
        self._options = options
        self._lock = asyncio.Lock()
        self._last: dict[TopicPartition, int] = {}  # the last automatic commit; not repeated
        self.membership: Membership | None = None  # None: partitions were assigned by hand

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        gives_up_on: Collection[ErrorCode] = (),
    ) -> None:
        """Commit; retries for the request timeout, except for final errors.

        Raises ``CommitFailed`` if the partitions may belong to another member already,
        ``RebalanceInProgress`` if the group is about to assign them again.
        """
        group = self.group_metadata()
        async with self._lock:
            for _ in range(_EPOCHS_MAX):
                if await self._commit_as(group, offsets, gives_up_on):
                    break
                group = self.group_metadata()
            else:
                raise CommitFailed(
                    f"the member had another epoch after each of {_EPOCHS_MAX} tries"
                )
            self._last.update((partition, given.offset) for partition, given in offsets.items())

    async def _commit_as(
        self,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        gives_up_on: Collection[ErrorCode],
    ) -> bool:
        """Commit as this member; return false if its epoch has changed and it may try again."""
        membership, timeout_s = self.membership, self._cluster.request_timeout_s
        try:
            await self._coordinator.commit(
                offsets,
                generation=group.generation,
                member_id=group.member_id,
                group_instance_id=group.group_instance_id,
                timeout_s=timeout_s,
                gives_up_on=gives_up_on,
            )
        except TidelogError as error:
            if membership is not None and group.generation == membership.generation:
                membership.note_commit_error(error.code)
            if error.code is ErrorCode.stale_member_epoch and membership is not None:
                # A partition that now belongs to another member must not be committed back.
                has_moved_on = await membership.has_moved_on(group.generation, timeout_s=timeout_s)
                if has_moved_on and offsets.keys() <= self._positions.partitions():
                    return False
            if error.code in _MOVED_ON:
                raise CommitFailed(str(error)) from error
            raise
        return True

    def group_metadata(self) -> GroupMetadata:
        """Return this member's identity. Raises ``CommitFailed`` if it is not a member."""
        group_id = self._coordinator.group_id
        if self.membership is None:
            return GroupMetadata(group_id)
        if self.membership.generation == NO_GENERATION:
            raise CommitFailed(
                f"this consumer is no member of group {group_id!r} now; "
                "its partitions may belong to another"
            )
        return GroupMetadata(
            group_id,
            self.membership.generation,
            self.membership.member_id,
            self._options.group_instance_id,
        )

    async def run(self) -> None:
        """Commit processed records every ``auto_commit_interval_ms``."""
        while True:
            await asyncio.sleep(self._options.auto_commit_interval_ms / 1000)
            if self.membership is None or self.membership.generation != NO_GENERATION:
                await self.commit_safely(list(self._positions))

    async def commit_safely(self, states: list[PartitionState]) -> None:
        """Commit the states' safe positions that have moved; failures are logged."""
        offsets = {
            state.partition: state.to_commit(state.safe_position)
            for state in states
            if state.safe_position not in (UNKNOWN, self._last.get(state.partition))
            and not self._is_of_deleted_topic(state)
        }
        if not offsets:
            return
        try:
            # Offsets of a deleted topic are not committed: a new topic of the same name has
            # other records.
            await self.commit(offsets, gives_up_on=(ErrorCode.unknown_topic_or_partition,))
        except TidelogError as error:
            logger.warning(
                "automatic commit failed",
                extra={"group_id": self._coordinator.group_id, "reason": str(error)},
            )

    def _is_of_deleted_topic(self, state: PartitionState) -> bool:
        # The topic that has the name now has other records, and would get the offset.
        topic = self._cluster.topics().get(state.partition.topic)
        if topic is None or topic.error is ErrorCode.unknown_topic_or_partition:
            return state.topic_id is not None
        return None not in (state.topic_id, topic.topic_id) and state.topic_id != topic.topic_id

    def forget(self, partitions: frozenset[TopicPartition]) -> None:
        """Drop these partitions: other members may commit for them from now on."""
        for partition in partitions:
            self._last.pop(partition, None)

"""The group coordinator of a node: handles the requests about groups."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode
from tidelog_core.admin.groups.offset_pages import read_offsets
from tidelog_core.errors import (
    GroupIdNotFound,
    NonEmptyGroup,
)
from tidelog_core.metadata.coordination.groups import CommittedOffset, OffsetsByTopic
from tidelog_core.metadata.store import Check, Write
from tidelog_core.model import TopicPartition

from tidelog_node.coordinator import loaded_offsets
from tidelog_node.coordinator.hosted_groups import HostedGroups
from tidelog_node.coordinator.led_shards import Leadership
from tidelog_node.coordinator.loaded_group import LoadedGroup
from tidelog_node.groups.any_group import Group
from tidelog_node.groups.classic_messages import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    GroupCaller,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    RequestNumber,
    SyncAnswer,
    SyncRequest,
)
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.consumer.heartbeat import ConsumerHeartbeat
from tidelog_node.groups.heartbeat_answer import JOIN_EPOCH, HeartbeatAnswer
from tidelog_node.groups.share.heartbeat import ShareHeartbeat
from tidelog_node.groups.share.share_group import ShareGroup
from tidelog_node.node_context import NodeContext

T = TypeVar("T")

MEMBER_ID_PREFIX_LENGTH_MAX = 255  # characters; with the random part it must fit an answer


class GroupCoordinator:
    """Handles requests for the groups that this node hosts. For the tasks of one event loop."""

    def __init__(
        self,
        node: NodeContext,
        groups: HostedGroups,
        *,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._node = node
        self._groups = groups
        self._new_id = new_id
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        """Start to coordinate the shards that the cluster's image gives to this node."""
        await self._groups.start()

    async def close(self) -> None:
        """Finish the writes in progress and send waiting clients to the next coordinator.

        A second call does nothing.
        """
        await self._groups.close()

    # -- members --

    def new_member_id(self, prefix: str | None) -> str:
        """Return a new unique id: the client's or instance's id and a random part."""
        if prefix is None:
            return self._new_id()
        return f"{prefix[:MEMBER_ID_PREFIX_LENGTH_MAX]}-{self._new_id()}"

    def next_number(self) -> RequestNumber:
        """Return a number for a request that waits for its answer."""
        return RequestNumber(next(self._numbers))

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """Return the answer when the rebalance allows, which may take minutes."""
        config = self._node.config()
        shortest_ms = config.group_min_session_timeout_ms
        longest_ms = config.group_max_session_timeout_ms
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            return JoinAnswer(error=ErrorCode.invalid_session_timeout, member_id=request.member_id)
        limits = GroupLimits(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_max_size,
        )
        answer = await self._groups.use(
            group_id,
            lambda group: group.join(request, limits),
            create=request.member_id == UNKNOWN_MEMBER_ID,
        )
        if answer is None:
            return JoinAnswer(error=ErrorCode.unknown_member_id, member_id=request.member_id)
        return answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """Return the answer when the leader's assignment is stored."""
        answer = await self._groups.use(group_id, lambda group: group.sync(request))
        return SyncAnswer(error=ErrorCode.unknown_member_id) if answer is None else answer

    async def heartbeat(self, group_id: str, caller: GroupCaller) -> ErrorCode:
        """Renew the member's session; the error code says whether it must rejoin."""
        error = await self._groups.use(group_id, lambda group: group.heartbeat(caller))
        return ErrorCode.unknown_member_id if error is None else error

    async def leave(
        self, group_id: str, identities: Sequence[MemberIdentity]
    ) -> Sequence[ErrorCode]:
        """Remove the members; return an error code for each."""
        errors = await self._groups.use(group_id, lambda group: group.leave(identities))
        return [ErrorCode.unknown_member_id for _ in identities] if errors is None else errors

    async def share_heartbeat(self, group_id: str, request: ShareHeartbeat) -> HeartbeatAnswer:
        """Renew the member's session and return its assignment (KIP-932)."""
        answer = await self._groups.use(
            group_id,
            lambda group: group.share_heartbeat(request),
            create=request.member_epoch == JOIN_EPOCH,
        )
        if answer is not None:
            return answer
        kind = "Group" if request.is_leaving else "Share group"
        return _not_found(kind, group_id)

    async def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat
    ) -> HeartbeatAnswer:
        """Renew the member's session and return its assignment (KIP-848)."""
        answer = await self._groups.use(
            group_id,
            lambda group: group.consumer_heartbeat(request),
            create=request.member_epoch == JOIN_EPOCH,
        )
        if answer is not None:
            return answer
        kind = "Group" if request.is_leaving else "Consumer group"
        return _not_found(kind, group_id)

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors that members may choose, the default first; never empty."""
        return self._groups.settings.assignors

    def preferred_assignor(self, group: ConsumerGroup) -> str:
        """Return the assignor of the group's next assignment."""
        return group.preferred_assignor(self._groups.settings.consumer(group.group_id))

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the topic's name, ``None`` if it was deleted."""
        return self._node.view.image.topic_names.get(topic_id)

    # -- groups as a whole --

    async def describe(self, group_id: str) -> Group | None:
        """Return the group, to be read before the next ``await``, or ``None``."""
        return await self._groups.use(group_id, _ready_group)

    async def list_groups(self) -> list[Group]:
        """Return the groups that this node coordinates."""
        return await self._groups.all()

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Delete an empty group with its offsets. Durable on return of ``none``."""
        error = await self._groups.use(group_id, self._delete_if_empty)
        return ErrorCode.group_id_not_found if error is None else error

    # -- offsets --

    async def commit_offsets(
        self,
        group_id: str,
        offsets: OffsetsByTopic,
        caller: GroupCaller,
        *,
        knows_epochs: bool = True,
    ) -> ErrorCode:
        """Store offsets, by topic and partition. Durable on return of ``none``.

        ``knows_epochs`` is false before version 9 of OffsetCommit. GROUP_ID_NOT_FOUND if a member
        of a group that does not exist commits; older versions get ILLEGAL_GENERATION.
        """
        error = await self._groups.use(
            group_id,
            lambda group: loaded_offsets.commit_offsets(
                group, caller, offsets=offsets, knows_epochs=knows_epochs
            ),
            create=caller.generation <= NO_GENERATION,
        )
        if error is None:
            return ErrorCode.group_id_not_found if knows_epochs else ErrorCode.illegal_generation
        return error

    async def fetch_offsets(
        self, group_id: str, partitions: Mapping[str, Collection[int]] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of the partitions by topic, or of all with ``None``.

        Offsets of a topic that does not exist are ignored. A stale image may lack a new topic, so
        the newest image decides, also on whether this node coordinates the group.
        """
        is_behind = False

        def is_topic(name: str, topic_id: UUID) -> bool:
            nonlocal is_behind
            is_known = self._is_topic(name, topic_id)
            is_behind |= not is_known
            return is_known

        await self._groups.shard_of(group_id).loaded()
        found = await read_offsets(self._node.store, group_id, partitions, is_topic=is_topic)
        if not is_behind:
            return found
        await self._node.view.refresh()
        await self._groups.shard_of(group_id).loaded()
        return await read_offsets(self._node.store, group_id, partitions, is_topic=self._is_topic)

    async def validate_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Return whether the caller may read committed offsets.

        Only members of consumer groups identify themselves. The commits of a member with an older
        epoch may have been refused, so it must not continue from offsets that it does not know of.
        """
        if member_id is None and epoch < 0:
            return ErrorCode.none
        group = await self._groups.use(group_id, _ready_group)
        if not isinstance(group, ConsumerGroup):
            return ErrorCode.none
        return group.validate_fetch(member_id, epoch)

    async def delete_offsets(
        self, group_id: str, partitions: Mapping[str, Collection[int]]
    ) -> tuple[ErrorCode, frozenset[str]]:
        """Remove offsets; return an error or the topics that members still consume."""
        result = await self._groups.use(
            group_id, lambda group: self._delete_offsets(group, partitions)
        )
        return (ErrorCode.group_id_not_found, frozenset()) if result is None else result

    async def change_empty_share_group(
        self,
        group_id: str,
        change: Callable[[], Awaitable[tuple[T, Sequence[Write]]]],
        *,
        create: bool = False,
    ) -> T:
        """Make a change in a share group that is empty and stays empty during it.

        ``change`` returns the answer and the writes; durable on return. With ``create`` a group
        that does not exist is created if there are writes. Raises ``GroupIdNotFound``,
        ``NonEmptyGroup``.
        """

        async def use(loaded: LoadedGroup) -> T:
            async def work() -> T:
                is_new = create and loaded.is_unstored
                if not is_new and not isinstance(loaded.group, ShareGroup):
                    raise GroupIdNotFound(f"Group {group_id} is not a share group.")
                if not loaded.group.is_empty:
                    raise NonEmptyGroup("The group is not empty.")
                await loaded.storage.claim()
                answer, writes = await change()
                if is_new and writes:
                    await loaded.become_share_group()
                await loaded.storage.write_in_parts(writes)
                return answer

            return await loaded.exclusively(work)

        found = await self._groups.use(group_id, use, create=create)
        if found is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        await self._groups.refresh_view()
        return found

    # -- offsets that wait for the end of a transaction; ``TransactionalOffsets`` keeps them --

    def shard_leadership(self, index: int) -> Leadership:
        """Return this node's leader term of a shard. Raises ``NotCoordinator`` without one."""
        return self._groups.shard_leadership(index)

    def shard_index(self, group_id: str) -> int:
        """Return the group's shard. Raises ``NotCoordinator`` if another node leads it."""
        return self._groups.shard_of(group_id).index

    async def commit_transactional(
        self,
        group_id: str,
        offsets: OffsetsByTopic,
        caller: GroupCaller,
        *,
        write: Callable[[OffsetsByTopic], Write],
        checks: Sequence[Check],
    ) -> ErrorCode:
        """Make the ``write`` of a transaction's offsets if the caller may commit for the group.

        ``write`` gets the offsets with times after those of the committed ones. Durable on return
        of ``none``. ILLEGAL_GENERATION if a member of a group that does not exist commits.
        """
        error = await self._groups.use(
            group_id,
            lambda group: loaded_offsets.commit_transactional(
                group, caller, offsets=offsets, write=write, checks=checks
            ),
            create=caller.generation <= NO_GENERATION,
        )
        return ErrorCode.illegal_generation if error is None else error

    async def commit_pending(
        self,
        group_id: str,
        offsets: OffsetsByTopic,
        *,
        also: Write,
        checks: Sequence[Check],
    ) -> None:
        """Store offsets of a committed transaction, and ``also``. Durable on return."""

        async def commit(group: LoadedGroup) -> bool:
            await loaded_offsets.commit_pending(group, offsets, also=also, checks=checks)
            return True

        await self._groups.use(group_id, commit, create=True)

    # -- parts of requests --

    async def _delete_if_empty(self, loaded: LoadedGroup) -> ErrorCode:
        async def delete() -> ErrorCode:
            if not loaded.group.is_empty:
                return ErrorCode.non_empty_group
            if await loaded.delete() or isinstance(loaded.group, ShareGroup):
                await self._groups.refresh_view()
            return ErrorCode.none

        return await loaded.exclusively(delete)

    async def _delete_offsets(
        self, loaded: LoadedGroup, partitions: Mapping[str, Collection[int]]
    ) -> tuple[ErrorCode, frozenset[str]]:
        async def remove() -> tuple[ErrorCode, frozenset[str]]:
            group = loaded.group
            if isinstance(group, ShareGroup):
                return ErrorCode.group_id_not_found, frozenset()
            is_empty = group.is_empty
            if not is_empty and not group.uses_consumer_protocol:
                return ErrorCode.non_empty_group, frozenset()
            consumed = frozenset(
                topic for topic in partitions if not is_empty and group.is_subscribed_to(topic)
            )
            free = {topic: frozenset(partitions[topic]) for topic in partitions.keys() - consumed}
            if free:
                await loaded.storage.remove_offsets(lambda page: free[page.topic], free)
                if await loaded.storage.drop_pending(free):
                    await self._groups.refresh_view()
            return ErrorCode.none, consumed

        await loaded.match_patterns()
        return await loaded.exclusively(remove)

    def _is_topic(self, name: str, topic_id: UUID) -> bool:
        return self._node.view.image.topic_names.get(topic_id) == name


def _not_found(kind: str, group_id: str) -> HeartbeatAnswer:
    message = f"{kind} {group_id} not found."
    return HeartbeatAnswer(error=ErrorCode.group_id_not_found, message=message)


async def _ready_group(loaded: LoadedGroup) -> Group:
    await loaded.ready()
    return loaded.group

"""Sessions and acknowledgements for ShareFetch and ShareAcknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping, Sequence

from tidelog_core.errors import (
    ErrorCode,
    InvalidGroupId,
    InvalidRecordState,
    InvalidRequest,
    InvalidShareSessionEpoch,
    TidelogError,
)

from tidelog_node.groups.share.partition import SharePartition
from tidelog_node.groups.share.partitions import SharePartitions
from tidelog_node.groups.share.sessions import INITIAL_EPOCH, ShareSession, ShareSessions
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.leaders import CurrentLeader
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.wire.share_fetch import Acknowledgement, PartitionKey

# Limits of the names in stored keys. DynamoDB's partition keys have 2,048 bytes.
GROUP_ID_SIZE_BYTES_MAX = 1000
MEMBER_ID_SIZE_BYTES_MAX = 1000
_LEADER_ERRORS = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
_NONE: Mapping[int, Replica] = {}


class ShareService:
    """Share groups' sessions and acknowledgements on the partitions that this node leads."""

    def __init__(
        self, node: NodeContext, *, replicas: ReplicaManager, partitions: SharePartitions
    ) -> None:
        self._node = node
        self.partitions = partitions
        self.replicas = replicas
        self._sessions = ShareSessions()
        self._releases: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Finish the writes under way."""
        await asyncio.gather(*self._releases)

    def led(self, key: PartitionKey) -> Replica:
        """Return the partition's replica, if this node may answer for it as the leader.

        Raises the refusal: ``NotLeaderOrFollower``, ``UnknownTopicId``,
        ``UnknownTopicOrPartition``.
        """
        topic_id, index = key
        replica = self.replicas.led_by_id.get(topic_id, _NONE).get(index)
        if replica is None:
            raise self.replicas.leaders.refusal(topic_id, index, is_id=True)
        self._node.require_serving()
        replica.require_readable()
        return replica

    def leader_hint(self, key: PartitionKey, error: TidelogError | None) -> CurrentLeader | None:
        """Return the partition's leader if the error says that this node does not lead it."""
        if error is None or error.code not in _LEADER_ERRORS:
            return None
        return self.replicas.leaders.find(*key, is_id=True)

    # -- sessions --

    def open_session(
        self, group_id: str, member_id: str, keys: Collection[PartitionKey], connection: Hashable
    ) -> ShareSession:
        """Begin a session, replacing the member's current one.

        Raises ``InvalidGroupId``, ``InvalidRequest``, ``ShareSessionLimitReached``.
        """
        size_bytes = len(group_id.encode())
        if not 0 < size_bytes <= GROUP_ID_SIZE_BYTES_MAX:
            raise InvalidGroupId(
                f"a group id has 1 to {GROUP_ID_SIZE_BYTES_MAX} bytes, not {size_bytes}"
            )
        size_bytes = len(member_id.encode())
        if not 0 < size_bytes <= MEMBER_ID_SIZE_BYTES_MAX:
            raise InvalidRequest(
                f"a member id has 1 to {MEMBER_ID_SIZE_BYTES_MAX} bytes, not {size_bytes}"
            )
        before = self._sessions.find(group_id, member_id)
        if before is not None:
            # Its records stay acquired: the member is the same, and may still have them.
            self._forget(before, keys)
        session = self._sessions.open(
            group_id,
            member_id,
            connection,
            sessions_max=self._node.config().group_share_max_share_sessions,
        )
        session.change(keys, ())
        return session

    def follow_session(
        self,
        group_id: str,
        member_id: str,
        epoch: int,
        *,
        added: Collection[PartitionKey] = (),
        forgotten: Collection[PartitionKey] = (),
    ) -> ShareSession:
        """Return the member's session with the request's changes.

        Raises ``ShareSessionNotFound``, ``InvalidShareSessionEpoch``.
        """
        if epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpoch(
                "epoch 0 opens a share session, which only ShareFetch can do"
            )
        session = self._sessions.follow(group_id, member_id, epoch)
        session.change(added, forgotten)
        for share in self.partitions.held(group_id, forgotten):
            share.leave(member_id)
        return session

    async def end_session(self, session: ShareSession) -> None:
        """Close the session and release the member's records.

        Returns once that is stored, or has failed: the next leader treats them as released.
        """
        self._forget(session, ())
        touched = self.partitions.of_group(session.group_id)
        for share in touched:
            share.state.release(session.member_id)
            share.changed()
        for share in touched:
            await _quiet(share)

    def end_connection(self, connection: Hashable) -> None:
        """End the sessions of a closed connection. Source: KIP-932."""
        for session in self._sessions.over(connection):
            task = asyncio.get_running_loop().create_task(self.end_session(session))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    def _forget(self, session: ShareSession, kept: Collection[PartitionKey]) -> None:
        self._sessions.close(session)
        gone = session.partitions.keys() - set(kept)
        for share in self.partitions.held(session.group_id, gone):
            share.leave(session.member_id)

    # -- acknowledgements --

    async def acknowledge(
        self,
        session: ShareSession,
        acknowledged: Mapping[PartitionKey, Sequence[Acknowledgement]],
        *,
        may_renew: bool = False,
    ) -> dict[PartitionKey, TidelogError | None]:
        """Apply a member's acknowledgements; return the outcomes. Durable on return of ``None``.

        Partitions without acknowledgements are left out.
        """
        outcome: dict[PartitionKey, TidelogError | None] = {}
        touched: dict[PartitionKey, SharePartition] = {}
        for key, acknowledgements in acknowledged.items():
            if not acknowledgements:
                continue
            try:
                touched[key] = self._apply(session, key, acknowledgements, may_renew=may_renew)
                outcome[key] = None
            except TidelogError as error:
                outcome[key] = error
        saves = await asyncio.gather(
            *(share.saved() for share in touched.values()), return_exceptions=True
        )
        for key, failure in zip(touched, saves, strict=True):
            if isinstance(failure, TidelogError):
                outcome[key] = failure
            elif failure is not None:
                raise failure
        return outcome

    def _apply(
        self,
        session: ShareSession,
        key: PartitionKey,
        acknowledgements: Sequence[Acknowledgement],
        *,
        may_renew: bool,
    ) -> SharePartition:
        share = self.partitions.get(session.group_id, self.led(key))
        if share is None:
            raise InvalidRecordState("nothing of the partition is acquired")
        lock_ms = self.partitions.settings(session.group_id).share_record_lock_duration_ms
        share.state.acknowledge(
            session.member_id,
            acknowledgements,
            deadline_ms=share.now_ms() + lock_ms,
            may_renew=may_renew,
        )
        share.changed()
        return share


async def _quiet(share: SharePartition) -> None:
    try:
        await share.saved()
    except TidelogError:
        return

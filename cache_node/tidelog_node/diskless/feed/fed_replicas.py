"""The replicas of this node that follow one chain, and those that are at the feed's position.

While the feed waits for the bucket, a partition may get another leader or epoch, or this node may
begin to lead it and refill the same log. So each append checks again that the replica still
follows, and does not wait between the check and the append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.log.local_log import LocalLog
from tidelog_core.replication.follower_state import FollowerState

from tidelog_node.diskless.recovery.chain_slices import StoredSlice
from tidelog_node.diskless.recovery.deleted_slices import lacks_deleted
from tidelog_node.replicas.replica import Replica

RETRY_SECONDS = 0.5


@dataclass(slots=True)
class FedReplica:
    """A replica of this node that follows the chain, in one leader epoch."""

    replica: Replica
    follower: FollowerState
    log: LocalLog  # the replica's; a replica with another log joins the feed again
    high_watermark: int
    log_start_offset: int

    @property
    def is_current(self) -> bool:
        """Whether the replica still follows in this epoch, with this log, and can."""
        role, log = self.replica.role, self.log
        is_followed = role is not None and role.follower is self.follower
        return is_followed and self.replica.opened_log is log and not log.is_offline

    @property
    def is_behind(self) -> bool:
        """Whether the replica lacks committed records, or has some that may not be committed.

        Records before its log's start may be missing too: then it begins at the tier's end.
        """
        if not self.is_current:
            return False
        log = self.log
        if log.unfilled is not None:
            return True
        return log.high_watermark < max(self.high_watermark, log.log_end_offset)

    def continues_at(self, base_offset: int) -> bool:
        """Whether the replica's log ends there, and all of it is known to be committed."""
        log = self.replica.log
        return log.log_end_offset == log.high_watermark == base_offset

    def lacks_deleted(self, start_offset: int) -> bool:
        """Whether the log begins at a log start, and does not know the producers of before."""
        start = self.follower.partition.log_start_offset
        return lacks_deleted(self.log, log_start_offset=start, start_offset=start_offset)


class FedReplicas:
    """The replicas of one feed. For the node's event loop."""

    def __init__(self, on_moved: Callable[[Replica], None]) -> None:
        """``on_moved`` is called after a replica's log has another end."""
        self.next_sequence = 0  # of the object to read next
        self.joined: set[PartitionName] = set()  # they have all below ``next_sequence``
        self._fed: dict[PartitionName, FedReplica] = {}
        self._put_off: dict[PartitionName, float] = {}  # until this time of the loop they wait
        # They were behind when their leader answered. Slices are not all that moves a log: it may
        # be restarted at its leader's end, or a fill that began before it followed may end.
        self._unreported: set[PartitionName] = set()
        self._on_moved = on_moved

    def get(self, name: PartitionName) -> FedReplica | None:
        """Return the partition's replica, ``None`` if it does not follow this chain."""
        return self._fed.get(name)

    def note(self, fed: FedReplica) -> None:
        """Take the leader's high watermark and log start of a partition."""
        name = fed.replica.name
        known = self._fed.get(name)
        if known is None or known.follower is not fed.follower or known.log is not fed.log:
            self.joined.discard(name)
            self._put_off.pop(name, None)
        self._fed[name] = fed
        if fed.is_behind:
            self._unreported.add(name)

    def drop_others(self) -> set[PartitionName]:
        """Forget the replicas that no longer follow this chain; return the remaining ones."""
        for name in [name for name, fed in self._fed.items() if not fed.is_current]:
            del self._fed[name]
            self.joined.discard(name)
            self._put_off.pop(name, None)
            self._unreported.discard(name)
        return set(self._fed)

    def behind(self) -> list[PartitionName]:
        """Return the replicas that are behind."""
        return [name for name, fed in self._fed.items() if fed.is_behind]

    def report_caught_up(self) -> None:
        """Report to the leader all replicas that have caught up, however they did."""
        for name in [one for one in self._unreported if not self._fed[one].is_behind]:
            self._report(self._fed[name])

    def follows(self, name: PartitionName) -> bool:
        """Return whether the replica follows this chain."""
        fed = self._fed.get(name)
        return fed is not None and fed.is_current

    # -- joining --

    def due(self, names: Iterable[PartitionName]) -> list[PartitionName]:
        """Return those that may try to join now."""
        now_s = asyncio.get_running_loop().time()
        return [name for name in names if self._put_off.get(name, 0.0) <= now_s]

    def put_off(self, names: Iterable[PartitionName], seconds: float) -> None:
        """Have the replicas join again after this time."""
        until_s = asyncio.get_running_loop().time() + seconds
        for name in names:
            self.joined.discard(name)
            self._put_off[name] = until_s

    # -- appending --

    def append(
        self, name: PartitionName, fed: FedReplica, data: memoryview, stored: StoredSlice
    ) -> None:
        """Append a slice, if the replica still follows and ends where the slice begins.

        ``data`` has its bytes. It is writable, and not needed after the call.
        """
        known = self._fed.get(name)
        # In the same epoch, even if the leader has answered since.
        if known is None or known.follower is not fed.follower:
            return
        if not (fed.is_current and fed.continues_at(stored.base_offset)):
            self.joined.discard(name)
            return
        fed.replica.append_as_follower(data)
        self.prove(fed, stored.end_offset)

    def prove(self, fed: FedReplica, end_offset: int) -> None:
        """Note that the log's records below the offset are committed."""
        replica = fed.replica
        replica.follow_leader(high_watermark=end_offset, log_start_offset=fed.log_start_offset)
        self._report(fed)

    def _report(self, fed: FedReplica) -> None:
        """Have the leader learn the replica's high watermark with the next fetch."""
        if not fed.is_behind:
            self._unreported.discard(fed.replica.name)
        if fed.is_current:
            self._on_moved(fed.replica)

"""Reopens logs that are offline because of a disk error or damage.

Theory of operation. A log with a disk error goes offline immediately, and so does one whose files
turn out to be damaged when it is opened. ``LeaderWrites.leave_broken`` leaves ISR and leadership to
the other replicas, if any is in sync. Once the replica is out of the ISR, the log may be recovered
as at a node start:

- *A log with a disk error* is reopened: bytes that the disk may lack are written again
  (``log.unflushed_segments``), and damage past the recovery point is cut off. If another node
  leads, the replica follows it from there, which truncates by leader epoch; it joins the ISR when
  it has caught up. If this node is the last in sync, it leads again, in the next leader epoch:
  followers may have more records than are left of this log.
- *Bytes that the disk cannot read* may be readable later. After ``READ_ATTEMPTS_MAX`` attempts they
  are taken for lost, and the file that contained them is kept in the quarantine.
- A reopened log that is shorter than before, or empty, lacks records that leaders may count on. As
  at a start (KIP-903) the node registers again before it follows: after that no leader's write
  based on an earlier fetch can take effect, and a read of the metadata shows the writes that did.
- The last replica in sync must have every record that was ever in its log. Any of them may have
  been acknowledged, by this node or by a leader that it followed. If the disk has lost some,
  continuing would assign acknowledged offsets to other records. So the log stays offline, and one
  ERROR says that a restart continues without them: a person decides, and may look for the records
  first. The records of a diskless partition are in its chains and in the tier: its log is reopened
  with any ISR, and brought to their end before the node leads again.
- *A damaged log* is set aside, never removed, if another node leads and this one is not in sync:
  the replica begins with an empty log and gets every record from the leader and the tier. The last
  replica in sync stays offline: ``tidelog repair`` shows the rest of it. A diskless partition's log
  is always set aside: everything that was acknowledged is in its chains and in the tier.

While a thread opens a log, its partition may leave this node and return. So the files stay until
the attempt is over, and the partition's next replica waits (``ReplicaManager.begin_reopening``).

Attempts are repeated after growing delays. A log that needs a person is tried again once other
replicas lead without it. Trouble and its end are reported once each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tidelog_core.back_off import back_off_seconds
from tidelog_core.errors import StorageError, TidelogError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import CorruptLog
from tidelog_core.metadata.image.readings import is_readable
from tidelog_core.metadata.records import Partition
from tidelog_core.waiting import wait_and_clear

from tidelog_node.disk.data_disk import DataDisk
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.replicas.role_changes import leave_chain

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
WAIT_SECONDS_MAX = 60.0  # between attempts for a log that keeps failing
FORGIVEN_SECONDS = 600.0  # without trouble, before its earlier troubles are forgotten
READ_ATTEMPTS_MAX = 5  # about a minute, then unreadable bytes are taken for lost
OFFLINE = "log-offline"


@dataclass(slots=True)
class _Trouble:
    """The attempts to reopen one log."""

    count: int = 0  # of attempts that failed or did not last
    last_at: float = 0.0  # the loop's time

    def not_before(self) -> float:
        return self.last_at + back_off_seconds(
            self.count, first=CHECK_SECONDS, longest=WAIT_SECONDS_MAX
        )


class LogReopener:
    """Watches the logs in trouble. For the node's event loop; ``run`` is one task."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        disk: DataDisk,
        directories: LogDirectories,
        start_next_epoch: Callable[[str, Partition], None],
        register: Callable[[], Awaitable[None]],
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._disk = disk
        self._directories = directories
        self._start_next_epoch = start_next_epoch
        self._register = register  # this process again; then the view has read the cluster
        self._troubles: dict[Replica, _Trouble] = {}
        self._reported: set[Replica] = set()  # in trouble, and reported
        self._given_up: set[Replica] = set()  # logs that need a person
        self._stir = asyncio.Event()
        replicas.trouble.subscribe(self._note)

    async def run(self) -> None:
        """Reopen logs until cancelled."""
        while True:
            await wait_and_clear(self._stir, CHECK_SECONDS)
            await self.attempt_due()

    async def attempt_due(self) -> None:
        """Make the attempts that are due."""
        found = self._replicas.in_trouble()
        self._given_up = {one for one in self._given_up.intersection(found) if self._is_last(one)}
        for replica in found:
            self._report(replica)
        self._end_reports(found)
        now = asyncio.get_running_loop().time()
        self._forget_old_troubles(now)
        for replica in found:
            trouble = self._troubles.setdefault(replica, _Trouble(last_at=now))
            if self._needs_repair(replica):
                self._request_repair(replica)
            elif self._is_ready(replica) and now >= trouble.not_before():
                trouble.count, trouble.last_at = trouble.count + 1, now
                await self._restore(replica)
        self._end_reports(self._replicas.in_trouble())

    def _note(self, _: Replica) -> None:
        self._stir.set()

    def _forget_old_troubles(self, now: float) -> None:
        """Forget the failures of logs that have worked long enough, or that were deleted."""
        for replica, trouble in list(self._troubles.items()):
            if not replica.is_in_trouble and now - trouble.last_at > FORGIVEN_SECONDS:
                del self._troubles[replica]

    def _needs_repair(self, replica: Replica) -> bool:
        """Whether the log is damaged, no other replica is in sync, and that is not reported yet."""
        is_new = replica not in self._given_up and not replica.is_diskless
        return replica.damage is not None and is_new and self._is_last(replica)

    def _is_last(self, replica: Replica) -> bool:
        """Whether no other replica is in sync."""
        partition = self._node.view.image.partition(replica.partition)
        return partition is not None and partition.isr == (self._node.broker_id,)

    def _is_ready(self, replica: Replica) -> bool:
        """Whether the log may be reopened: the replica is out of the ISR, or the last in it."""
        partition = self._node.view.image.partition(replica.partition)
        if partition is None or not is_readable(partition) or replica in self._given_up:
            return False
        if replica.is_dropped:  # Its files may be those of the partition's next replica.
            return False
        if not (self._disk.is_fit and self._node.membership.can_serve()):
            return False
        log, is_member = replica.opened_log, self._node.broker_id in partition.isr
        if log is None:
            # Damaged: only the leader's records can replace it, or those of its chains.
            if replica.is_diskless:
                return replica.damage is not None
            is_led = partition.leader not in (-1, self._node.broker_id)
            return replica.damage is not None and is_led and not is_member
        is_free = not is_member or partition.isr == (self._node.broker_id,) or replica.is_diskless
        return log.may_be_reopened and is_free

    async def _restore(self, replica: Replica) -> None:
        log = replica.opened_log
        try:
            if log is None:
                await self._fetch_again(replica)
            else:
                await self._reopen(replica, log)
        except CorruptLog as error:
            replica.give_up(error)
            logger.error(
                "log is damaged, it is fetched again once another replica leads; where none can,"
                f" stop the node and see `{self._repair_command(replica)}`",
                extra={"partition": str(replica.partition), "reason": str(error)},
            )
        except (TidelogError, OSError) as error:
            if isinstance(error, StorageError | OSError):
                self._disk.note(error)
            logger.debug("log could not be opened again", exc_info=error)
        except Exception:
            # A failure of one log must not keep the others offline.
            logger.exception(
                "opening a log again broke, will retry",
                extra={"partition": str(replica.partition)},
            )

    async def _fetch_again(self, replica: Replica) -> None:
        if replica.is_diskless:
            self._replicas.end_lead(replica)  # It must not lead with an empty log.
        await self._register()
        if not self._is_ready(replica):
            return
        aside = self._directories.set_aside(replica)
        logger.warning(
            "damaged log set aside, it is fetched again",
            extra={
                "partition": str(replica.partition),
                "path": str(aside),
                "reason": str(replica.damage),
            },
        )
        replica.allow_reopening()
        self._replicas.follow_again(replica.partition.topic)

    async def _reopen(self, replica: Replica, before: LocalLog) -> None:
        self._replicas.begin_reopening(replica)
        try:
            await self._open_again(replica, before)
        except Exception:
            self._replicas.end_reopening(replica)
            raise
        # Not if it is cancelled: a thread may be at work on the files while the node stops.
        self._replicas.end_reopening(replica)

    async def _open_again(self, replica: Replica, before: LocalLog) -> None:
        end_offset = before.log_end_offset
        is_patient = self._troubles[replica].count <= READ_ATTEMPTS_MAX
        quarantine = None if is_patient else self._directories.quarantine(replica)
        before.close()
        loop = asyncio.get_running_loop()
        after = await loop.run_in_executor(self._node.executor, replica.reopen, quarantine)
        is_taken = False
        try:
            if after.log_end_offset < end_offset:
                await self._register()
            partition = self._node.view.image.partition(replica.partition)
            if replica.opened_log is not before or partition is None or not self._is_ready(replica):
                return
            is_last = partition.isr == (self._node.broker_id,)
            is_short = after.log_end_offset < end_offset
            if is_last and is_short and not replica.is_diskless:
                self._give_up(replica, after.log_end_offset, end_offset)
                return
            is_taken = True
            leads_on = replica.is_diskless and partition.leader == self._node.broker_id
            self._take(replica, after, partition, leads_on=is_last or leads_on)
        finally:
            if not is_taken:
                after.take_offline()
                after.close()

    def _take(
        self, replica: Replica, log: LocalLog, partition: Partition, *, leads_on: bool
    ) -> None:
        if leads_on:
            replica.is_leader = False
            leave_chain(replica)
            if replica.role is not None:
                replica.role.end()
        replica.take(log)
        replica.followed = None
        if leads_on:
            self._start_next_epoch(replica.partition.topic, partition)
        self._replicas.follow_again(replica.partition.topic)

    def _give_up(self, replica: Replica, end_offset: int, end_before: int) -> None:
        self._given_up.add(replica)
        reason = f"the disk has lost the acknowledged records from {end_offset} to {end_before - 1}"
        self._node.health.report(OFFLINE, reason, subject=str(replica.partition))
        logger.error(
            "log stays offline; restart the node to go on without the records that are lost",
            extra={"partition": str(replica.partition), "reason": reason},
        )

    # -- reports --

    def _request_repair(self, replica: Replica) -> None:
        self._given_up.add(replica)
        logger.error(
            "log is damaged and no other replica is in sync: stop the node and see"
            f" `{self._repair_command(replica)}`",
            extra={"partition": str(replica.partition), "reason": str(replica.damage)},
        )

    def _repair_command(self, replica: Replica) -> str:
        return (
            f"tidelog repair --partition {replica.partition}"
            f" --data-dir {self._directories.path} --dry-run"
        )

    def _report(self, replica: Replica) -> None:
        """Report that the log is in trouble. Of several, only the first is logged."""
        if replica in self._reported:
            return
        is_first = not self._reported
        self._reported.add(replica)
        log = replica.opened_log
        reason = str(replica.damage) if log is None else "the log is offline"
        self._node.health.report(OFFLINE, reason, subject=str(replica.partition))
        if log is None or not log.may_be_reopened:
            return  # The caller that tried to open it, or took it offline, has logged it.
        if is_first:
            logger.error(
                "log is offline, its disk has failed; it is opened again once the disk works",
                extra={"partition": str(replica.partition), "path": str(log.directory)},
            )

    def _end_reports(self, found: list[Replica]) -> None:
        over = self._reported.difference(found)
        for replica in over:
            self._node.health.clear(OFFLINE, subject=str(replica.partition))
        self._reported -= over
        if over and not self._reported:
            logger.warning("logs are online again", extra={"count": len(over)})

"""Converts the partitions that this node leads between replicated and diskless.

    to diskless: all sealed segments tiered → enter the own chain at the active segment's start,
                 put what it has → the leader writes that the chain commits
    back:        the leader writes that the replicas commit → the tier gets what the chains have
                 → the item forgets the chains

The leader's state decides when each write is safe, and ``conversion`` says why. This module only
begins a change, and feeds the chain. A failed step is tried again; a partition that waits is served
as before. An open transaction holds the tier back, so a partition that has sealed segments above it
waits for its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidelog_core.errors import InvalidConfig, StorageError, TidelogError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.waiting import wait_and_clear

from tidelog_node.diskless.takeover.leader_chain import LeaderChain
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.replicas.role import Leader
from tidelog_node.tier.manifests import BucketManifests

logger = logging.getLogger(__name__)

VISIT_SECONDS = 1.0
REFUSED_SECONDS = 30.0  # before a store that can have no chains is asked again
# What a partition may put into the chain at once; more of it is tiered first.
ENTERING_BYTES_MAX = 64 << 20
PIECE_BYTES = 4 << 20  # less than an object


class Conversions:
    """Begins conversions and feeds the chain. For the node's event loop; ``run`` is one task."""

    def __init__(
        self,
        replicas: ReplicaManager,
        *,
        own_chain: Callable[[], Awaitable[LeaderChain]],
        manifests: BucketManifests,
        flush: Callable[[Replica], object],
    ) -> None:
        """``own_chain`` as for ``Takeovers``; ``flush`` begins a flush of a replica's log."""
        self._replicas = replicas
        self._own_chain = own_chain
        self._manifests = manifests
        self._flush = flush
        self._returning: set[Replica] = set()
        # Of partitions that are replicated again: the leader epoch, and the end of their logs when
        # that was seen. The chains have nothing above.
        self._chain_ends: dict[Replica, tuple[int, int]] = {}
        self._stir = asyncio.Event()
        self._unsubscribe = replicas.conversion.subscribe(lambda _: self._stir.set())

    async def run(self) -> None:
        """Convert partitions until cancelled."""
        try:
            while True:
                is_busy = bool(self._replicas.to_convert or self._returning)
                await wait_and_clear(self._stir, VISIT_SECONDS if is_busy else None)
                try:
                    await self.visit()
                except InvalidConfig as error:
                    logger.warning("partitions not converted", extra={"reason": str(error)})
                    await asyncio.sleep(REFUSED_SECONDS)
                except (TidelogError, OSError) as error:
                    logger.warning(
                        "partitions not converted yet, will retry", extra={"reason": str(error)}
                    )
                    await asyncio.sleep(VISIT_SECONDS)
                except Exception:
                    logger.exception("partitions not converted yet, will retry")
                    await asyncio.sleep(VISIT_SECONDS)
        finally:
            self._unsubscribe()

    async def visit(self) -> None:
        """Take the next step of every partition's conversion. Raises the stores' errors."""
        wanted = self._replicas.to_convert
        for replica in self._returning - wanted:
            if replica.leader is not None:
                replica.leader.end_return()
        self._returning &= wanted
        for replica in self._chain_ends.keys() - wanted:
            del self._chain_ends[replica]
        for replica in tuple(wanted):
            leader, log = replica.leader, replica.opened_log
            if not replica.is_leader or leader is None or log is None or log.is_offline:
                continue
            if replica.is_diskless:
                if not replica.wants_diskless and log.unfilled is None:
                    self._return(replica, leader)
            elif replica.wants_diskless:
                await self._enter(replica, leader)
            else:
                self._forget_chains(replica, leader, log)

    # -- to diskless --

    async def _enter(self, replica: Replica, leader: Leader) -> None:
        if leader.has_left_chain:
            self._begin_next_epoch(replica, leader)
        if not (leader.may_enter and self._is_ready(replica)):
            return
        own = await self._own_chain()
        # A restoration from the bucket alone needs the topic of every acknowledged record.
        await self._manifests.ensure({replica.topic_id})
        # From here on nothing waits: the chain is notified of every append to the log.
        is_same = replica.leader is leader and leader.may_enter and not own.is_deposed
        if not (is_same and replica.wants_diskless and self._is_ready(replica)):
            return
        if own.has_uncommitted(replica):
            return  # Of an earlier epoch: what it commits is not of this one.
        log = replica.log
        first_offset = log.active_segment_base_offset
        chain = EpochChain(leader.leader_epoch, own.name, first_offset)
        try:
            own.enter(
                replica, (chain,), end_offset=first_offset, previous_sequence=-1, tail_count=0
            )
        except ValueError:
            # It has left this chain in this epoch, and an epoch that has left does not come back.
            self._begin_next_epoch(replica, leader)
            return
        assert replica.role is not None
        replica.role.begin_entering(chain)
        _note_all(replica, log, first_offset)
        logger.info(
            "partition is becoming diskless",
            extra={"partition": str(replica.partition), "offset": first_offset},
        )

    def _begin_next_epoch(self, replica: Replica, leader: Leader) -> None:
        leader.begin_next_epoch()
        self._replicas.roles.wants_write.notify(replica)

    def _is_ready(self, replica: Replica) -> bool:
        """Return whether the tier has all but the active segment, and that is not long."""
        log = replica.log
        # The log start of the item: who leads next does not know this log's.
        if max(log.tiered_up_to, replica.log_start_offset) < log.active_segment_base_offset:
            return False
        if log.active_segment_size_bytes <= ENTERING_BYTES_MAX:
            return True
        self._roll(replica, log)
        return False

    # -- back --

    def _return(self, replica: Replica, leader: Leader) -> None:
        if replica not in self._returning:
            self._returning.add(replica)
            logger.info(
                "partition is becoming replicated", extra={"partition": str(replica.partition)}
            )
        leader.begin_return()
        self._replicas.roles.wants_write.notify(replica)

    def _forget_chains(self, replica: Replica, leader: Leader, log: LocalLog) -> None:
        epoch, end_offset = self._chain_ends.get(replica, (-1, 0))
        if epoch != leader.leader_epoch:
            self._chain_ends[replica] = leader.leader_epoch, log.log_end_offset
            self._roll(replica, log)
        elif log.tiered_up_to >= end_offset:
            leader.note_chains_tiered()
            self._replicas.roles.wants_write.notify(replica)

    def _roll(self, replica: Replica, log: LocalLog) -> None:
        try:
            log.roll()
        except StorageError as error:
            if not replica.note_failure(error):
                raise
        else:
            replica.note_changed()
            self._flush(replica)


def _note_all(replica: Replica, log: LocalLog, first_offset: int) -> None:
    """Note the whole log in the chain, in pieces that fit into objects.

    Most of it is below the high watermark: before it is put, the tier may get it, and log starts
    may pass it. The chain holds it until it is committed.
    """
    chain = replica.chain
    assert chain is not None
    base_offset = first_offset
    for piece_end in log.hold(first_offset, PIECE_BYTES):
        ranges = log.file_ranges(base_offset, piece_end)
        chain.on_append(replica, base_offset, piece_end, sum(end - at for _, at, end in ranges))
        base_offset = piece_end

"""Takes over the diskless partitions that this node was elected to lead.

    elected → note this node as an heir in the former leader's chain, seal that chain
            → read the chains of the heirs that others have noted → read the items
            → find its slices; then for groups of partitions, short tails first: refill the logs
            → one conditional write: next epoch, own chain, end offset → enter → lead

An election only names the node that is to lead: after a start, after a leader's death, by a
handover. The chain that the item names may still be written, by an earlier leader that does not
know. So its end is made certain first, and the write that names this node's chain is what begins
the next epoch. A new partition has no chain: its first leader only writes.

**A leader that hands over has ended its epoch in the item.** Its chain has all of the partition up
to the end offset there, and gets nothing more of it. So it is neither sealed nor searched for
successors: the leader epoch of that write began after this process had read the cluster, so the
metadata store was not set back since. The chain goes on with its other partitions. After any later
election the item no longer says that the epoch has ended, and the chain is sealed.

**A partition whose item names this node's own chain** has left it, and nobody has led it elsewhere
since: a log was opened again, or the successor of a handover never entered. An epoch that has left
does not come back, so it enters the same chain in another one. Nothing of it is pending, so its
committed records are all that it has.

Partitions with the same former chain are taken together. A partition whose records cannot be read
stays without a leader and is tried again, then given to a broker that may have them
(``passed_leads``); the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.takeover.chain_sealer import ChainSealer
from tidelog_core.diskless.takeover.successors import Successors, SuccessorSearch
from tidelog_core.diskless.takeover.takeover import Takeover
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import CorruptObject, TidelogError
from tidelog_core.waiting import wait_and_clear

from tidelog_node.diskless.recovery.log_recovery import LogRecovery
from tidelog_node.diskless.takeover.chain_ends import ChainEnds
from tidelog_node.diskless.takeover.leader_chain import (
    LeaderChain,
    OwnChainEnded,
    require_committed,
)
from tidelog_node.diskless.takeover.leader_takeover import LeaderTakeover, TakenPartitions
from tidelog_node.diskless.takeover.passed_leads import PassedLeads
from tidelog_node.diskless.takeover.pending_takeovers import FormerChain, PendingTakeovers
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.tier.manifests import BucketManifests

logger = logging.getLogger(__name__)

CHAINS_AT_ONCE_MAX = 8
OUT_OF_RESOURCES_FAULT = "out-of-resources"


class Takeovers:
    """Takes over the partitions that ``RoleChanges.unentered_lead`` names. ``run`` is one task."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        own_chain: Callable[[], Awaitable[LeaderChain]],
        chains: ChainStore,
        recovery: LogRecovery,
        manifests: BucketManifests,
        successors: SuccessorSearch | None = None,
    ) -> None:
        """``own_chain`` returns the node's current chain, another one after a deposal.

        It raises the store's errors, and ``InvalidConfig`` if chains cannot be kept in this store.
        """
        self._node = node
        self._own_chain = own_chain
        self._manifests = manifests
        self._listings = recovery.listings
        self._successors = successors or SuccessorSearch(chains)
        self._ends = ChainEnds(node, chains)
        self._pending = PendingTakeovers(node, replicas)
        self._leader_takeover = LeaderTakeover(
            node, replicas=replicas, recovery=recovery, pending=self._pending
        )
        self._passed_leads = PassedLeads(node)
        recovery.damaged.subscribe(self._pending.damaged.note)
        # By the former chain: groups whose items are not read yet. Elections come some at a time,
        # and each group lists its chain and reads its footers.
        self._open: dict[FormerChain, dict[PartitionName, Replica]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(CHAINS_AT_ONCE_MAX)
        self._unsubscribe = replicas.roles.unentered_lead.subscribe(self._pending.note)

    async def run(self) -> None:
        """Enter partitions until cancelled."""
        try:
            while True:
                await wait_and_clear(self._pending.changed, None)
                taken = self._pending.take()
                self._report_scarcity()
                for former, group in taken.items():
                    if former in self._open:
                        self._open[former] |= group
                        continue
                    self._open[former] = group
                    task = asyncio.create_task(self._enter(former, group), name="entering leads")
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        finally:
            self._unsubscribe()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def has_unentered(self) -> bool:
        """Whether this node is to lead any partition that it has not entered yet."""
        return self._pending.has_any

    async def _enter(self, former: FormerChain, group: dict[PartitionName, Replica]) -> None:
        is_urgent = False
        try:
            async with self._slots:
                await self._take_over(former, group)
        except OwnChainEnded as error:
            logger.info(
                "diskless partitions enter another chain",
                extra={"count": len(group), "chain": str(former.chain), "reason": str(error)},
            )
            is_urgent = True
        except (TidelogError, OSError) as error:
            logger.warning(
                "diskless partitions not led yet, will retry",
                extra={"count": len(group), "chain": str(former.chain), "reason": str(error)},
            )
            if isinstance(error, CorruptObject):  # It may have records of any of the partitions.
                for name in group:
                    self._pending.damaged.note(name, error)
        except Exception:
            # Any failure: the partitions have no leader until they are entered.
            logger.exception("diskless partitions not led yet, will retry")
        finally:
            self._close(former, group)
        self._pending.end(group, is_urgent=is_urgent)
        self._report_scarcity()
        await self._pass_on(group)
        self._report_scarcity()

    def _report_scarcity(self) -> None:
        """Report a lack of descriptors or memory that keeps partitions from being led."""
        reason = self._pending.damaged.scarcity
        if reason:
            self._node.health.report(OUT_OF_RESOURCES_FAULT, reason)
        else:
            self._node.health.clear(OUT_OF_RESOURCES_FAULT)

    async def _pass_on(self, group: dict[PartitionName, Replica]) -> None:
        """Give partitions that were found damaged again and again to other replicas."""
        damaged = [
            (replica.partition, partition)
            for name, replica in group.items()
            if self._pending.damaged.is_hopeless(name)
            and (partition := self._pending.unentered(replica)) is not None
        ]
        self._pending.damaged.forget(await self._passed_leads.pass_on(damaged))

    def _close(self, former: FormerChain, group: dict[PartitionName, Replica]) -> None:
        """Let no more partitions join the group."""
        if self._open.get(former) is group:
            del self._open[former]

    async def _take_over(self, former: FormerChain, group: dict[PartitionName, Replica]) -> None:
        """Take the group's partitions from the chain; those that fail are left out.

        Raises the stores' errors, and ``CorruptObject``.
        """
        own, chain = await self._own_chain(), former.chain
        sealed_at, successors = -1, Successors({}, is_whole=True)
        require_committed(own, group)
        if chain is None:
            takeover = Takeover.of_new_partitions(own.name)
        elif former.is_handed_over or chain == own.name:
            if former.is_handed_over:
                await self._ends.note_heir(chain, own)
            takeover = Takeover.of_ended_epochs(chain, own.name)
        else:
            known_end = self._listings.known_end(chain)
            now_ms = self._node.membership.now_ms()
            sealer = ChainSealer(chain, known_end=known_end, now_ms=now_ms)
            sealed_at = await self._ends.seal(sealer, own)
            # The items are read afterwards: those of a healthy store know all epochs of the chains.
            successors = await self._successors.find(chain, sealed_at, own=own.name)
            takeover = Takeover.of_sealed_chain(sealer, own.name)
        self._close(former, group)
        require_committed(own, group)
        # A restoration from the bucket alone needs the topic of every acknowledged record.
        await self._manifests.ensure({name.topic_id for name in group})
        taken = TakenPartitions(dict(group), own, sealed_at, successors)
        await self._leader_takeover.carry_out(taken, takeover, takeover.begin())

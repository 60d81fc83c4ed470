"""Follows one leader's chain for the replicas of this node: from the bucket, object by object.

    the leader's high watermark is above the replica's → read the next object, append its slices

An object with a slice below a high watermark is committed, and so are those before it. So when one
partition moves, all replicas of the chain on this node take what the object has for them, and the
object is read once. A replica whose log does not end at the feed's position (it is new or behind,
or the object was collected) *joins* the feed (``chain_joins``). The feed is one task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.errors import CorruptObject, ObjectNotFound, TidelogError
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.store import ObjectStore
from tidelog_core.waiting import wait_and_clear

from tidelog_node.diskless.feed.chain_joins import ChainJoins
from tidelog_node.diskless.feed.fed_replicas import RETRY_SECONDS, FedReplica, FedReplicas
from tidelog_node.diskless.feed.followed_objects import FollowedObjects
from tidelog_node.diskless.recovery.log_refill import LogRefill
from tidelog_node.diskless.recovery.range_reader import RangeReader
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.lent_ranges import LentRange, RangeLender

logger = logging.getLogger(__name__)

OBJECTS_ONE_BY_ONE = 4  # then the objects that are left are read many at a time
OBJECTS_AT_ONCE = 8


class ChainFeed:
    """The replicas of one chain. For the node's event loop; ``run`` is one task."""

    def __init__(
        self,
        chain: ChainName,
        *,
        store: ObjectStore,
        lender: RangeLender,
        read: RangeReader,
        cluster_id: str,
        refill: LogRefill,
        catch_up: CatchUp,
        on_moved: Callable[[Replica], None],
        joins: asyncio.Semaphore,
    ) -> None:
        """``lender`` reads the objects one by one, ``read`` other ranges.

        ``on_moved`` is called after a replica's log has another end.

        ``joins`` limits how many feeds of the node read all footers of their chains at once.
        """
        self.chain = chain
        self._replicas = FedReplicas(on_moved)
        self._objects = FollowedObjects(
            chain, self._replicas, store=store, lender=lender, read=read, cluster_id=cluster_id
        )
        self._joins = ChainJoins(
            chain,
            self._replicas,
            chains=ChainStore(store, cluster_id, read=read),
            cluster_id=cluster_id,
            refill=refill,
            catch_up=catch_up,
            slots=joins,
        )
        self._stir = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether no replica follows by this chain any more."""
        left = self._replicas.drop_others()
        self._joins.forget_others(left)
        return not left

    def note(self, fed: FedReplica) -> None:
        """Take the leader's high watermark and log start of a partition."""
        self._replicas.note(fed)
        if fed.is_behind:
            self._stir.set()
        elif fed.is_current:
            fed.replica.follow_leader(
                high_watermark=fed.high_watermark, log_start_offset=fed.log_start_offset
            )

    async def run(self) -> None:
        """Feed the replicas until cancelled."""
        while True:
            await wait_and_clear(self._stir, None)
            try:
                await self._catch_up_all()
            except (TidelogError, OSError) as error:
                logger.warning(
                    "chain cannot be followed, will retry",
                    extra={"chain": str(self.chain), "reason": str(error)},
                )
                await asyncio.sleep(RETRY_SECONDS)
                self._stir.set()
            except Exception:
                # Any failure is retried. Otherwise consumers of this zone would wait for ever.
                logger.exception("following a chain broke, will retry")
                await asyncio.sleep(RETRY_SECONDS)
                self._stir.set()

    async def _catch_up_all(self) -> None:
        read_count = 0
        while True:
            self._replicas.report_caught_up()
            behind = self._replicas.behind()
            if not behind:
                return
            apart = [name for name in behind if name not in self._replicas.joined]
            due = self._replicas.due(apart)
            if due:
                await self._joins.join(due)
            elif len(apart) == len(behind):
                await wait_and_clear(self._stir, RETRY_SECONDS)
            else:
                read_count += 1
                is_far_behind = read_count > OBJECTS_ONE_BY_ONE
                at_once = min(OBJECTS_AT_ONCE, self._objects.at_once_max) if is_far_behind else 1
                await self._read_next(at_once)

    async def _read_next(self, count: int) -> None:
        """Read the next objects at once, and append their slices to the replicas in order.

        An object is committed if it and all objects before it exist. So this stops at the first
        that is missing, or that no replica waits for. Raises the store's errors, and
        ``CorruptObject``.

        Feeds that wait for memory while they have some do not block each other: each has the first
        of its objects, can append that, and gives its memory back.
        """
        first = self._replicas.next_sequence
        heads = [
            asyncio.create_task(self._objects.read_head(first + number)) for number in range(count)
        ]
        try:
            for head in heads:
                if not await self._take_next(head, is_first=head is heads[0]):
                    return
                _release(head)
        finally:
            for head in heads:
                head.cancel()
                head.add_done_callback(_release)

    async def _take_next(self, head: asyncio.Task[LentRange], *, is_first: bool) -> bool:
        """Append the slices of the next object; return whether to go on with the one after it."""
        replicas = self._replicas
        if not is_first and replicas.joined.isdisjoint(replicas.behind()):
            return False
        try:
            await self._objects.take((await head).data)
        except ObjectNotFound:
            if is_first:  # Collected: the tier has what it had.
                replicas.joined.clear()
                await asyncio.sleep(RETRY_SECONDS)
            return False
        except CorruptObject:
            replicas.joined.clear()  # Those that need it join, and each gets its own error.
            raise
        replicas.next_sequence += 1
        return True


def _release(head: asyncio.Task[LentRange]) -> None:
    if not head.cancelled() and head.exception() is None:
        head.result().release()

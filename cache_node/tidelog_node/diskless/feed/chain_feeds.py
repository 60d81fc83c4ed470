"""The feeds of all chains that this node follows: one for each leader."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.store import ObjectStore
from tidelog_core.replication.follower_state import Append, FollowerState

from tidelog_node.diskless.feed.chain_feed import ChainFeed
from tidelog_node.diskless.feed.fed_replicas import FedReplica
from tidelog_node.diskless.recovery.log_refill import LogRefill
from tidelog_node.diskless.recovery.range_reader import RangeReader
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.lent_ranges import RangeLender

JOINS_AT_ONCE_MAX = 4  # of all feeds of a node


class ChainFeeds:
    """The feeds of all chains that this node follows. For the node's event loop."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        lender: RangeLender,
        read: RangeReader,
        cluster_id: str,
        refill: LogRefill,
        catch_up: CatchUp,
        on_moved: Callable[[Replica], None],
    ) -> None:
        self._store = store
        self._lender = lender
        self._read = read
        self._cluster_id = cluster_id
        self._refill = refill
        self._catch_up = catch_up
        self._on_moved = on_moved
        self._feeds: dict[ChainName, tuple[ChainFeed, asyncio.Task[None]]] = {}
        self._joins = asyncio.Semaphore(JOINS_AT_ONCE_MAX)
        self._is_closed = False

    def note(self, replica: Replica, follower: FollowerState, append: Append) -> None:
        """Take a leader's answer about a diskless partition, with its high watermark."""
        chains = follower.partition.wal
        if self._is_closed or not chains or chains[-1].leader_epoch != follower.leader_epoch:
            return  # The item is older than the answer.
        fed = FedReplica(
            replica, follower, replica.log, append.high_watermark, append.log_start_offset
        )
        self._feed_of(chains[-1].chain).note(fed)

    async def close(self) -> None:
        """Stop feeding."""
        self._is_closed = True
        tasks = [task for _, task in self._feeds.values()]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _feed_of(self, chain: ChainName) -> ChainFeed:
        known = self._feeds.get(chain)
        if known is not None:
            return known[0]
        for name, (feed, task) in tuple(self._feeds.items()):
            if feed.is_idle:
                task.cancel()
                del self._feeds[name]
        feed = ChainFeed(
            chain,
            store=self._store,
            lender=self._lender,
            read=self._read,
            cluster_id=self._cluster_id,
            refill=self._refill,
            catch_up=self._catch_up,
            on_moved=self._on_moved,
            joins=self._joins,
        )
        task = asyncio.create_task(feed.run(), name=f"feed of chain {chain.chain_id}")
        self._feeds[chain] = feed, task
        return feed

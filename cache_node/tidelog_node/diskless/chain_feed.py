"""Follows one leader's chain for the replicas of this node: from the bucket, object by object.

    the leader's high watermark is above the log's end → read the next object, append its slices

An object with a slice below a high watermark is committed, and so are those before it. So when one
partition moves, all replicas of the chain on this node take what the object has for them, and the
object is read once. A replica that does not continue where the feed is (new, behind, the object
was collected) *joins*: it begins at the tier's end if that is better, then all footers of its
chains are read, and its missing slices many at a time.

The feed is one task. While it waits for the bucket, a partition may get another leader or epoch,
or this node may begin to lead it and refill the same log. So the feed looks again before each
append whether it still feeds the replica, and appends without waiting in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from crc32c import crc32c
from tidelog_core.diskless.chain_store import ChainStore, ListedObject
from tidelog_core.diskless.epoch_chains import PartitionName
from tidelog_core.diskless.keys import wal_key
from tidelog_core.diskless.wal_footer import WalFooter, parse_footer
from tidelog_core.diskless.wal_header import HEADER_SIZE, WalKind, parse_header
from tidelog_core.diskless.wal_rows import SliceRow
from tidelog_core.errors import CorruptObject, ObjectNotFound, StoreUnavailable, TidelogError
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.store import ObjectStore
from tidelog_core.replication.follower_state import Append, FollowerState
from tidelog_core.waiting import wait_and_clear

from tidelog_node.diskless.chain_slices import StoredSlice, WantedSlices, find_slices, log_of
from tidelog_node.diskless.entering import name_of
from tidelog_node.diskless.refilling import LogRefill
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.replica import Replica

logger = logging.getLogger(__name__)

FIRST_READ_BYTES = 1 << 20  # most objects are smaller, and are read by one request
OBJECTS_IN_A_ROW_MAX = 16  # then those that are still behind join again, many slices at a time
SLICES_AT_ONCE_MAX = 16
RETRY_SECONDS = 0.5


@dataclass(slots=True)
class Fed:
    """A replica of this node that follows by the chain, in one leader epoch."""

    replica: Replica
    follower: FollowerState
    high_watermark: int
    log_start_offset: int

    @property
    def is_current(self) -> bool:
        """Whether the replica still follows in this epoch, and can."""
        role, log = self.replica.role, self.replica.opened_log
        is_followed = role is not None and role.follower is self.follower
        return is_followed and log is not None and not log.is_offline

    @property
    def is_behind(self) -> bool:
        """Whether the leader has committed more than the replica has."""
        return self.is_current and self.replica.log.log_end_offset < self.high_watermark


class ChainFeed:
    """The replicas of one chain. For the node's event loop; ``run`` is one task."""

    def __init__(
        self,
        chain: ChainName,
        *,
        store: ObjectStore,
        cluster_id: str,
        refill: LogRefill,
        catch_up: CatchUp,
        on_grown: Callable[[Replica], None],
    ) -> None:
        """``on_grown`` is called after a replica has got records."""
        self.chain = chain
        self._store = store
        self._cluster_id = cluster_id
        self._chains = ChainStore(store, cluster_id)
        self._refill = refill
        self._catch_up = catch_up
        self._on_grown = on_grown
        self._fed: dict[PartitionName, Fed] = {}
        self._joined: set[PartitionName] = set()  # they have all below ``_next``
        self._next = 0  # the sequence of the object to read next
        self._stir = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether no replica follows by this chain any more."""
        for name in [name for name, fed in self._fed.items() if not fed.is_current]:
            self._drop(name)
        return not self._fed

    def note(self, fed: Fed) -> None:
        """Take what the leader says of a partition."""
        name = name_of(fed.replica)
        known = self._fed.get(name)
        if known is None or known.follower is not fed.follower:
            self._joined.discard(name)
        self._fed[name] = fed
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
                # Any failure is retried: consumers of this zone would wait for ever.
                logger.exception("following a chain broke, will retry")
                await asyncio.sleep(RETRY_SECONDS)
                self._stir.set()

    async def _catch_up_all(self) -> None:
        read_count = 0
        while behind := [name for name, fed in self._fed.items() if fed.is_behind]:
            if read_count == OBJECTS_IN_A_ROW_MAX:
                self._joined.difference_update(behind)
                read_count = 0
            apart = [name for name in behind if name not in self._joined]
            if apart:
                await self._join(apart)
            else:
                await self._read_next()
                read_count += 1

    def _drop(self, name: PartitionName) -> None:
        self._fed.pop(name, None)
        self._joined.discard(name)

    # -- object by object --

    async def _read_next(self) -> None:
        """Read the next object and append what it has for the replicas.

        Raises the store's errors, and ``CorruptObject``.
        """
        key = wal_key(self._cluster_id, self.chain, self._next)
        try:
            head = bytes(await self._store.get_range(key, 0, FIRST_READ_BYTES))
            footer = await self._footer(head, key)
            for row in footer.slices:
                await self._take(row, head, key)
        except ObjectNotFound:  # Collected: the tier has what it had.
            self._joined.clear()
            return
        except CorruptObject:
            self._joined.clear()  # Those that need it join, and each gets its own error.
            raise
        self._next += 1

    async def _footer(self, head: bytes, key: str) -> WalFooter:
        header = parse_header(head[:HEADER_SIZE], key=key)
        if header.kind is not WalKind.DATA or header.sequence != self._next:
            # Nothing above a seal is committed: the high watermark is that of another chain.
            raise StoreUnavailable(f"{key} has no records, and more are committed")
        if header.size_bytes <= len(head):
            return parse_footer(head, object_size=header.size_bytes, key=key)
        listed = ListedObject(self._next, header.size_bytes)
        return await self._chains.footer(self.chain, listed)

    async def _take(self, row: SliceRow, head: bytes, key: str) -> None:
        name = PartitionName(UUID(bytes=row.topic_id), row.partition)
        fed = self._fed.get(name)
        if fed is None or name not in self._joined or not fed.is_current:
            return
        if row.is_foreign or row.leader_epoch != fed.follower.leader_epoch:
            return  # Of a gateway, or from before the partition left and came back.
        end_offset = fed.replica.log.log_end_offset
        if row.end_offset <= end_offset:
            return
        if row.base_offset != end_offset:
            self._joined.discard(name)
            return
        end = row.position + row.size_bytes
        if end <= len(head):
            data: bytes | memoryview = memoryview(head)[row.position : end]
        else:
            data = await self._store.get_range(key, row.position, end)
        if len(data) != row.size_bytes or crc32c(data) != row.crc32c:
            raise CorruptObject(key, f"the CRC of the slice at {row.position} does not match")
        self._append(name, fed, data, row.base_offset, row.end_offset)

    def _append(
        self,
        name: PartitionName,
        fed: Fed,
        data: bytes | bytearray | memoryview,
        base_offset: int,
        end_offset: int,
    ) -> None:
        """Append the slice, if the replica still follows and ends where the slice begins."""
        replica = fed.replica
        if self._fed.get(name) is not fed and not self._is_renewed(name, fed):
            return
        if not fed.is_current or replica.log.log_end_offset != base_offset:
            self._joined.discard(name)
            return
        replica.append_as_follower(memoryview(bytearray(data)))
        replica.follow_leader(high_watermark=end_offset, log_start_offset=fed.log_start_offset)
        self._on_grown(replica)

    def _is_renewed(self, name: PartitionName, fed: Fed) -> bool:
        """Whether the leader has only said more of the same partition in the same epoch."""
        known = self._fed.get(name)
        return known is not None and known.follower is fed.follower

    # -- joining --

    async def _join(self, names: Sequence[PartitionName]) -> None:
        """Bring the replicas to where the feed is, or to what is known to be committed.

        Raises the store's errors. A partition whose records are missing is tried again later.
        """
        joining = {name: self._fed[name] for name in names}
        for fed in joining.values():
            await self._catch_up.begin(fed.replica, fed.follower)
        joining = {name: fed for name, fed in joining.items() if fed.is_current}
        wanted = {
            name: WantedSlices(fed.follower.partition.wal, fed.replica.log.log_end_offset)
            for name, fed in joining.items()
        }
        found = await find_slices(self._chains, wanted, {})
        committed = [
            one.sequence
            for name, fed in joining.items()
            for one in found[name].get(self.chain, ())
            if one.end_offset <= fed.high_watermark
        ]
        next_sequence = max([self._next, *(sequence + 1 for sequence in committed)])
        is_one_broken = False
        for name, fed in joining.items():
            mine = dict(found[name])
            mine[self.chain] = [
                one for one in mine.get(self.chain, ()) if one.sequence < next_sequence
            ]
            try:
                slices, _ = log_of(name, wanted[name], mine, cluster_id=self._cluster_id)
                await self._fetch(name, fed, slices)
                self._joined.add(name)
            except (TidelogError, OSError) as error:
                is_one_broken = True
                logger.error(
                    "diskless replica cannot be filled, will retry",
                    extra={"partition": str(fed.replica.partition), "reason": str(error)},
                )
        self._next = next_sequence
        if is_one_broken:
            await asyncio.sleep(RETRY_SECONDS)

    async def _fetch(self, name: PartitionName, fed: Fed, slices: Iterable[StoredSlice]) -> None:
        """Append the slices in order, some at a time."""
        left = list(slices)
        for at in range(0, len(left), SLICES_AT_ONCE_MAX):
            some = left[at : at + SLICES_AT_ONCE_MAX]
            parts = await asyncio.gather(*(self._refill.read_slice(name, one) for one in some))
            for one, data in zip(some, parts, strict=True):
                log = fed.replica.log
                if fed.is_current and one.base_offset < log.log_end_offset < one.end_offset:
                    self._refill.append_slice(fed.replica, data)
                    self._on_grown(fed.replica)
                else:
                    self._append(name, fed, data, one.base_offset, one.end_offset)


class ChainFeeds:
    """The feeds of all chains that this node follows. For the node's event loop."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        cluster_id: str,
        refill: LogRefill,
        catch_up: CatchUp,
        on_grown: Callable[[Replica], None],
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._refill = refill
        self._catch_up = catch_up
        self._on_grown = on_grown
        self._feeds: dict[ChainName, tuple[ChainFeed, asyncio.Task[None]]] = {}

    def note(self, replica: Replica, follower: FollowerState, said: Append) -> None:
        """Take what the leader of a diskless partition says: up to where it is committed."""
        chains = follower.partition.wal
        if not chains or chains[-1].leader_epoch != follower.leader_epoch:
            return  # The item is older than the answer.
        fed = Fed(replica, follower, said.high_watermark, said.log_start_offset)
        self._feed_of(chains[-1].chain).note(fed)

    async def close(self) -> None:
        """Stop feeding."""
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
            cluster_id=self._cluster_id,
            refill=self._refill,
            catch_up=self._catch_up,
            on_grown=self._on_grown,
        )
        task = asyncio.create_task(feed.run(), name=f"feed of chain {chain.chain_id}")
        self._feeds[chain] = feed, task
        return feed

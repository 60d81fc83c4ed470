"""Follows one leader's chain for the replicas of this node: from the bucket, object by object.

    the leader's high watermark is above the replica's → read the next object, append its slices

An object with a slice below a high watermark is committed, and so are those before it. So when one
partition moves, all replicas of the chain on this node take what the object has for them, and the
object is read once. A replica that does not continue where the feed is (new, behind, the object
was collected) *joins*: it begins at the tier's end if that is better, then all footers of its
chains are read, and its missing slices many at a time. At a log start beyond the tier it begins
with the last deleted records: it may lead next, and knows their producers by them alone.

**What a log has above its own high watermark proves nothing.** It may be of a time when this node
led, and was never committed; or the node has just started. So a replica that joins compares it with
the chains, and cuts what differs. From then on its log ends at its high watermark.

The feed is one task. While it waits for the bucket, a partition may get another leader or epoch,
or this node may begin to lead it and refill the same log. So the feed looks again before each
append whether it still feeds the replica, and appends without waiting in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from crc32c import crc32c
from tidelog_core.diskless.chain.store import ChainStore, ListedObject
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter, parse_footer
from tidelog_core.diskless.wal.header import HEADER_SIZE, WalKind, parse_header
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import (
    CorruptObject,
    ObjectNotFound,
    StoreUnavailable,
    TidelogError,
    TierUnavailable,
)
from tidelog_core.log.local_log import LocalLog
from tidelog_core.metadata.epoch_chains import ChainName, cut_tiered
from tidelog_core.objects.store import ObjectStore
from tidelog_core.replication.follower_state import Append, FollowerState
from tidelog_core.waiting import wait_and_clear

from tidelog_node.diskless.recovery.chain_slices import (
    ReadChains,
    StoredSlice,
    WantedSlices,
    find_slices,
    list_chains,
    log_of,
    referenced_slice,
    stored_slice,
)
from tidelog_node.diskless.recovery.deleted_slices import (
    StoredObjects,
    begin_with_deleted,
    lacks_deleted,
    slices_below,
    stored_objects,
    wanted_below,
)
from tidelog_node.diskless.recovery.range_reader import RangeReader
from tidelog_node.diskless.recovery.refilling import LogRefill, MissingSlice, placed
from tidelog_node.diskless.recovery.slice_reads import SlicePlace, read_places
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.replica import Replica

logger = logging.getLogger(__name__)

AWAY = (StoreUnavailable, TierUnavailable)
FIRST_READ_BYTES = 1 << 20  # most objects are smaller, and are read by one request
OBJECTS_ONE_BY_ONE = 4  # then the objects that are left are read many at a time
OBJECTS_AT_ONCE = 8
SLICES_AT_ONCE_MAX = 16
REFERENCED_BYTES_MAX = 32 << 20  # of gateways' slices that are read at once
JOINS_AT_ONCE_MAX = 4  # of all feeds of a node
RETRY_SECONDS = 0.5
BROKEN_SECONDS = 5.0  # before a replica whose records are missing or damaged joins again


@dataclass(slots=True)
class Fed:
    """A replica of this node that follows by the chain, in one leader epoch."""

    replica: Replica
    follower: FollowerState
    log: LocalLog  # the replica's; another one begins anew
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
        """Whether the leader has committed more than the replica is known to have.

        Or the replica has records that are not known to be committed, or lacks some before its
        start: then it begins where the tier ends.
        """
        if not self.is_current:
            return False
        log = self.log
        if log.unfilled is not None:
            return True
        return log.high_watermark < max(self.high_watermark, log.log_end_offset)

    def lacks_deleted(self, start_offset: int) -> bool:
        """Whether the log begins at a log start, and does not know who has written before."""
        start = self.follower.partition.log_start_offset
        return lacks_deleted(self.log, log_start_offset=start, start_offset=start_offset)


class ChainFeed:
    """The replicas of one chain. For the node's event loop; ``run`` is one task."""

    def __init__(
        self,
        chain: ChainName,
        *,
        store: ObjectStore,
        read: RangeReader,
        cluster_id: str,
        refill: LogRefill,
        catch_up: CatchUp,
        on_grown: Callable[[Replica], None],
        joins: asyncio.Semaphore,
    ) -> None:
        """``read`` reads the objects one by one, ``store`` does the rest.

        ``on_grown`` is called after a replica has got records.

        ``joins`` bounds the feeds of the node that read all footers of their chains at once.
        """
        self.chain = chain
        self._joins = joins
        self._store = store
        self._read = read
        self._cluster_id = cluster_id
        self._chains = ChainStore(store, cluster_id)
        self._refill = refill
        self._catch_up = catch_up
        self._on_grown = on_grown
        self._fed: dict[PartitionName, Fed] = {}
        self._joined: set[PartitionName] = set()  # they have all below ``_next``
        self._next = 0  # the sequence of the object to read next
        self._put_off: dict[PartitionName, float] = {}  # until this time of the loop they wait
        self._missed: set[PartitionName] = set()  # an object was gone when they joined last
        # An object was damaged or gone when they began with deleted records: perhaps one of those.
        self._without_deleted: set[PartitionName] = set()
        self._stir = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether no replica follows by this chain any more."""
        for name in [name for name, fed in self._fed.items() if not fed.is_current]:
            self._drop(name)
        return not self._fed

    def note(self, fed: Fed) -> None:
        """Take what the leader says of a partition."""
        name = fed.replica.name
        known = self._fed.get(name)
        if known is None or known.follower is not fed.follower or known.log is not fed.log:
            self._joined.discard(name)
            self._put_off.pop(name, None)
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
        while behind := self._behind():
            now_s = asyncio.get_running_loop().time()
            apart = [name for name in behind if name not in self._joined]
            due = [name for name in apart if self._put_off.get(name, 0.0) <= now_s]
            if due:
                await self._join(due)
            elif len(apart) == len(behind):
                await wait_and_clear(self._stir, RETRY_SECONDS)
            else:
                read_count += 1
                await self._read_next(1 if read_count <= OBJECTS_ONE_BY_ONE else OBJECTS_AT_ONCE)

    def _behind(self) -> list[PartitionName]:
        return [name for name, fed in self._fed.items() if fed.is_behind]

    def _drop(self, name: PartitionName) -> None:
        self._fed.pop(name, None)
        self._joined.discard(name)
        self._put_off.pop(name, None)
        self._missed.discard(name)
        self._without_deleted.discard(name)

    # -- object by object --

    async def _read_next(self, count: int) -> None:
        """Read the next objects and append what they have for the replicas.

        They are read at once. An object that exists is committed if all before it do: they are
        taken in order, up to the first that is missing or that no replica waits for. Raises the
        store's errors, and ``CorruptObject``.
        """
        first = self._next
        keys = [wal_key(self._cluster_id, self.chain, first + n) for n in range(count)]
        heads = await asyncio.gather(
            *(self._read(key, 0, FIRST_READ_BYTES) for key in keys),
            return_exceptions=True,
        )
        for key, head in zip(keys, heads, strict=True):
            is_enough = self._joined.isdisjoint(self._behind())
            if self._next > first and (is_enough or isinstance(head, ObjectNotFound)):
                return
            try:
                await self._take_object(key, head)
            except ObjectNotFound:  # Collected: the tier has what it had.
                self._joined.clear()
                await asyncio.sleep(RETRY_SECONDS)
                return
            except CorruptObject:
                self._joined.clear()  # Those that need it join, and each gets its own error.
                raise
            self._next += 1

    async def _take_object(self, key: str, read: bytes | memoryview | BaseException) -> None:
        if isinstance(read, BaseException):
            raise read
        head = bytes(read)
        footer = await self._footer(head, key)
        own = [
            (
                PartitionName(UUID(bytes=row.topic_id), row.partition),
                stored_slice(self.chain, self._next, row),
            )
            for row in footer.slices
            if not row.is_foreign  # else it has offsets in another chain
        ]
        referenced = [
            (
                PartitionName(UUID(bytes=row.topic_id), row.partition),
                referenced_slice(self._next, row),
            )
            for row in footer.references
        ]
        foreign: Mapping[StoredSlice, bytearray] = {}
        # The own slices come first in the object, whatever the offsets.
        found = sorted((*own, *referenced), key=lambda one: one[1].base_offset)
        for at, (name, one) in enumerate(found):
            if one.is_reference and one not in foreign and self._wants(name, one) is not None:
                foreign = await self._read_referenced(self._wanted_references(found, at))
            await self._take(name, one, head, key, foreign)

    def _wanted_references(
        self, found: Sequence[tuple[PartitionName, StoredSlice]], at: int
    ) -> list[StoredSlice]:
        """Return the references from there on that replicas want, as many as memory may have.

        While a leader cannot store its objects, the references of many megabytes fit into one.
        """
        wanted: list[StoredSlice] = []
        size_bytes = 0
        for name, one in itertools.islice(found, at, None):
            if one.is_reference and self._wants(name, one) is not None:
                size_bytes += one.size_bytes
                if wanted and size_bytes > REFERENCED_BYTES_MAX:
                    break
                wanted.append(one)
        return wanted

    async def _read_referenced(self, slices: Sequence[StoredSlice]) -> dict[StoredSlice, bytearray]:
        """Return the bytes of gateways' slices, with their offsets: one read for neighbours."""
        of_object: dict[str, list[StoredSlice]] = {}
        for one in slices:
            key = wal_key(self._cluster_id, one.chain, one.sequence)
            of_object.setdefault(key, []).append(one)
        found: dict[StoredSlice, bytearray] = {}
        for key, some in of_object.items():
            places = [SlicePlace(one.position, one.size_bytes, one.crc32c) for one in some]
            for one, data in zip(some, await read_places(self._store, key, places), strict=True):
                found[one] = placed(data, one, key=key)
        return found

    async def _footer(self, head: bytes, key: str) -> WalFooter:
        header = parse_header(head[:HEADER_SIZE], key=key)
        if header.kind is not WalKind.DATA or header.sequence != self._next:
            # A late seal is in the place of a collected object; or this is no leader any more.
            self._joined.clear()
            raise StoreUnavailable(f"{key} has no records, and more are committed")
        if header.size_bytes <= len(head):
            return parse_footer(head, object_size=header.size_bytes, key=key)
        listed = ListedObject(self._next, header.size_bytes)
        return await self._chains.footer(self.chain, listed)

    def _wants(self, name: PartitionName, one: StoredSlice) -> Fed | None:
        """Return the replica that lacks the slice, if one follows by this feed in its epoch."""
        fed = self._fed.get(name)
        if fed is None or name not in self._joined or not fed.is_current:
            return None
        if one.leader_epoch != fed.follower.leader_epoch:
            return None  # From before the partition left and came back.
        return fed if one.end_offset > fed.replica.log.high_watermark else None

    async def _take(
        self,
        name: PartitionName,
        one: StoredSlice,
        head: bytes,
        key: str,
        foreign: Mapping[StoredSlice, bytearray],
    ) -> None:
        fed = self._wants(name, one)
        if fed is None:
            return
        if not _continues(fed.replica, one.base_offset):
            self._joined.discard(name)
            return
        data: bytes | bytearray | memoryview
        end = one.position + one.size_bytes
        if one.is_reference:
            if one not in foreign:  # The replica has begun to want it while others were read.
                self._joined.discard(name)
                return
            data = foreign[one]
        else:
            if end <= len(head):
                data = memoryview(head)[one.position : end]
            else:
                data = await self._read(key, one.position, end)
            if len(data) != one.size_bytes or crc32c(data) != one.crc32c:
                raise CorruptObject(key, f"the CRC of the slice at {one.position} does not match")
        self._append(name, fed, data, one.base_offset, one.end_offset)

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
        if not self._is_same(name, fed):
            return
        if not fed.is_current or not _continues(replica, base_offset):
            self._joined.discard(name)
            return
        replica.append_as_follower(memoryview(bytearray(data)))
        self._prove(fed, end_offset)

    def _prove(self, fed: Fed, end_offset: int) -> None:
        """Take what the log has below the offset for committed."""
        replica = fed.replica
        replica.follow_leader(high_watermark=end_offset, log_start_offset=fed.log_start_offset)
        self._on_grown(replica)

    def _is_same(self, name: PartitionName, fed: Fed) -> bool:
        """Whether the feed still has the partition in the same epoch, whatever was said since."""
        known = self._fed.get(name)
        return known is not None and known.follower is fed.follower

    # -- joining --

    async def _join(self, names: Sequence[PartitionName]) -> None:
        """Bring the replicas to where the feed is, or to what is known to be committed.

        Those that cannot be filled are tried again later, and do not hold the others up.
        """
        joining = {name: self._fed[name] for name in names}
        starts: dict[PartitionName, int] = {}
        try:
            for name, fed in joining.items():
                try:
                    tier_end = await self._catch_up.begin_in_chain(fed.replica, fed.follower)
                except AWAY:
                    raise
                except (TidelogError, OSError) as error:
                    self._note_broken(name, fed, error)
                    continue
                if fed.is_current and fed.replica.log.log_end_offset >= tier_end:
                    starts[name] = max(tier_end, fed.replica.log.high_watermark)
                else:  # Something has changed meanwhile.
                    self._wait([name], RETRY_SECONDS)
            await self._fill(joining, starts)
        except (TidelogError, OSError) as error:
            # A store is away, or nobody knows which replica needs what is damaged.
            self._wait(names, RETRY_SECONDS if isinstance(error, AWAY) else BROKEN_SECONDS)
            logger.warning(
                "chain cannot be followed, will retry",
                extra={"chain": str(self.chain), "reason": str(error)},
            )

    def _note_broken(self, name: PartitionName, fed: Fed, error: TidelogError | OSError) -> None:
        if isinstance(error, MissingSlice) and name not in self._missed:
            self._missed.add(name)
            self._wait([name], RETRY_SECONDS)
            logger.info(
                "objects were collected while a replica joined, it joins again",
                extra={"partition": str(fed.replica.partition), "reason": str(error)},
            )
            return
        self._wait([name], BROKEN_SECONDS)
        logger.error(
            "diskless replica cannot be filled, will retry",
            extra={"partition": str(fed.replica.partition), "reason": str(error)},
        )

    def _wait(self, names: Iterable[PartitionName], seconds: float) -> None:
        """Have the replicas join again after this time."""
        until_s = asyncio.get_running_loop().time() + seconds
        for name in names:
            self._joined.discard(name)
            self._put_off[name] = until_s

    async def _fill(
        self, joining: Mapping[PartitionName, Fed], starts: Mapping[PartitionName, int]
    ) -> None:
        """Append what the chains have above the starts; below, the logs are right.

        Raises the store's errors, and ``CorruptObject``.
        """
        wanted = {
            name: WantedSlices(cut_tiered(joining[name].follower.partition.wal, start), start)
            for name, start in starts.items()
        }
        deleted = {
            name: wanted_below(joining[name].follower.partition.wal, start)
            for name, start in starts.items()
            if name not in self._without_deleted and joining[name].lacks_deleted(start)
        }
        async with self._joins:
            read, stored = await self._find(wanted, deleted)
        try:
            read.require_whole()
        except CorruptObject:
            self._without_deleted |= deleted.keys()
            raise
        found = read.slices
        next_sequence = self._next
        if all(name in wanted or not self._feeds(name) for name in self._joined):
            committed = [
                one.committed_sequence + 1
                for name in wanted
                for one in found[name].get(self.chain, ())
                if one.end_offset <= joining[name].high_watermark
            ]
            next_sequence = max([self._next, *committed])
        for name, needs in wanted.items():
            fed, mine = joining[name], dict(found[name])
            mine[self.chain] = [
                one for one in mine.get(self.chain, ()) if one.committed_sequence < next_sequence
            ]
            self._joined.add(name)
            try:
                slices, end_offset = log_of(name, needs, mine, cluster_id=self._cluster_id)
                if name in deleted:
                    slices = _with_deleted(fed, slices, end_offset, mine, stored)
                slices = await self._keep(fed, starts[name], slices, end_offset)
                await self._fetch(name, fed, slices)
                self._missed.discard(name)
                self._without_deleted.discard(name)
            except AWAY:
                self._joined.difference_update(wanted)
                raise
            except (TidelogError, OSError) as error:
                if name in deleted and isinstance(error, CorruptObject):
                    self._without_deleted.add(name)
                self._note_broken(name, fed, error)
        self._next = next_sequence

    async def _find(
        self,
        wanted: Mapping[PartitionName, WantedSlices],
        deleted: Mapping[PartitionName, WantedSlices],
    ) -> tuple[ReadChains, StoredObjects]:
        """Return the wanted slices, and the objects that are there if deleted ones are wanted.

        Raises the store's errors.
        """
        if not deleted:
            return await find_slices(self._chains, wanted, {}), {}
        wanted = {**wanted, **deleted}
        names = {entry.chain for one in wanted.values() for entry in one.chains}
        listings = await list_chains(self._chains, sorted(names))
        read = await find_slices(self._chains, wanted, {}, listings)
        of_deleted = (read.slices[name] for name in deleted)
        return read, await stored_objects(self._chains, listings, of_deleted)

    def _feeds(self, name: PartitionName) -> bool:
        """Whether the replica follows by this chain."""
        fed = self._fed.get(name)
        return fed is not None and fed.is_current

    async def _keep(
        self, fed: Fed, start_offset: int, slices: list[StoredSlice], end_offset: int
    ) -> list[StoredSlice]:
        """Keep what the log has of the slices, and cut the rest; return those that it lacks."""
        log = fed.log
        if log.log_end_offset == log.high_watermark:
            return slices
        count = await self._refill.count_kept(log, slices)
        if not fed.is_current:
            return []
        valid_end = slices[count].base_offset if count < len(slices) else end_offset
        valid_end = max(valid_end, start_offset, log.high_watermark)
        if log.log_end_offset > valid_end:
            logger.warning(
                "local log has other records than its chain, cut",
                extra={
                    "partition": str(fed.replica.partition),
                    "offset": valid_end,
                    "log_end_offset": log.log_end_offset,
                },
            )
            log.truncate_to(valid_end)
        self._prove(fed, valid_end)
        return slices[count:]

    async def _fetch(self, name: PartitionName, fed: Fed, slices: Sequence[StoredSlice]) -> None:
        """Append the slices in order, some at a time."""
        for at in range(0, len(slices), SLICES_AT_ONCE_MAX):
            some = slices[at : at + SLICES_AT_ONCE_MAX]
            parts = await asyncio.gather(*(self._refill.read_slice(name, one) for one in some))
            for one, data in zip(some, parts, strict=True):
                if not fed.is_current:
                    return
                log = fed.log
                if one.base_offset < log.log_end_offset < one.end_offset:
                    self._refill.append_slice(fed.replica, data)
                    self._prove(fed, one.end_offset)
                elif one.end_offset > log.log_end_offset:
                    self._append(name, fed, data, one.base_offset, one.end_offset)


def _with_deleted(
    fed: Fed,
    slices: Sequence[StoredSlice],
    end_offset: int,
    found: Mapping[ChainName, Sequence[StoredSlice]],
    stored: StoredObjects,
) -> list[StoredSlice]:
    """Have the replica's log begin with the last deleted records; return all that it lacks."""
    first = slices[0].base_offset if slices else end_offset
    below = slices_below(fed.follower.partition.wal, found, stored, end_offset=first)
    if below and fed.is_current:
        begin_with_deleted(fed.log, below)
        return [*below, *slices]
    return list(slices)


def _continues(replica: Replica, base_offset: int) -> bool:
    """Whether the log ends there, and all of it is known to be committed."""
    log = replica.log
    return log.log_end_offset == log.high_watermark == base_offset


class ChainFeeds:
    """The feeds of all chains that this node follows. For the node's event loop."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        read: RangeReader,
        cluster_id: str,
        refill: LogRefill,
        catch_up: CatchUp,
        on_grown: Callable[[Replica], None],
    ) -> None:
        self._store = store
        self._read = read
        self._cluster_id = cluster_id
        self._refill = refill
        self._catch_up = catch_up
        self._on_grown = on_grown
        self._feeds: dict[ChainName, tuple[ChainFeed, asyncio.Task[None]]] = {}
        self._joins = asyncio.Semaphore(JOINS_AT_ONCE_MAX)
        self._is_closed = False

    def note(self, replica: Replica, follower: FollowerState, said: Append) -> None:
        """Take what the leader of a diskless partition says: up to where it is committed."""
        chains = follower.partition.wal
        if self._is_closed or not chains or chains[-1].leader_epoch != follower.leader_epoch:
            return  # The item is older than the answer.
        fed = Fed(replica, follower, replica.log, said.high_watermark, said.log_start_offset)
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
            read=self._read,
            cluster_id=self._cluster_id,
            refill=self._refill,
            catch_up=self._catch_up,
            on_grown=self._on_grown,
            joins=self._joins,
        )
        task = asyncio.create_task(feed.run(), name=f"feed of chain {chain.chain_id}")
        self._feeds[chain] = feed, task
        return feed

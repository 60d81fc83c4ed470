"""One group's items in the metadata store: the group itself and its pages of offsets.

Offset commits that arrive within a few milliseconds become one transaction. Each transaction is
conditional on the version of the group's record that its coordinator has in memory: a coordinator
that has been replaced unnoticed cannot store a commit of a generation that has ended elsewhere. The
record is small for any number of members, so the cost for each commit is constant
(``group_items``). A coordinator that has loaded a group claims it before the first commit, so that
the previous one's writes still in progress take effect before its own commits or not at all.

All pending commits are written before the group's record, so a commit that was accepted in a
generation never takes effect after the next one has begun.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from uuid import UUID

from tidelog_core.admin.groups.offset_pages import (
    PAGES_PER_COMMIT,
    PageKey,
    by_page,
    page_for,
    read_page,
    read_pages,
)
from tidelog_core.admin.groups.pending_offsets import drop_pending, pending_items
from tidelog_core.admin.groups.share_offsets import forget, list_share_partitions
from tidelog_core.batched import batched
from tidelog_core.errors import (
    CoordinatorNotAvailable,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata.coordination.groups import (
    CommittedOffset,
    GroupOffsets,
    GroupRecord,
    OffsetsByTopic,
    offset_item_id,
)
from tidelog_core.metadata.coordination.member_pages import StoredGroup
from tidelog_core.metadata.records import delete, put
from tidelog_core.metadata.store import (
    ABSENT,
    Check,
    ItemKey,
    MetadataStore,
    Write,
)
from tidelog_core.turns import Turn

from tidelog_node.coordinator.group_items import GroupItems, PageLimits, new_record
from tidelog_node.coordinator.offset_page_cache import OffsetPageCache, WriterTerm

logger = logging.getLogger(__name__)

COMMIT_LINGER_MS = 3
COMMIT_ATTEMPTS_MAX = 4
# One write and one check are reserved for those committed with the pages.
PENDING_PAGES_PER_COMMIT = PAGES_PER_COMMIT - 2


@dataclass(slots=True)
class _Batch:
    done: asyncio.Future[TidelogError | None]
    pages: dict[PageKey, dict[int, CommittedOffset]] = field(default_factory=dict)


class GroupStorage:
    """Writes one group's items, one transaction at a time. For the tasks of one loop."""

    def __init__(
        self,
        store: MetadataStore,
        pages: OffsetPageCache,
        *,
        shard: int,
        group_id: str,
        stored: StoredGroup | None,
        limits: PageLimits,
    ) -> None:
        """``stored`` is the group as it was read, ``None`` if it does not exist."""
        self._items = GroupItems(
            store, shard=shard, group_id=group_id, stored=stored, limits=limits
        )
        self._term = WriterTerm()
        self._store = store
        self._pages = pages
        self._shard = shard
        self._group_id = group_id
        self._lock = asyncio.Lock()
        self._batch: _Batch | None = None
        self._flusher: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """The version of the group's record; ABSENT until it is first stored."""
        return self._items.version

    @property
    def is_claimed(self) -> bool:
        """Whether no previous coordinator can write any more."""
        return self._items.is_claimed

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return self._batch is None and not self._lock.locked()

    async def claim(self) -> None:
        """Exclude all further writes of previous coordinators. Durable on return.

        Raises ``VersionConflict`` if the group has changed since it was read.
        """
        async with self._lock:
            await self._items.claim()

    async def save(self, record: GroupRecord) -> None:
        """Store the group after all commits accepted before. Durable on return.

        Raises ``VersionConflict`` if another coordinator has stored it since it was read.
        """
        async with self._lock:
            await self._flush()
            await self._items.claim()
            await self._items.save(record)

    async def commit_offsets(self, offsets: OffsetsByTopic) -> None:
        """Store the offsets, by topic and partition. Durable on return.

        Raises ``VersionConflict`` if another coordinator has stored the group.
        """
        if self._batch is None:
            self._batch = _Batch(asyncio.get_running_loop().create_future())
        batch = self._batch
        for key, partitions in by_page(offsets).items():
            batch.pages.setdefault(key, {}).update(partitions)
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_soon())
        error = await asyncio.shield(batch.done)
        if error is not None:
            raise error

    async def write_checked(
        self, writes: Sequence[Write], checks: Sequence[Check], *, created_ms: int
    ) -> None:
        """Write other items if the group is as it is known here. Durable on return.

        ``created_ms`` is the group's creation time if this creates it. Raises ``VersionConflict``.
        """
        async with self._lock:
            await self._commit(writes, created_ms=created_ms, checks=checks)

    async def after_committed(
        self, offsets: OffsetsByTopic
    ) -> dict[tuple[str, UUID], dict[int, CommittedOffset]]:
        """Return the offsets, each with a time after the committed one of its partition."""
        timed: dict[tuple[str, UUID], dict[int, CommittedOffset]] = {}
        for key, partitions in by_page(offsets).items():
            page = await self._page(key)
            later = _after(partitions, page.partitions)
            timed.setdefault((key.topic, key.topic_id), {}).update(later)
        return timed

    async def commit_pending(
        self,
        offsets: OffsetsByTopic,
        *,
        also: Write,
        checks: Sequence[Check],
    ) -> None:
        """Store offsets that were sent earlier and waited; newer ones stay. Durable on return.

        ``also`` is written with the last of them. Raises ``VersionConflict``.
        """
        async with self._lock:
            await self._flush()
            pages = by_page(offsets)
            keys = sorted(pages)
            for start in range(0, len(keys), PENDING_PAGES_PER_COMMIT):
                some = keys[start : start + PENDING_PAGES_PER_COMMIT]
                is_last = start + PENDING_PAGES_PER_COMMIT >= len(keys)
                await self._write_pages(
                    {key: pages[key] for key in some},
                    also=(also,) if is_last else (),
                    checks=checks,
                    keeps_newer=True,
                )

    async def remove_offsets(
        self, choose: Callable[[GroupOffsets], Set[int]], topics: Iterable[str] | None = None
    ) -> tuple[int, int]:
        """Remove the partitions chosen from each page; return the removed and the left count."""
        async with self._lock:
            await self._flush()
            pages = await read_pages(self._store, self._group_id, topics)
            removed, writes = 0, []
            turn = Turn()
            for page in pages:
                await turn.step()
                wanted = choose(page)
                chosen = {partition for partition in page.partitions if partition in wanted}
                if not chosen:
                    continue
                left = {p: o for p, o in page.partitions.items() if p not in chosen}
                removed += len(chosen)
                self._pages.forget(page.item_id)
                rest = dataclasses.replace(page, partitions=left)
                writes.append(put(rest, is_logged=False) if left else delete(page, is_logged=False))
            await self._commit_in_parts(writes)
            return removed, sum(len(page.partitions) for page in pages) - removed

    async def write_in_parts(self, writes: Sequence[Write]) -> None:
        """Write other items in parts, each if the group is as it is known here.

        Durable on return. Raises ``VersionConflict``.
        """
        async with self._lock:
            await self._commit_in_parts(writes)

    async def delete(self, record: GroupRecord) -> bool:
        """Remove all offsets and share partitions, then the group's record.

        A crash in between leaves an empty group. Returns whether some offsets waited for a
        transaction's end. If so, the deletion of the record is in the changelog, for
        ``TransactionalOffsets``, which has these offsets in memory.
        """
        # Otherwise pages written by a previous coordinator after the listing would stay forever.
        await self.claim()
        await self.remove_offsets(lambda page: page.partitions.keys())
        if record.share is not None:
            items = await list_share_partitions(self._store, self._group_id)
            await self.write_in_parts([forget(item) for item in items])
        async with self._lock:
            if self.version == ABSENT:
                return False
            had_pending = await self._drop_pending()
            await self._commit_in_parts(await self._items.page_removals())
            await self._items.delete(is_logged=had_pending)
            return had_pending

    async def drop_pending(self, partitions: Mapping[str, Collection[int]]) -> bool:
        """Remove the partitions' offsets that wait for a transaction's end, by topic.

        Returns whether there were any. If so, the group's record is in the changelog, as above.
        """
        async with self._lock:
            if self.version == ABSENT:
                return False
            had_pending = await self._drop_pending(partitions)
            if had_pending:
                await self._items.write_again(is_logged=True)
            return had_pending

    async def _drop_pending(self, partitions: Mapping[str, Collection[int]] | None = None) -> bool:
        return await drop_pending(
            self._store,
            shard=self._shard,
            group_id=self._group_id,
            if_still=self._items.check(),
            partitions=partitions,
        )

    async def has_pending(self) -> bool:
        """Whether offsets wait for a transaction's end; they keep the group."""
        return bool(await pending_items(self._store, shard=self._shard, group_id=self._group_id))

    async def catch_up(self) -> bool:
        """Whether the stored record equals the known one, perhaps at a newer version.

        Then the state in memory still follows from it and continues at that version. At a newer
        version it must be claimed again: its writer may not be done yet.
        """
        async with self._lock:
            await self._flush()  # in the term in which it was accepted, or not at all
            version = self.version
            is_as_known = await self._items.catch_up()
            if self.version != version:
                self._term = WriterTerm()
            return is_as_known

    async def close(self) -> None:
        """Write the pending commits and stop."""
        flusher = self._flusher
        if flusher is not None:
            await flusher

    async def _flush_soon(self) -> None:
        try:
            await asyncio.sleep(COMMIT_LINGER_MS / 1000)
            while self._batch is not None:
                async with self._lock:
                    await self._flush()
        finally:
            self._flusher = None

    async def _flush(self) -> None:
        """Write the batch and set its outcome. The lock is held."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        outcome: TidelogError | None = StoreUnavailable("the node is stopping")
        try:
            keys = sorted(batch.pages)
            for some in batched(keys, PAGES_PER_COMMIT):
                await self._write_pages({key: batch.pages[key] for key in some})
            outcome = None
        except TidelogError as error:
            outcome = error
        except Exception:
            logger.exception("offset commit failed", extra={"group_id": self._group_id})
            outcome = OutcomeUnknown("the commit failed unexpectedly")
        finally:
            batch.done.set_result(outcome)

    async def _write_pages(
        self,
        changes: Mapping[PageKey, Mapping[int, CommittedOffset]],
        *,
        also: Sequence[Write] = (),
        checks: Sequence[Check] = (),
        keeps_newer: bool = False,
    ) -> None:
        for _ in range(COMMIT_ATTEMPTS_MAX):
            current = await asyncio.gather(*(self._page(key) for key in changes))
            merged = [
                dataclasses.replace(
                    page,
                    partitions={
                        **page.partitions,
                        **(_newer if keeps_newer else _after)(some, page.partitions),
                    },
                )
                for page, some in zip(current, changes.values(), strict=True)
            ]
            writes = [*(put(page, is_logged=False) for page in merged), *also]
            try:
                await self._commit(writes, created_ms=_first_commit_ms(changes), checks=checks)
            except VersionConflict as error:
                for page in merged:
                    self._pages.forget(page.item_id)
                if {ItemKey(*key) for key in error.keys} - {page.item_id for page in merged}:
                    raise
                continue
            except BaseException:
                for page in merged:
                    self._pages.forget(page.item_id)
                raise
            for page in merged:
                self._pages.keep(dataclasses.replace(page, version=page.version + 1), self._term)
            return
        raise CoordinatorNotAvailable(f"offsets of group {self._group_id!r} keep changing")

    async def _commit(
        self, writes: Sequence[Write], *, created_ms: int, checks: Sequence[Check] = ()
    ) -> None:
        """Write if the group's record is unchanged; create the record if there is none."""
        if self.version != ABSENT:
            await self._store.commit(writes, checks=[self._items.check(), *checks])
        else:
            await self._items.create(new_record(self._items.key, created_ms), writes, checks)

    async def _commit_in_parts(self, writes: Sequence[Write]) -> None:
        for some in batched(writes, PAGES_PER_COMMIT):
            await self._store.commit(some, checks=[self._items.check()])

    async def _page(self, key: PageKey) -> GroupOffsets:
        """Return the page as this storage wrote it last, otherwise as stored."""
        page = self._pages.get(offset_item_id(self._group_id, key.topic, key.page), self._term)
        if page is None:
            return await read_page(self._store, self._group_id, key)
        return page_for(self._group_id, key, page)


def _newer(
    some: Mapping[int, CommittedOffset], known: Mapping[int, CommittedOffset]
) -> dict[int, CommittedOffset]:
    """Return the offsets whose partitions have no newer commit."""
    return {
        partition: offset
        for partition, offset in some.items()
        if partition not in known or known[partition].committed_ms < offset.committed_ms
    }


def _after(
    some: Mapping[int, CommittedOffset], known: Mapping[int, CommittedOffset]
) -> dict[int, CommittedOffset]:
    """Return the offsets with times after the known ones.

    The clock may go back, but the order of commits counts: it decides whether an offset that waited
    for its transaction's end is older than the committed one.
    """
    return {
        partition: offset
        if partition not in known or known[partition].committed_ms < offset.committed_ms
        else dataclasses.replace(offset, committed_ms=known[partition].committed_ms + 1)
        for partition, offset in some.items()
    }


def _first_commit_ms(changes: Mapping[PageKey, Mapping[int, CommittedOffset]]) -> int:
    return min(offset.committed_ms for some in changes.values() for offset in some.values())

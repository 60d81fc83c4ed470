"""A group's record and pages of members in the store, as its coordinator writes them.

A coordinator's writes are conditional on the version of the group's record that it knows. The
record changes with the group's epoch or generation; a change of one member changes only that
member's page. So after reading a group a coordinator first writes the record again unchanged: after
that no previous coordinator can write any of its items. Then it checks that the pages are still as
they were read.

``member_pages`` describes changes of more pages than one transaction takes.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence

from tidelog_core.admin.groups.stored_groups import list_pages
from tidelog_core.errors import VersionConflict
from tidelog_core.metadata.coordination.groups import (
    GROUP_COLLECTION_PREFIX,
    GroupRecord,
    group_key,
    has_own_members,
)
from tidelog_core.metadata.coordination.member_pages import (
    MEMBERS_PER_PAGE,
    MemberPage,
    StoredGroup,
)
from tidelog_core.metadata.records import put
from tidelog_core.metadata.store import (
    ABSENT,
    COMMIT_WRITES_MAX,
    Body,
    Check,
    Item,
    ItemKey,
    MetadataStore,
    Write,
)
from tidelog_core.metadata.stores.commit import BODY_SIZE_BYTES_MAX, COMMIT_SIZE_BYTES_MAX

from tidelog_node.coordinator.member_table import MemberTable, PageChange

PAGES_PACKED_AT_ONCE = 8  # then other tasks run
PAGE_OVERHEAD_BYTES = 2_000  # upper bound of a page without its packed members


@dataclasses.dataclass(frozen=True, slots=True)
class PageLimits:
    """The distribution of members over items and transactions."""

    members_per_page: int = MEMBERS_PER_PAGE
    pages_per_commit: int = COMMIT_WRITES_MAX - 1  # and the group's record
    commit_size_bytes: int = COMMIT_SIZE_BYTES_MAX - BODY_SIZE_BYTES_MAX


DEFAULT_PAGE_LIMITS = PageLimits()


class GroupItems:
    """The record and the pages of one group. Its owner makes one call at a time."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        shard: int,
        group_id: str,
        stored: StoredGroup | None,
        limits: PageLimits,
    ) -> None:
        """``stored`` is the group as it was read, ``None`` if it does not exist."""
        self.version = ABSENT  # of the record's item
        self.key = group_key(shard, group_id)
        self._store = store
        self._shard = shard
        self._limits = limits
        self._record: GroupRecord | None = None  # without members, as last read or written
        # The record item's body while it is one of an older program, which kept the members in it.
        self._old_body: Body | None = None
        self._is_claimed = True
        self._members = MemberTable(members_per_page=limits.members_per_page)
        if stored is not None:
            self.version = stored.record.version
            self._record = stored.record.with_members(())
            self._old_body = stored.record_body if stored.has_own_members else None
            self._is_claimed = False
            self._members = MemberTable.of(stored, members_per_page=limits.members_per_page)

    @property
    def is_claimed(self) -> bool:
        """Whether no previous coordinator can write any more."""
        return self._is_claimed

    def check(self) -> Check:
        """Return the condition that the record has the known version."""
        return Check(self.key, self.version)

    async def claim(self) -> None:
        """Exclude all further writes of previous coordinators. Durable on return.

        Raises ``VersionConflict`` if the group has changed since it was read.
        """
        if self._is_claimed:
            return
        await self.write_again(is_logged=False)
        pages = await list_pages(self._store, self._shard, self.key.key)
        known = self._members.versions(self._shard, self.key.key)
        changed = known.items() ^ {(page.id, page.version) for page in pages}
        if changed:
            raise VersionConflict(sorted({(key.collection, key.key) for key, _ in changed}))
        self._is_claimed = True

    async def write_again(self, *, is_logged: bool) -> None:
        """Write the record unchanged. Durable on return. Raises ``VersionConflict``.

        Topics that an older program left in it are removed.
        """
        assert self._record is not None
        body = self._record.to_body() if self._old_body is None else self._old_body
        await self._store.commit([Write(self.key, body, self.version, is_logged=is_logged)])
        self.version += 1

    async def create(
        self, record: GroupRecord, writes: Sequence[Write], checks: Sequence[Check]
    ) -> None:
        """Store a group without members, with other writes. Raises ``VersionConflict``."""
        await self._store.commit([put(record, is_logged=False), *writes], checks=checks)
        self._wrote(record)

    async def save(self, record: GroupRecord) -> None:
        """Store the group, which must be claimed. Durable on return.

        Raises ``VersionConflict``, ``ItemTooLarge``.
        """
        changes = self._members.change_to(record.all_members)
        if len(changes) <= self._limits.pages_per_commit:
            packed = [write async for write in self._packed(changes, self._stamp)]
            if sum(map(_size_bytes, packed)) <= self._limits.commit_size_bytes:
                await self._save_at_once(record, packed)
                self._members.apply(changes, keeps_emptied=False)
                return
        await self._save_in_parts(record, changes)
        self._members.apply(changes, keeps_emptied=True)

    async def catch_up(self) -> bool:
        """Whether the stored record equals the known one, perhaps at a newer version.

        At a newer version it must be claimed again: its writer may not be done yet.
        """
        item = await self._store.get(self.key)
        if item is None:
            return self.version == ABSENT
        if item.version != self.version:
            if not self._is_as_known(item):
                return False
            self.version, self._is_claimed = item.version, False
        return True

    async def page_removals(self) -> list[Write]:
        """Return the deletions of all pages, for a group without members."""
        items = await list_pages(self._store, self._shard, self.key.key)
        return [Write(item.id, None, item.version, is_logged=False) for item in items]

    async def delete(self, *, is_logged: bool) -> None:
        """Remove the record, the last item of the group. Raises ``VersionConflict``."""
        await self._store.commit([Write(self.key, None, self.version, is_logged=is_logged)])
        self.version, self._record, self._old_body = ABSENT, None, None
        self._members = MemberTable(members_per_page=self._limits.members_per_page)

    # -- writes --

    async def _save_at_once(self, record: GroupRecord, pages: Sequence[Write]) -> None:
        record = dataclasses.replace(record, stamp=self._stamp, version=self.version)
        if pages and not self._is_news(record):
            await self._store.commit(pages, checks=[self.check()])
        else:
            await self._store.commit([put(record, is_logged=False), *pages])
            self._wrote(record)

    async def _save_in_parts(self, record: GroupRecord, changes: Sequence[PageChange]) -> None:
        """Write the pages with a stamp that is not valid yet, then the record with that stamp."""
        if self.version == ABSENT:
            # The record exists before any page: otherwise a crash would leave pages without an
            # owner.
            await self.create(new_record(self.key, record.phase_since_ms), (), ())
        stamp = self._stamp + 1
        part: list[Write] = []
        size_bytes = 0
        async for write in self._packed(changes, stamp):
            size_bytes += _size_bytes(write)
            if part and (
                len(part) == self._limits.pages_per_commit
                or size_bytes > self._limits.commit_size_bytes
            ):
                await self._store.commit(part, checks=[self.check()])
                part, size_bytes = [], _size_bytes(write)
            part.append(write)
        if part:
            await self._store.commit(part, checks=[self.check()])
        record = dataclasses.replace(record, stamp=stamp, version=self.version)
        await self._store.commit([put(record, is_logged=False)])
        self._wrote(record)

    async def _packed(self, changes: Sequence[PageChange], stamp: int) -> AsyncIterator[Write]:
        """Yield the pages' writes. With a stamp that is not valid yet they keep the old members."""
        for index, change in enumerate(changes, 1):
            is_valid = stamp == self._stamp
            page = MemberPage(
                shard=self._shard,
                group_id=self.key.key,
                number=change.number,
                stamp=stamp,
                members=change.after,
                before=None if is_valid else change.before,
                version=change.version,
            )
            is_needed = change.after or (change.before and not is_valid)
            body = page.to_body() if is_needed else None
            if body is not None or change.version != ABSENT:
                yield Write(page.item_id, body, change.version, is_logged=False)
            if index % PAGES_PACKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    @property
    def _stamp(self) -> int:
        return 0 if self._record is None else self._record.stamp

    def _is_news(self, record: GroupRecord) -> bool:
        """Whether the record's item would change, apart from the rounding of its time."""
        known = self._record
        if known is None or self._old_body is not None:
            return True
        return record.with_members(()) != dataclasses.replace(
            known, phase_since_ms=record.phase_since_ms
        )

    def _is_as_known(self, item: Item) -> bool:
        if self._old_body is not None or has_own_members(item):
            return item.body == self._old_body
        return GroupRecord.from_item(item) == self._record

    def _wrote(self, record: GroupRecord) -> None:
        self.version += 1
        self._record, self._old_body = record.with_members(()), None
        self._is_claimed = True


def new_record(key: ItemKey, created_ms: int) -> GroupRecord:
    """Return the record of a group that never had members."""
    return GroupRecord(
        shard=int(key.collection.removeprefix(GROUP_COLLECTION_PREFIX)),
        group_id=key.key,
        phase="Empty",
        phase_since_ms=created_ms,
        generation=0,
        protocol_type=None,
        protocol_name=None,
        leader=None,
        members=(),
    )


def _size_bytes(write: Write) -> int:
    """Return an upper bound of the size of a page's body."""
    if write.body is None:
        return 0
    return PAGE_OVERHEAD_BYTES + sum(
        len(part)
        for packed in (write.body["members"], write.body["before"])
        if isinstance(packed, list)
        for part in packed
        if isinstance(part, str)
    )

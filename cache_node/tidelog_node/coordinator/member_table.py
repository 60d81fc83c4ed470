"""Maps a group's members to pages, and finds the pages that a change of members touches.

A member stays in its page. A new one is put into the first page with room, so members that join at
the same time mostly share a page, and so do their later changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelog_core.metadata.coordination.member_pages import (
    MEMBERS_PER_PAGE,
    MemberPage,
    MembersByPlace,
    StoredGroup,
    StoredMember,
    page_item_id,
    valid_members,
)
from tidelog_core.metadata.store import ABSENT, ItemKey


@dataclass(frozen=True, slots=True)
class PageChange:
    """A page to write."""

    number: int
    before: MembersByPlace
    after: MembersByPlace
    version: int  # of the page's item before; ABSENT if there is none


@dataclass(slots=True)
class _Page:
    version: int
    members: MembersByPlace


@dataclass(slots=True)
class _Seat:
    page: int
    place: int  # in the order of joining; never reused while the group is in memory
    member: StoredMember


class MemberTable:
    """A group's pages, as this coordinator last read or wrote them."""

    def __init__(self, *, members_per_page: int = MEMBERS_PER_PAGE) -> None:
        self._members_per_page = members_per_page
        self._pages: dict[int, _Page] = {}
        self._seats: dict[str, _Seat] = {}
        self._to_write: set[int] = set()  # torn and empty pages, for the next change
        self._next_place = 0

    @classmethod
    def of(cls, stored: StoredGroup, *, members_per_page: int) -> MemberTable:
        """Return the table of a group that was read. Raises ``Inconsistent``."""
        table = cls(members_per_page=members_per_page)
        for page in stored.pages:
            table._take_in(page, stored)
        return table

    def versions(self, shard: int, group_id: str) -> dict[ItemKey, int]:
        """Return the versions of the pages' items."""
        return {
            page_item_id(shard, group_id, number): page.version
            for number, page in self._pages.items()
        }

    def change_to(self, members: Iterable[StoredMember]) -> list[PageChange]:
        """Return the page changes that make these the members."""
        after: dict[int, dict[int, StoredMember]] = {}
        for number in self._to_write:
            self._open(number, after)
        members = list(members)
        added: list[StoredMember] = []
        for member in members:
            seat = self._seats.get(member.member_id)
            if seat is None:
                added.append(member)
            # Most are the same object: comparing their values would be slow.
            elif seat.member is not member and seat.member != member:
                self._open(seat.page, after)[seat.place] = member
        if len(members) - len(added) < len(self._seats):
            for member_id in self._seats.keys() - {member.member_id for member in members}:
                seat = self._seats[member_id]
                del self._open(seat.page, after)[seat.place]
        self._seat(added, after)
        return [
            PageChange(
                number=number,
                before={} if number not in self._pages else self._pages[number].members,
                after=after[number],
                version=ABSENT if number not in self._pages else self._pages[number].version,
            )
            for number in sorted(after)
        ]

    def apply(self, changes: Iterable[PageChange], *, keeps_emptied: bool) -> None:
        """Note that the changes are stored. An emptied page is gone unless it was kept."""
        self._to_write.clear()
        changes = list(changes)
        for change in changes:
            for member in change.before.values():
                self._seats.pop(member.member_id, None)
        for change in changes:
            for place, member in change.after.items():
                self._seats[member.member_id] = _Seat(change.number, place, member)
                self._next_place = max(self._next_place, place + 1)
            if change.after or (change.before and keeps_emptied):
                self._pages[change.number] = _Page(change.version + 1, change.after)
                if not change.after:
                    self._to_write.add(change.number)
            else:
                self._pages.pop(change.number, None)

    def _take_in(self, page: MemberPage, stored: StoredGroup) -> None:
        if stored.has_own_members:
            members: MembersByPlace = {}
            is_torn = True
        else:
            members = valid_members(page, stored.record.stamp)
            is_torn = page.is_torn(stored.record.stamp)
        self._pages[page.number] = _Page(page.version, members)
        if is_torn or not members:
            self._to_write.add(page.number)
        for place, member in members.items():
            self._seats[member.member_id] = _Seat(page.number, place, member)
            self._next_place = max(self._next_place, place + 1)

    def _open(
        self, number: int, after: dict[int, dict[int, StoredMember]]
    ) -> dict[int, StoredMember]:
        """Return the page's members, to be changed."""
        if number not in after:
            page = self._pages.get(number)
            after[number] = {} if page is None else dict(page.members)
        return after[number]

    def _seat(
        self, added: Iterable[StoredMember], after: dict[int, dict[int, StoredMember]]
    ) -> None:
        """Give new members their pages and places."""
        number, place = 0, self._next_place
        for member in added:
            while len(self._members_in(number, after)) >= self._members_per_page:
                number += 1
            self._open(number, after)[place] = member
            place += 1

    def _members_in(self, number: int, after: Mapping[int, MembersByPlace]) -> MembersByPlace:
        if number in after:
            return after[number]
        page = self._pages.get(number)
        return {} if page is None else page.members

"""The stored members of a group: pages next to the group's record.

A ``MemberPage`` holds up to ``MEMBERS_PER_PAGE`` members of one group, each with its position in
the order of joining. A change of one member writes only its page, on condition that the group's
record is unchanged.

A change of more pages than one transaction can hold becomes valid with the record:

1. The pages are written, in several transactions, with a stamp one above the record's. Each
   keeps its previous members in addition to the new ones.
2. The record is written with that stamp.

A reader uses the new members of a page whose stamp is not above the record's, and the previous
ones otherwise. So a crash between the two leaves the group unchanged. A page with a stamp above
the record's is torn: the group's next write of any kind rewrites all torn pages. So no page is
torn when the stamp grows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from tidelog_core.metadata.coordination.consumer_groups import (
    ConsumerMember,
    pack_consumers,
    unpack_consumers,
)
from tidelog_core.metadata.coordination.groups import (
    GroupMember,
    GroupMembers,
    GroupRecord,
    has_own_members,
    pack_classic,
    unpack_classic,
)
from tidelog_core.metadata.coordination.packed_members import whole_number
from tidelog_core.metadata.coordination.share_groups import (
    ShareMember,
    pack_sharers,
    unpack_sharers,
)
from tidelog_core.metadata.fields import InKey, Natural, Stored
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import Body, Item, ItemKey, JsonValue

MEMBER_COLLECTION_PREFIX = "member:"
MEMBERS_PER_PAGE = 32

StoredMember = GroupMember | ConsumerMember | ShareMember
MembersByPlace = Mapping[int, StoredMember]

_Pack = Callable[[Sequence[Any]], str]
_Unpack = Callable[[str], Sequence[StoredMember]]
_KINDS: Mapping[str, tuple[type, _Pack, _Unpack]] = {
    "classic": (GroupMember, pack_classic, unpack_classic),
    "consumer": (ConsumerMember, pack_consumers, unpack_consumers),
    "share": (ShareMember, pack_sharers, unpack_sharers),
}


def member_collection(shard: int) -> str:
    """Return the collection that lists the pages of all groups of a shard."""
    return f"{MEMBER_COLLECTION_PREFIX}{shard}"


def page_prefix(group_id: str) -> str:
    """Return the key prefix of a group's pages. Pages of other groups can share it."""
    return f"{group_id}/"


def group_of_page(id: ItemKey) -> str:
    """Return the id of the group that the page is of."""
    return id.key.rpartition("/")[0]


@key_form
def page_item_id(shard: int, group_id: str, number: int) -> ItemKey:
    """Return the key of a page of members."""
    return ItemKey(member_collection(shard), f"{page_prefix(group_id)}{number:06d}")


def _pack(members: MembersByPlace) -> list[JsonValue]:
    """Return the kind, the places and the members; an empty list if there are none."""
    if not members:
        return []
    some = list(members.values())
    for kind, (type_, pack, _) in _KINDS.items():
        if isinstance(some[0], type_):
            return [kind, list(members), pack(some)]
    raise AssertionError("a member is of one of the kinds")


def _unpack(packed: Any) -> MembersByPlace:
    if not packed:
        return {}
    kind, places, text = packed
    members = _KINDS[kind][2](text)
    return dict(zip(map(whole_number, places), members, strict=True))


def _write_members(page: MemberPage) -> JsonValue:
    return _pack(page.members)


def _read_members(packed: Any, _: Mapping[str, Any]) -> MembersByPlace:
    if not isinstance(packed, list | tuple):
        raise ValueError(f"{packed!r} is no list")
    return _unpack(packed)


def _write_before(page: MemberPage) -> JsonValue:
    return None if page.before is None else _pack(page.before)


def _read_before(packed: Any, _: Mapping[str, Any]) -> MembersByPlace | None:
    return None if packed is None else _unpack(packed)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPage(Record):
    """Some members of one group, all of one kind."""

    KEY = page_item_id

    shard: InKey[int]
    group_id: InKey[str]
    number: InKey[int]
    stamp: Natural
    members: Annotated[MembersByPlace, Stored(_read_members, _write_members)]
    # Valid until the record has the stamp; None: no longer needed.
    before: Annotated[MembersByPlace | None, Stored(_read_before, _write_before)] = None

    def is_torn(self, record_stamp: int) -> bool:
        """Return whether the previous members are valid, given the record's stamp."""
        return self.stamp > record_stamp


class Inconsistent(Exception):
    """A group's record and pages were read while they were being written: read them again."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group assembled from its items."""

    record: GroupRecord  # with the members
    record_body: Body  # of the record's item
    pages: tuple[MemberPage, ...]
    has_own_members: bool  # as an older program wrote it; its pages do not count


def assemble(item: Item, pages: Sequence[MemberPage]) -> StoredGroup:
    """Return the group of a record's item and its pages.

    Raises ``CorruptItem`` and ``Inconsistent``.
    """
    record = GroupRecord.from_item(item)
    if has_own_members(item):
        return StoredGroup(record, item.body, tuple(pages), True)
    by_place: dict[int, StoredMember] = {}
    for page in pages:
        by_place.update(valid_members(page, record.stamp))
    members = [by_place[place] for place in sorted(by_place)]
    kind = _type_of(record)
    ids = {member.member_id for member in members if isinstance(member, kind)}
    if len(ids) < sum(len(valid_members(page, record.stamp)) for page in pages):
        raise Inconsistent
    whole = record.with_members(cast("GroupMembers", tuple(members)))
    return StoredGroup(whole, item.body, tuple(pages), False)


def valid_members(page: MemberPage, record_stamp: int) -> MembersByPlace:
    """Return the page's members in a group whose record has the stamp.

    Raises ``Inconsistent`` if the page is newer than the record.
    """
    if not page.is_torn(record_stamp):
        return page.members
    if page.before is None:
        raise Inconsistent
    return page.before


def _type_of(record: GroupRecord) -> type:
    if record.share is not None:
        return ShareMember
    return GroupMember if record.consumer is None else ConsumerMember

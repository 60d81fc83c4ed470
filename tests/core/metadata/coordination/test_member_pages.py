"""Pages of members: what is stored, what is refused, which members count."""

from __future__ import annotations

import dataclasses
import json
from uuid import UUID

import pytest
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.coordination.consumer_groups import ConsumerMember, TopicIdPartition
from tidelog_core.metadata.coordination.groups import GroupRecord
from tidelog_core.metadata.coordination.member_pages import (
    MEMBERS_PER_PAGE,
    Inconsistent,
    MemberPage,
    MembersByPlace,
    assemble,
    group_of_page,
    page_item_id,
)
from tidelog_core.metadata.coordination.share_groups import ShareMember
from tidelog_core.metadata.store import Item
from tidelog_core.metadata.stores.commit import encode_body

from tests.core.metadata.coordination import test_groups, test_share_groups

RECORDS = (test_groups.RECORD, test_groups.CONSUMERS, test_share_groups.RECORD)
PAGE = MemberPage(
    shard=7,
    group_id="g:1/é",
    number=12,
    stamp=3,
    members={4: test_groups.MEMBER},
    before={2: dataclasses.replace(test_groups.MEMBER, member_id="gone")},
)


def stored(record: GroupRecord | MemberPage, version: int = 4) -> Item:
    """Return the item after a way through JSON."""
    return Item(record.item_id, version, json.loads(json.dumps(record.to_body())))


def page_of(record: GroupRecord, number: int = 0, stamp: int = 0, first: int = 0) -> MemberPage:
    """Return a page of the record's group with its members from ``first`` on."""
    places: MembersByPlace = dict(enumerate(record.all_members))
    return MemberPage(
        shard=record.shard,
        group_id=record.group_id,
        number=number,
        stamp=stamp,
        members={place: member for place, member in places.items() if place >= first},
        version=4,
    )


@pytest.mark.parametrize("record", RECORDS)
def test_a_group_of_every_kind_comes_back_with_its_members(record: GroupRecord) -> None:
    page = MemberPage.from_item(stored(page_of(record)))
    assert page == page_of(record)
    found = assemble(stored(record), [page])
    assert found.record == record
    assert not found.has_own_members


def test_a_page_comes_back_as_it_was_stored() -> None:
    assert MemberPage.from_item(stored(PAGE)) == PAGE
    assert MemberPage.from_item(stored(PAGE)).version == 4
    assert PAGE.item_id == page_item_id(7, "g:1/é", 12)
    assert group_of_page(PAGE.item_id) == "g:1/é"
    empty = dataclasses.replace(PAGE, members={}, before={})
    assert MemberPage.from_item(stored(empty)) == empty
    alone = dataclasses.replace(PAGE, before=None)
    assert MemberPage.from_item(stored(alone)) == alone


@pytest.mark.parametrize(
    "change",
    [
        {"stamp": -1},
        {"stamp": "1"},
        {"members": "x"},
        {"members": ["classic", [4]]},
        {"members": ["classic", [4, 5], PAGE.to_body()["members"][2]]},  # type: ignore[index, call-overload]
        {"members": ["classic", ["4"], PAGE.to_body()["members"][2]]},  # type: ignore[index, call-overload]
        {"members": ["share", [4], PAGE.to_body()["members"][2]]},  # type: ignore[index, call-overload]
        {"members": ["other", [4], PAGE.to_body()["members"][2]]},  # type: ignore[index, call-overload]
        {"before": ["classic", [4], "!"]},
        {"before": 1},
        {"more": 1},
    ],
)
def test_a_damaged_page_is_refused(change: dict[str, object]) -> None:
    item = stored(PAGE)
    with pytest.raises(CorruptItem):
        MemberPage.from_item(dataclasses.replace(item, body={**item.body, **change}))  # type: ignore[dict-item]


def test_members_of_a_stamp_above_the_records_do_not_count_yet() -> None:
    record = test_groups.CONSUMERS
    first, second = record.all_members
    torn = MemberPage(
        shard=7, group_id="g", number=0, stamp=5, members={0: first, 3: second}, before={0: first}
    )
    for stamp, members in ((4, (first,)), (5, (first, second)), (6, (first, second))):
        item = stored(dataclasses.replace(record, stamp=stamp))
        assert assemble(item, [torn]).record.all_members == members
    later = dataclasses.replace(torn, before=None)
    with pytest.raises(Inconsistent):
        assemble(stored(dataclasses.replace(record, stamp=4)), [later])


def test_a_member_in_two_pages_was_read_at_two_moments() -> None:
    record = test_groups.CONSUMERS
    with pytest.raises(Inconsistent):
        assemble(stored(record), [page_of(record), page_of(record, number=1, first=1)])


def test_a_page_of_members_with_ten_partitions_costs_a_few_write_units() -> None:
    """DynamoDB counts kilobytes."""
    consumers: MembersByPlace = {
        number: ConsumerMember(
            member_id=str(UUID(int=number * 2**90 + 17 * number)),
            client_id="client",
            client_host=f"/10.0.{number // 250}.{number % 250}",
            rebalance_timeout_ms=300_000,
            subscribed_topics=("t",),
            epoch=9,
            assigned=frozenset(
                TopicIdPartition(UUID(int=5), 10 * number + part) for part in range(10)
            ),
        )
        for number in range(MEMBERS_PER_PAGE)
    }
    sharers: MembersByPlace = {
        number: ShareMember(
            member_id=str(UUID(int=number * 2**90 + 17 * number)),
            client_id="client",
            subscribed_topics=("t",),
            epoch=9,
            assigned=frozenset(TopicIdPartition(UUID(int=5), part) for part in range(10)),
        )
        for number in range(MEMBERS_PER_PAGE)
    }
    classic: MembersByPlace = {
        number: dataclasses.replace(
            test_groups.MEMBER,
            member_id=f"consumer-group-{number}-0b6cdb1c-0000-4000-8000-{number:012d}",
            assignment=b"\x00\x01" + b"some-topic" * 20 + number.to_bytes(4, "big"),
        )
        for number in range(MEMBERS_PER_PAGE)
    }
    for members in (consumers, sharers, classic):
        page = MemberPage(shard=0, group_id="g", number=0, stamp=0, members=members)
        assert len(encode_body(page.item_id, page.to_body())) < 4096

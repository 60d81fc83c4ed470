"""A share group's record comes back as it was stored, or is refused."""

from __future__ import annotations

import dataclasses
import json
from uuid import UUID

import pytest
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.coordination.consumer_groups import (
    HASH_OF_NO_TOPICS,
    SubscribedTopic,
    TopicIdPartition,
    hash_topics,
)
from tidelog_core.metadata.coordination.groups import GroupRecord
from tidelog_core.metadata.coordination.share_groups import ShareGroupState, ShareMember
from tidelog_core.metadata.store import Item

BOTH = frozenset(TopicIdPartition(UUID(int=5), number) for number in (0, 1))
TOPICS = {"t": SubscribedTopic(topic_id=UUID(int=5), partition_count=2)}
RECORD = GroupRecord(
    shard=7,
    group_id="g",
    phase="Stable",
    phase_since_ms=1,
    generation=9,
    protocol_type="share",
    protocol_name=None,
    leader=None,
    members=(),
    share=ShareGroupState(
        assignment_epoch=8,
        topics_hash=hash_topics(TOPICS),
        members=(
            ShareMember(
                member_id="a",
                rack_id="r",
                client_id="client",
                client_host="/127.0.0.1",
                subscribed_topics=("t", "é"),
                epoch=7,
                previous_epoch=6,
                assigned=BOTH,
                target=frozenset({TopicIdPartition(UUID(int=6), 3)}),
            ),
            ShareMember(member_id="b", epoch=8, previous_epoch=8, assigned=BOTH, target=BOTH),
        ),
    ),
)


def stored(record: GroupRecord) -> Item:
    """Return the record's item after a way through JSON."""
    return Item(record.item_id, 4, json.loads(json.dumps(record.to_body())))


def test_a_share_group_comes_back_as_it_was_stored() -> None:
    assert GroupRecord.from_item(stored(RECORD)) == RECORD.with_members(())
    assert RECORD.member_count == 2
    empty = dataclasses.replace(
        RECORD, share=ShareGroupState(assignment_epoch=0, topics_hash=HASH_OF_NO_TOPICS, members=())
    )
    assert GroupRecord.from_item(stored(empty)) == empty


def test_topics_that_an_older_program_left_in_the_record_are_read_as_their_hash() -> None:
    item = stored(RECORD)
    share = {"assignment_epoch": 8, "topics": [["t", str(UUID(int=5)), 2]]}
    older = dataclasses.replace(item, body={**item.body, "share": share})
    assert GroupRecord.from_item(older) == RECORD.with_members(())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("assignment_epoch", "8"),
        ("topics_hash", 5),
        ("members", "!"),
        ("members", ""),
        ("members", None),
        ("members", "eJyrVspMKVayio6N1VEqyi8HMmoBNvYFtA=="),
    ],
)
def test_a_damaged_share_group_is_refused(field: str, value: object) -> None:
    item = stored(RECORD)
    body = {**item.body, "share": {**item.body["share"], field: value}}  # type: ignore[dict-item]
    with pytest.raises(CorruptItem):
        GroupRecord.from_item(dataclasses.replace(item, body=body))
    if field != "members":  # An older program left them there.
        del body["share"][field]  # type: ignore[union-attr, arg-type]
        with pytest.raises(CorruptItem):
            GroupRecord.from_item(dataclasses.replace(item, body=body))


def test_a_group_of_two_kinds_is_refused() -> None:
    item = stored(RECORD)
    body = {**item.body, "consumer": item.body["share"]}
    with pytest.raises(CorruptItem):
        GroupRecord.from_item(dataclasses.replace(item, body=body))

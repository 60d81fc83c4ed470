"""Records of groups and offsets, and the shard of a group."""

from __future__ import annotations

import dataclasses
from uuid import UUID

import pytest
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.coordination.consumer_groups import (
    HASH_OF_NO_TOPICS,
    ClassicProtocols,
    ConsumerGroupState,
    ConsumerMember,
    MemberState,
    SubscribedTopic,
    TopicIdPartition,
    hash_topics,
    pack_consumers,
)
from tidelog_core.metadata.coordination.groups import (
    OFFSETS_PAGE_PARTITIONS,
    CommittedOffset,
    GroupMember,
    GroupOffsets,
    GroupRecord,
    java_string_hash,
    offset_page,
    pack_classic,
    shard_of_group,
)
from tidelog_core.metadata.store import Item
from tidelog_core.metadata.stores.commit import decode_body, encode_body

MEMBER = GroupMember(
    member_id="client-1",
    group_instance_id=None,
    client_id="client",
    client_host="/127.0.0.1",
    session_timeout_ms=45_000,
    rebalance_timeout_ms=300_000,
    protocols=(("range", bytes(range(256))), ("cooperative-sticky", b"")),
    assignment=b"\x00\xff",
)
RECORD = GroupRecord(
    shard=7,
    group_id="g:1/é",
    phase="Stable",
    phase_since_ms=1,
    generation=3,
    protocol_type="consumer",
    protocol_name="range",
    leader="client-1",
    members=(MEMBER, dataclasses.replace(MEMBER, member_id="s-1", group_instance_id="s")),
)
TOPIC = SubscribedTopic(topic_id=UUID(int=5), partition_count=4)
SHARE = frozenset(TopicIdPartition(UUID(int=5), number) for number in (0, 3))
CONSUMERS = GroupRecord(
    shard=7,
    group_id="g",
    phase="Reconciling",
    phase_since_ms=1,
    generation=9,
    protocol_type="consumer",
    protocol_name=None,
    leader=None,
    members=(),
    consumer=ConsumerGroupState(
        assignment_epoch=8,
        topics_hash=hash_topics({"t": TOPIC}),
        members=(
            ConsumerMember(
                member_id="a",
                instance_id="i",
                rack_id="r",
                client_id="client",
                client_host="/127.0.0.1",
                rebalance_timeout_ms=300_000,
                subscribed_topics=("t", "u"),
                subscribed_pattern="t|é",
                assignor="range",
                state=MemberState.UNREVOKED_PARTITIONS,
                epoch=-2,
                previous_epoch=7,
                assigned=SHARE,
                revoking=frozenset({TopicIdPartition(UUID(int=6), 1)}),
                target=frozenset({TopicIdPartition(UUID(int=7), 2)}),
            ),
            ConsumerMember(
                member_id="b",
                assigned=frozenset({TopicIdPartition(UUID(int=5), 1)}),
                target=frozenset({TopicIdPartition(UUID(int=5), 1)}),
                classic=ClassicProtocols(session_timeout_ms=1, protocols=(("range", b"\x00\xff"),)),
            ),
        ),
    ),
)
OFFSETS = GroupOffsets(
    group_id="g:1/é",
    topic="t",
    topic_id=UUID(int=5),
    page=2,
    partitions={128: CommittedOffset(2**62, 4, 'm"\n', 9), 130: CommittedOffset(0, -1, "", 9, 10)},
)


def stored(record: GroupRecord | GroupOffsets) -> Item:
    """Return the record's item after a way through JSON."""
    key = record.item_id
    return Item(key, 4, decode_body(key, encode_body(key, record.to_body())))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("consumer-group", -1738392088),
        ("polygenelubricants", -(2**31)),
        ("é", 233),
        ("😀", 1772899),
    ],
)
def test_the_hash_is_javas(text: str, value: int) -> None:
    """The last two show that Java hashes UTF-16 units, not characters or bytes."""
    assert java_string_hash(text) == value


def test_a_negative_hash_still_gives_a_shard() -> None:
    assert shard_of_group("polygenelubricants", 50) == 0
    assert {shard_of_group(f"group-{index}", 50) for index in range(2000)} == set(range(50))


def test_records_come_back_as_they_were_stored_without_members() -> None:
    assert GroupRecord.from_item(stored(RECORD)) == RECORD.with_members(())
    assert GroupRecord.from_item(stored(dataclasses.replace(RECORD, stamp=5))).stamp == 5
    assert GroupOffsets.from_item(stored(OFFSETS)) == OFFSETS
    assert GroupRecord.from_item(stored(RECORD)).version == 4


def test_neighbouring_partitions_share_a_page() -> None:
    assert offset_page(0) == offset_page(OFFSETS_PAGE_PARTITIONS - 1) == 0
    assert offset_page(OFFSETS_PAGE_PARTITIONS) == 1


def test_members_that_an_older_program_left_in_the_record_are_read() -> None:
    item = stored(RECORD)
    body = {**item.body, "members": pack_classic(RECORD.members)}
    del body["stamp"]
    assert GroupRecord.from_item(dataclasses.replace(item, body=body)) == RECORD
    item = stored(CONSUMERS)
    assert CONSUMERS.consumer is not None
    kind = {**item.body["consumer"], "members": pack_consumers(CONSUMERS.consumer.members)}  # type: ignore[dict-item]
    body = {**item.body, "members": pack_classic(()), "consumer": kind}
    assert GroupRecord.from_item(dataclasses.replace(item, body=body)) == CONSUMERS


def with_topics(item: Item, kind: str, rows: object) -> Item:
    """Return the item as a program wrote it that kept the topics in it."""
    state = {**item.body[kind], "topics": rows, "patterns": [["t|é", ["t"]], ["none", []]]}  # type: ignore[dict-item]
    del state["topics_hash"]
    return dataclasses.replace(item, body={**item.body, kind: state})  # type: ignore[dict-item]


def test_topics_that_an_older_program_left_in_the_record_are_read_as_their_hash() -> None:
    item = with_topics(stored(CONSUMERS), "consumer", [["t", str(UUID(int=5)), 4]])
    assert GroupRecord.from_item(item) == CONSUMERS.with_members(())


@pytest.mark.parametrize("rows", [[["t", "no uuid", 1]], [["t"]], [["t", str(UUID(int=5)), "4"]]])
def test_topics_of_an_older_program_that_are_damaged_are_refused(rows: object) -> None:
    with pytest.raises(CorruptItem):
        GroupRecord.from_item(with_topics(stored(CONSUMERS), "consumer", rows))


def test_the_hash_of_topics_differs_where_a_name_an_id_or_a_count_does() -> None:
    other = SubscribedTopic(topic_id=UUID(int=6), partition_count=4)
    wider = dataclasses.replace(TOPIC, partition_count=5)
    lists = [{}, {"t": TOPIC}, {"t": other}, {"t": wider}, {"u": TOPIC}, {"t": TOPIC, "u": other}]
    assert len({hash_topics(topics) for topics in lists}) == len(lists)
    assert hash_topics({"t": TOPIC, "u": other}) == hash_topics({"u": other, "t": TOPIC})
    # It is stored: another one would have every group assign its partitions again.
    assert hash_topics({"t": TOPIC}) == "d5733e3fd8ab72f07ee9d2cab81a3be8"
    assert hash_topics({}) == HASH_OF_NO_TOPICS


@pytest.mark.parametrize(
    "change",
    [
        {"generation": "3"},
        {"generation": -1},
        {"members": "not base64"},
        {"members": "AAAA"},
        {"members": None},
        {"phase": 1},
        {"stamp": -1},
        {"more": 1},
    ],
)
def test_a_damaged_group_is_refused(change: dict[str, object]) -> None:
    item = stored(RECORD)
    with pytest.raises(CorruptItem):
        GroupRecord.from_item(dataclasses.replace(item, body={**item.body, **change}))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "change",
    [{"topic_id": "5"}, {"offsets": 1}, {"offsets": [[1, 2]]}, {"offsets": [[1, 2, 3, 4, 5, 6]]}],
)
def test_a_damaged_page_is_refused(change: dict[str, object]) -> None:
    item = stored(OFFSETS)
    with pytest.raises(CorruptItem):
        GroupOffsets.from_item(dataclasses.replace(item, body={**item.body, **change}))  # type: ignore[dict-item]


def test_a_consumer_group_comes_back_as_it_was_stored() -> None:
    assert GroupRecord.from_item(stored(CONSUMERS)) == CONSUMERS.with_members(())
    assert (CONSUMERS.member_count, RECORD.member_count) == (2, 2)
    empty = dataclasses.replace(
        CONSUMERS,
        consumer=ConsumerGroupState(assignment_epoch=0, topics_hash=HASH_OF_NO_TOPICS, members=()),
    )
    assert GroupRecord.from_item(stored(empty)) == empty


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("assignment_epoch", "8"),
        ("assignment_epoch", True),
        ("topics_hash", 5),
        ("topics_hash", None),
        ("members", "!"),
        ("members", ""),
        ("members", None),
        ("members", "eJyrVspMKVayio6N1VEqyi8HMmoBNvYFtA=="),
    ],
)
def test_a_damaged_consumer_group_is_refused(field: str, value: object) -> None:
    item = stored(CONSUMERS)
    body = {**item.body, "consumer": {**item.body["consumer"], field: value}}  # type: ignore[dict-item]
    with pytest.raises(CorruptItem):
        GroupRecord.from_item(dataclasses.replace(item, body=body))
    if field != "members":  # An older program left them there.
        del body["consumer"][field]  # type: ignore[union-attr, arg-type]
        with pytest.raises(CorruptItem):
            GroupRecord.from_item(dataclasses.replace(item, body=body))

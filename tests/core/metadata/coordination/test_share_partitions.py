"""Records of share partitions: what is written is read, and what is not one is refused."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.coordination.share_partitions import (
    STORED_BATCHES_MAX,
    RecordState,
    SharePartitionRecord,
    StateBatch,
    merge_batches,
    share_partition_key,
)
from tidelog_core.metadata.store import Body, Item
from tidelog_core.metadata.stores.commit import BODY_SIZE_BYTES_MAX, decode_body, encode_body

TOPIC_ID = UUID(int=9)
KEY = share_partition_key("a group/of ours", TOPIC_ID, 7)
STORED = st.sampled_from([s for s in RecordState if s is not RecordState.ACQUIRED])


@st.composite
def ascending_batches(draw: st.DrawFn, start: int) -> tuple[StateBatch, ...]:
    offset = start
    batches = []
    for gap, records, state, count in draw(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(1, 4), STORED, st.integers(0, 10)),
            max_size=12,
        )
    ):
        first = offset + gap
        offset = first + records
        batches.append(StateBatch(first, offset - 1, state, count))
    return tuple(batches)


@st.composite
def share_partitions(draw: st.DrawFn) -> SharePartitionRecord:
    start = draw(st.integers(-1, 2**62))
    return SharePartitionRecord(
        group_id=draw(st.text(min_size=1, max_size=20)),
        topic_id=draw(st.uuids()),
        partition=draw(st.integers(0, 2**31 - 1)),
        state_epoch=draw(st.integers(0, 2**31 - 1)),
        leader_epoch=draw(st.integers(-1, 2**31 - 1)),
        start_offset=start,
        batches=() if start < 0 else draw(ascending_batches(start)),
    )


@given(share_partitions())
def test_share_partitions_are_read_as_they_were_written(record: SharePartitionRecord) -> None:
    body = decode_body(record.item_id, encode_body(record.item_id, record.to_body()))
    found = SharePartitionRecord.from_item(Item(record.item_id, 3, body))
    assert found == record
    assert found.version == 3


@given(ascending_batches(0))
def test_merged_batches_say_the_same_of_every_record_in_fewer_rows(
    batches: tuple[StateBatch, ...],
) -> None:
    merged = merge_batches(batches)
    assert len(merged) <= len(batches)

    def states(rows: tuple[StateBatch, ...]) -> dict[int, object]:
        return {
            offset: (row.state, row.delivery_count)
            for row in rows
            for offset in range(row.first_offset, row.last_offset + 1)
        }

    assert states(merged) == states(batches)
    for row, following in pairwise(merged):
        assert (
            row.last_offset + 1 < following.first_offset
            or row.state is not following.state
            or row.delivery_count != following.delivery_count
        )


def test_as_many_rows_as_there_may_be_fit_an_item() -> None:
    start = 2**62
    record = SharePartitionRecord(
        group_id="g",
        topic_id=TOPIC_ID,
        partition=0,
        start_offset=start,
        batches=tuple(
            StateBatch(start + n, start + n, RecordState.ARCHIVED, n % 2 + 9)
            for n in range(STORED_BATCHES_MAX)
        ),
    )
    assert len(encode_body(record.item_id, record.to_body())) < BODY_SIZE_BYTES_MAX


GOOD: Body = {
    "state_epoch": 1,
    "leader_epoch": 2,
    "start_offset": 10,
    "batches": [[0, 2, 0, 1], [4, 1, 2, 1]],
}


def test_the_layout_is_as_documented() -> None:
    assert SharePartitionRecord.from_item(Item(KEY, 1, GOOD)) == SharePartitionRecord(
        group_id="a group/of ours",
        topic_id=TOPIC_ID,
        partition=7,
        state_epoch=1,
        leader_epoch=2,
        start_offset=10,
        batches=(
            StateBatch(10, 11, RecordState.AVAILABLE, 1),
            StateBatch(14, 14, RecordState.ACKNOWLEDGED, 1),
        ),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"batches": [[0, 2, 1, 1]]},
        {"batches": [[0, 2, 3, 1]]},
        {"batches": [[0, 0, 2, 1]]},
        {"batches": [[-1, 2, 2, 1]]},
        {"batches": [[0, 2, 2, 1], [1, 1, 0, 1]]},
        {"batches": [[0, 2, 2, -1]]},
        {"batches": [[0, 2, 2]]},
        {"batches": [[0, 2**63, 2, 1]]},
        {"start_offset": -1},
        {"start_offset": -2, "batches": []},
        {"state_epoch": -1},
        {"later": 1},
    ],
)
def test_what_is_no_share_partition_is_refused(wrong: Body) -> None:
    with pytest.raises(CorruptItem):
        SharePartitionRecord.from_item(Item(KEY, 1, {**GOOD, **wrong}))


@pytest.mark.parametrize("key", ["", "x/1", f"{TOPIC_ID}", f"{TOPIC_ID}/", f"{TOPIC_ID}/-1"])
def test_what_is_no_key_of_a_share_partition_is_refused(key: str) -> None:
    with pytest.raises(CorruptItem):
        SharePartitionRecord.from_item(Item(dataclasses.replace(KEY, key=key), 1, GOOD))

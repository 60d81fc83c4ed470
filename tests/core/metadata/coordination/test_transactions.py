"""Records of transactions: what is written is read, and what is not one is refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.coordination.groups import CommittedOffset
from tidelog_core.metadata.coordination.transactions import (
    PendingOffsets,
    TransactionRecord,
    TransactionState,
    shard_of_transaction,
)
from tidelog_core.metadata.store import Item, ItemKey
from tidelog_core.metadata.stores.commit import decode_body, encode_body
from tidelog_core.model import TopicPartition

TOPIC_ID = UUID(int=9)
EPOCHS = st.integers(-1, 2**15 - 1)
IDS = st.integers(-1, 2**63 - 1)
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "__x"]), st.integers(0, 2**20))


def as_item(record: Any, version: int = 3) -> Item:
    body = decode_body(record.item_id, encode_body(record.item_id, record.to_body()))
    return Item(record.item_id, version, body)


@given(
    st.builds(
        TransactionRecord,
        shard=st.integers(0, 100),
        transactional_id=st.text(min_size=1, max_size=20),
        producer_id=st.integers(0, 2**63 - 1),
        producer_epoch=EPOCHS,
        previous_producer_id=IDS,
        next_producer_id=IDS,
        last_producer_epoch=EPOCHS,
        timeout_ms=st.integers(0, 2**31 - 1),
        state=st.sampled_from(TransactionState),
        partitions=st.frozensets(PARTITIONS, max_size=8),
        started_ms=st.integers(-1, 2**42),
        updated_ms=st.integers(0, 2**42),
        client_version=st.integers(0, 2),
    )
)
def test_transactions_are_read_as_they_were_written(record: TransactionRecord) -> None:
    found = TransactionRecord.from_item(as_item(record))
    assert found == record
    assert found.version == 3


@given(
    st.builds(
        PendingOffsets,
        shard=st.integers(0, 100),
        group_id=st.text(min_size=1, max_size=20),
        producer_id=st.integers(0, 2**63 - 1),
        producer_epoch=st.integers(0, 2**15 - 1),
        offsets=st.dictionaries(
            st.tuples(st.sampled_from(["a", "b"]), st.just(TOPIC_ID)),
            st.dictionaries(
                st.integers(0, 99),
                st.builds(
                    CommittedOffset,
                    st.integers(-1, 2**63 - 1),
                    st.integers(-1, 9),
                    st.text(max_size=5),
                    st.integers(0, 2**42),
                ),
                max_size=3,
            ),
            max_size=2,
        ),
    )
)
def test_pending_offsets_are_read_as_they_were_written(record: PendingOffsets) -> None:
    found = PendingOffsets.from_item(as_item(record))
    assert found == record
    assert found.version == 3


def test_groups_whose_names_look_like_keys_are_distinguished() -> None:
    record = PendingOffsets(shard=1, group_id="00/a/b", producer_id=7, producer_epoch=0, offsets={})
    assert PendingOffsets.from_item(as_item(record)).group_id == "00/a/b"


@pytest.mark.parametrize(
    "change",
    [
        {"state": "Dead"},
        {"producer_id": -1},
        {"producer_epoch": "1"},
        {"partitions": [["t", 1]]},
        {"partitions": [["t", ["1"]]]},
        {"partitions": "t"},
        {"unknown": 1},
    ],
)
def test_what_is_no_transaction_is_refused(change: dict[str, Any]) -> None:
    record = TransactionRecord(
        shard=0, transactional_id="x", producer_id=1, producer_epoch=0, timeout_ms=1, updated_ms=1
    )
    item = as_item(record)
    with pytest.raises(CorruptItem):
        TransactionRecord.from_item(Item(item.id, 1, {**item.body, **change}))


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("7", {}),
        ("x/g", {}),
        ("7/g", {"producer_epoch": -1}),
        ("7/g", {"offsets": [["t", "no uuid", []]]}),
        ("7/g", {"offsets": [["t", str(TOPIC_ID), [[1, 2, 3, "m"]]]]}),
        ("7/g", {"offsets": [["t", [[1, 2, 3, "m", 4]]]]}),
        ("7/g", {"unknown": 1}),
    ],
)
def test_what_is_no_pending_commit_is_refused(key: str, change: dict[str, Any]) -> None:
    body: dict[str, Any] = {"producer_epoch": 0, "offsets": []}
    with pytest.raises(CorruptItem):
        PendingOffsets.from_item(Item(ItemKey("pending-offsets:0", key), 1, {**body, **change}))


def test_shards_are_those_of_kafka() -> None:
    """``Utils.abs("…".hashCode()) % 50`` in Java."""
    assert [shard_of_transaction(name, 50) for name in ("", "a", "copier")] == [0, 47, 24]

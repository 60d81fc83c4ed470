"""Entries of the changelog are short, and name every key."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import pytest
from tidelog_core.metadata.records import broker_key, partition_key, topic_key
from tidelog_core.metadata.store import ItemKey
from tidelog_core.metadata.stores.changelog_entry import decode_keys, encode_keys

ID = UUID("d9428888-122b-11e1-b85c-61cd3cbb3210")
KEYS = [
    topic_key("t"),
    broker_key(3),
    partition_key(ID, 0),
    partition_key(ID, 4_294_967),
    partition_key(UUID(int=0), 7),
    partition_key(UUID(int=2**128 - 1), 9_999),
    ItemKey("topic", "0000000012"),  # a topic may be called that
    ItemKey("topic", "000000012"),
    ItemKey("topic", "٠٠٠٠٠٠٠٠٠١"),
    ItemKey("topic", "12"),
    ItemKey("partition:", "x"),
    ItemKey(str(ID), "alone"),
    ItemKey(str(ID).upper(), "0000000001"),
    ItemKey(f"{ID}:more", "0000000001"),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_key_comes_back(key: ItemKey) -> None:
    assert decode_keys(encode_keys([key])) == (key,)


def test_all_keys_of_an_entry_come_back() -> None:
    assert sorted(decode_keys(encode_keys(KEYS))) == sorted(KEYS)
    assert decode_keys(encode_keys([])) == ()


def test_an_entry_of_before_is_read() -> None:
    text = json.dumps([[key.collection, key.key] for key in KEYS])
    assert decode_keys(text) == tuple(KEYS)


@pytest.mark.parametrize(
    "text", ["", "[[", "7", "null", '{"a": 7}', '{"a": [null]}', '{"a": {"b": [1]}}', '[["a"]]']
)
def test_what_is_no_entry_is_refused(text: str) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError)):
        decode_keys(text)


def test_partitions_of_many_topics_take_half_of_what_their_keys_do() -> None:
    one = [partition_key(uuid4(), 12) for _ in range(80)]
    assert len(encode_keys(one)) < 0.5 * sum(len(k.collection) + len(k.key) + 8 for k in one)
    together = [partition_key(ID, number) for number in range(80)]
    assert len(encode_keys(together)) < 400

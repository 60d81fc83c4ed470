"""Computes items' sizes and the capacity units of DynamoDB for reading and writing them.

Sources: DynamoDB developer guide, «DynamoDB item sizes and formats», «Capacity unit
consumption» and «Managing complex workflows with transactions». A write unit is 1 KiB of the
larger of the item before and after; a read unit is 4 KiB read consistently; a transaction
takes both twice, even for an item that it only checks. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tidelog_core.metadata.store import ClusterVersion, Item, ItemKey, Write
from tidelog_core.metadata.stores import dynamodb_items as items

WRITE_UNIT_BYTES, READ_UNIT_BYTES = 1024, 4096
TRANSACTION_FACTOR = 2
WRITE_ID = "0" * 32  # as long as all others
ANY_TABLE = ""
VERSION_DIGITS_EXAMPLE = 1_000_000  # a cluster version after some time of use


def attributes_size_bytes(attributes: Mapping[str, Mapping[str, str]]) -> int:
    """Return the counted size of attributes in botocore's form, with their names."""
    return sum(len(name.encode()) + _value_size(value) for name, value in attributes.items())


def _value_size(value: Mapping[str, str]) -> int:
    [(kind, text)] = value.items()
    if kind == "N":
        return math.ceil(len(text.strip("-0") or "0") / 2) + 1
    assert kind == "S"
    return len(text.encode())


def written_size_bytes(write: Write) -> int:
    """Return the size of the written item; 0 for a deletion."""
    if write.body is None:
        return 0
    values: Mapping[str, Any] = items.put_request(ANY_TABLE, write, WRITE_ID)[
        "ExpressionAttributeValues"
    ]
    attributes: dict[str, Mapping[str, str]] = {
        **items.key_of(write.id),
        "v": {"N": str(max(0, write.expected_version) + 1)},
        "body": values[":body"],
        "w": values[":w"],
    }
    if ":value" in values:
        attributes["value"] = values[":value"]
    return attributes_size_bytes(attributes)


def item_size_bytes(item: Item) -> int:
    """Return the size of an item that was read."""
    return written_size_bytes(Write(item.id, item.body, item.version - 1))


def stored_size_bytes(id: ItemKey, version: int, body_size_bytes: int) -> int:
    """Return the size of an item whose JSON body has that size, without encoding it.

    A body with an integer ``value``, which is an attribute of its own, is some bytes larger here.
    """
    names = len("pk") + len("sk") + len("v") + len("body") + len("w")
    values = len(id.collection.encode()) + len(id.key.encode()) + len(WRITE_ID)
    return names + values + _value_size({"N": str(version)}) + body_size_bytes


def changelog_entry_size_bytes(keys: Iterable[ItemKey]) -> int:
    """Return the size of the changelog entry of a commit that changes the keys."""
    return attributes_size_bytes(_logging(list(keys))[1]["Put"]["Item"])


def logging_units(keys: Iterable[ItemKey]) -> dict[str, int]:
    """Return the write units of a logged commit besides its own items, by collection.

    They are for the version's item, the new entry, and the removal of the oldest entry, which is
    assumed to have the same size.
    """
    keys = list(keys)
    actions = _logging(keys)
    assert [next(iter(action)) for action in actions] == ["Update", "Put", "Delete"]
    entry = transaction_write_units(changelog_entry_size_bytes(keys))
    return {
        items.CLUSTER_VERSION.collection: TRANSACTION_FACTOR,
        items.CHANGELOG_COLLECTION: 2 * entry,
    }


def _logging(keys: list[ItemKey]) -> list[dict[str, Any]]:
    return items.logging_actions(
        ANY_TABLE,
        keys,
        after=ClusterVersion(VERSION_DIGITS_EXAMPLE),
        write_id=WRITE_ID,
        changelog_length=VERSION_DIGITS_EXAMPLE,
    )


def write_units(size_bytes: int) -> int:
    """Return the units of a single write; a missing item takes one too."""
    return max(1, math.ceil(size_bytes / WRITE_UNIT_BYTES))


def transaction_write_units(size_bytes: int) -> int:
    """Return the units of a write or a check in a transaction."""
    return TRANSACTION_FACTOR * write_units(size_bytes)


def read_units(size_bytes: int) -> int:
    """Return the units of a consistent read of an item, or of all items of a query."""
    return max(1, math.ceil(size_bytes / READ_UNIT_BYTES))


def eventual_read_units(size_bytes: int) -> float:
    """Return the units of an eventually consistent read, half of a consistent one's."""
    return read_units(size_bytes) / 2

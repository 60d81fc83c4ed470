"""Encodes a changelog entry for DynamoDB: the keys that one commit has changed.

Every node reads every entry, and a failing zone causes many, so entries are short. A JSON object:

    collection                   [key, ...]
    prefix of such collections   {topic id: [key, ...], ...}

Collections that end with a UUID, such as the partitions of a topic, are grouped by their prefix,
and the UUID is written as its 16 bytes in 22 letters of URL-safe base64. A key of ten digits, the
number of a broker or a partition, is written as that number. Older entries are a JSON list of
[collection, key].
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from tidelog_core.metadata.store import ItemKey

UUID_LENGTH = 36  # of a UUID as text
NUMBER_LENGTH = 10


def encode_keys(keys: Iterable[ItemKey]) -> str:
    """Return the entry's text."""
    plain: dict[str, list[int | str]] = {}
    by_prefix: defaultdict[str, dict[str, list[int | str]]] = defaultdict(dict)
    for key in keys:
        prefix, short_id = _split(key.collection)
        named = plain if short_id is None else by_prefix[prefix]
        name = key.collection if short_id is None else short_id
        named.setdefault(name, []).append(_number_or_text(key.key))
    entry: dict[str, object] = {**plain}
    for prefix, some in by_prefix.items():
        if prefix in plain:  # a collection of that very name
            entry.update((prefix + _long_id(short_id), listed) for short_id, listed in some.items())
        else:
            entry[prefix] = some
    return json.dumps(entry, separators=(",", ":"))


def decode_keys(text: str) -> tuple[ItemKey, ...]:
    """Return the keys. Raises ``ValueError`` or ``TypeError`` for text that is no entry."""
    found = json.loads(text)
    if isinstance(found, list):
        return tuple(ItemKey(*pair) for pair in found)
    keys: list[ItemKey] = []
    for name, listed in found.items():
        if isinstance(listed, list):
            keys += (ItemKey(name, _text(key)) for key in listed)
        else:
            for short_id, some in listed.items():
                collection = name + _long_id(short_id)
                keys += (ItemKey(collection, _text(key)) for key in some)
    return tuple(keys)


def _split(collection: str) -> tuple[str, str | None]:
    """Return the collection's prefix and UUID, ``None`` if it does not end with a UUID."""
    text = collection[-UUID_LENGTH:]
    try:
        found = UUID(text)
    except ValueError:
        return collection, None
    if str(found) != text:
        return collection, None
    return collection[:-UUID_LENGTH], base64.urlsafe_b64encode(found.bytes)[:22].decode()


def _long_id(short_id: str) -> str:
    return str(UUID(bytes=base64.urlsafe_b64decode(short_id + "==")))


def _number_or_text(key: str) -> int | str:
    is_number = len(key) == NUMBER_LENGTH and key.isascii() and key.isdecimal()
    return int(key) if is_number else key


def _text(key: Any) -> str:
    if isinstance(key, int):
        return f"{key:0{NUMBER_LENGTH}d}"
    if isinstance(key, str):
        return key
    raise TypeError(f"no key: {key!r}")

"""Packs the members of a group into one string: ``base64(zlib(JSON))``.

Members mostly repeat each other, so a thousand of them fit into the 400 KB of a DynamoDB item.
Partitions are runs of ``[topic, partition, …]``, where the topic is an index into a table of topic
ids next to the members.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar
from uuid import UUID

M = TypeVar("M")

PACKED_SIZE_BYTES_MAX = 64 * 1024 * 1024  # once unpacked; a guard against corrupt items


def pack(document: Any) -> str:
    """Return the JSON document packed as one string."""
    data = json.dumps(document, separators=(",", ":"))
    return encode_bytes(zlib.compress(data.encode()))


def unpack(text: str) -> Any:
    """Return the packed value. Raises ``ValueError``, ``zlib.error``."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(decode_bytes(text), PACKED_SIZE_BYTES_MAX)
    if not unpacker.eof:
        raise ValueError("members are cut short or too large")
    return json.loads(data)


def pack_members(
    members: Iterable[M],
    topic_ids: Iterable[UUID],
    row_of: Callable[[M, Mapping[UUID, int]], list[Any]],
) -> str:
    """Return members and the table of their topic ids as one string.

    ``row_of`` gives a member's row, from the member and each topic's place in the table.
    """
    ids = sorted(set(topic_ids))
    index = {topic_id: number for number, topic_id in enumerate(ids)}
    rows = [row_of(member, index) for member in members]
    return pack({"ids": [str(topic_id) for topic_id in ids], "rows": rows})


def unpack_members(text: str, member_of: Callable[[list[Any], list[UUID]], M]) -> tuple[M, ...]:
    """Return the packed members; ``member_of`` makes one from its row and the table of ids.

    Raises ``ValueError``, ``TypeError``, ``KeyError``, ``zlib.error``.
    """
    document = unpack(text)
    ids = [UUID(topic_id) for topic_id in document["ids"]]
    return tuple(member_of(row, ids) for row in document["rows"])


def encode_bytes(data: bytes) -> str:
    """Return bytes as JSON can hold them."""
    return base64.b64encode(data).decode("ascii")


def decode_bytes(text: str) -> bytes:
    """Return the bytes that ``encode_bytes`` encoded. Raises ``ValueError``."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def to_runs(partitions: Iterable[tuple[UUID, int]], index: Mapping[UUID, int]) -> list[list[int]]:
    """Return partitions by topic, where ``index`` has each topic's place in the table."""
    runs: dict[int, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        runs.setdefault(index[topic_id], []).append(partition)
    return [[topic, *numbers] for topic, numbers in runs.items()]


def from_runs(runs: list[list[int]], topic_ids: list[UUID]) -> Iterator[tuple[UUID, int]]:
    """Yield the partitions again. Raises ``TypeError``, ``IndexError``."""
    for topic, *numbers in runs:
        for number in numbers:
            yield topic_ids[topic], whole_number(number)


def whole_number(value: object) -> int:
    """Return the value. Raises ``TypeError`` if it is not an integer."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value

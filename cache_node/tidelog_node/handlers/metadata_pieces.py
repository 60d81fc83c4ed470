"""Metadata responses put together of topics that are encoded one by one.

Encoding takes about 10 µs a partition, and one change of one partition makes every response
of before out of date. So each topic's bytes are kept as long as its records are the same ones,
and a response is what stands before the topics, those, and what stands behind them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from kio.index import load_response_schema
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.records import Broker, Partition, Topic
from tidelog_core.wire_messages import write_message

METADATA_KEY = 3
FLEXIBLE_FROM = 9
ERROR_CODE_FROM = 13
CLUSTER_OPERATIONS = range(8, 11)  # the versions that have them
PIECES_SIZE_BYTES_MAX = 32 * 1024 * 1024


class _Piece(NamedTuple):
    """A topic's bytes, and the very objects that they were made of."""

    topic: Topic
    partitions: tuple[Partition, ...]
    brokers: Mapping[int, Broker]
    encoded: bytes


class EncodedTopics:
    """Encoded topics by name, API version and whether operations are told; bounded."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, int, bool], _Piece] = {}
        self._size_bytes = 0

    def get(  # noqa: PLR0917
        self,
        image: ClusterImage,
        brokers: Mapping[int, Broker],
        name: str,
        version: int,
        has_operations: bool,
        make: Callable[[Topic], object],
    ) -> bytes:
        """Return the topic of the image as ``make`` describes it, encoded."""
        topic, partitions = image.topics[name], image.partitions(name)
        key = (name, version, has_operations)
        known = self._pieces.get(key)
        if (
            known is not None
            and known.topic is topic
            and known.partitions is partitions
            and known.brokers is brokers
        ):
            return known.encoded
        encoded = encode_topic(make(topic), version)
        self._size_bytes += len(encoded) - (0 if known is None else len(known.encoded))
        if self._size_bytes > PIECES_SIZE_BYTES_MAX:
            self._pieces, self._size_bytes = {}, len(encoded)
        self._pieces[key] = _Piece(topic, partitions, brokers, encoded)
        return encoded


def encode_topic(topic: object, version: int) -> bytes:
    """Return a topic as it stands in a response of this version."""
    return write_message(_topic_schema(version), topic)


def join_topics(empty: bytes, topics: Sequence[bytes], version: int) -> bytes:
    """Return the response that is ``empty``, encoded without topics, with these."""
    is_flexible = version >= FLEXIBLE_FROM
    behind = 4 * (version in CLUSTER_OPERATIONS) + 2 * (version >= ERROR_CODE_FROM) + is_flexible
    before = len(empty) - behind - (1 if is_flexible else 4)
    count = _varint(len(topics) + 1) if is_flexible else struct.pack(">i", len(topics))
    return b"".join((empty[:before], count, *topics, empty[len(empty) - behind :]))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


@cache
def _topic_schema(version: int) -> Any:
    schema = load_response_schema(METADATA_KEY, version)
    return get_args(get_type_hints(schema)["topics"])[0]

"""Assembles Metadata responses from separately encoded topics.

Encoding takes about 10 µs a partition, and one change of one partition outdates every earlier
response. So a topic's bytes are kept while its records are the same objects, and a response is
joined from the bytes before the topics, the topics, and the bytes after them. A topic is joined
from its partitions in the same way: encoding one of ten thousand takes a tenth of a second, which
would block the event loop.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from kio.index import load_response_schema
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.records import Broker, Partition, Topic
from tidelog_core.wire_messages import write_message

METADATA_KEY = 3
FLEXIBLE_FROM = 9
ERROR_CODE_FROM = 13
CLUSTER_OPERATIONS = range(8, 11)  # the versions that have them
TOPIC_OPERATIONS_FROM = 8
PIECES_SIZE_BYTES_MAX = 32 * 1024 * 1024
CACHED_RESPONSES_SIZE_BYTES_MAX = 32 * 1024 * 1024

# Determines an encoded response, besides the image: the API version, the listener, the flags for
# authorized operations, the topics by name (None is all topics), and the client's zone.
CacheKey = tuple[int, str, bool, bool, tuple[str, ...] | None, str]


class Encoded(NamedTuple):
    """A response, or a topic of one, with the errors of its partitions."""

    data: bytes
    error_counts: Mapping[ErrorCode, int]


class _Piece(NamedTuple):
    """A topic's bytes, and the very objects that they encode."""

    topic: Topic
    partitions: tuple[Partition, ...]
    brokers: Mapping[int, Broker]
    encoded: Encoded


class EncodedTopics:
    """Encoded topics by name, API version, whether they have operations, and zone; bounded."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, int, bool, str], _Piece] = {}
        self._size_bytes = 0

    async def get(  # noqa: PLR0917
        self,
        image: ClusterImage,
        brokers: Mapping[int, Broker],
        name: str,
        version: int,
        has_operations: bool,
        encode: Callable[[Topic], Awaitable[Encoded]],
        *,
        zone: str = "",
    ) -> Encoded:
        """Return the topic of the image, from ``encode`` or from an earlier call.

        ``zone`` is the client's, if its answer has other leaders.
        """
        topic, partitions = image.topics[name], image.partitions(name)
        key = (name, version, has_operations, zone)
        known = self._pieces.get(key)
        if (
            known is not None
            and known.topic is topic
            and known.partitions is partitions
            and known.brokers is brokers
        ):
            return known.encoded
        encoded = await encode(topic)
        known = self._pieces.get(key)  # Another request may have encoded it since.
        size_bytes = len(encoded.data)
        self._size_bytes += size_bytes - (0 if known is None else len(known.encoded.data))
        if self._size_bytes > PIECES_SIZE_BYTES_MAX:
            self._pieces, self._size_bytes = {}, size_bytes
        self._pieces[key] = _Piece(topic, partitions, brokers, encoded)
        return encoded


def encode_topic(topic: object, version: int) -> bytes:
    """Return a topic encoded as an element of a response of this version."""
    return write_message(_topic_schema(version), topic)


def encode_partition(partition: object, version: int) -> bytes:
    """Return a partition encoded as an element of a topic in a response of this version."""
    return write_message(_partition_schema(version), partition)


def join_partitions(empty: bytes, partitions: Sequence[bytes], version: int) -> bytes:
    """Return ``empty``, a topic encoded without partitions, with these partitions."""
    behind = 4 * (version >= TOPIC_OPERATIONS_FROM)
    return _with_elements(empty, partitions, behind, is_flexible=version >= FLEXIBLE_FROM)


def join_topics(empty: bytes, topics: Sequence[bytes], version: int) -> bytes:
    """Return ``empty``, a response encoded without topics, with these topics."""
    behind = 4 * (version in CLUSTER_OPERATIONS) + 2 * (version >= ERROR_CODE_FROM)
    return _with_elements(empty, topics, behind, is_flexible=version >= FLEXIBLE_FROM)


def _with_elements(
    empty: bytes, elements: Sequence[bytes], behind: int, *, is_flexible: bool
) -> bytes:
    """Return the structure with the elements in its last array, which is empty.

    ``behind`` is the size in bytes of the fields after that array, without tagged fields.
    """
    behind += is_flexible  # no tagged fields
    before = len(empty) - behind - (1 if is_flexible else 4)
    count = _varint(len(elements) + 1) if is_flexible else struct.pack(">i", len(elements))
    return b"".join((empty[:before], count, *elements, empty[len(empty) - behind :]))


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


@cache
def _partition_schema(version: int) -> Any:
    return get_args(get_type_hints(_topic_schema(version))["partitions"])[0]


class EncodedResponses:
    """Encoded responses of one image and its live brokers, forgotten with either.

    They are also forgotten when they exceed ``CACHED_RESPONSES_SIZE_BYTES_MAX``.
    """

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._brokers: Mapping[int, Broker] = {}
        self._encoded: dict[CacheKey, Encoded] = {}
        self._size_bytes = 0

    def get(
        self, image: ClusterImage, brokers: Mapping[int, Broker], key: CacheKey
    ) -> Encoded | None:
        """Return the response if it is known."""
        is_same = image is self._image and brokers is self._brokers
        return self._encoded.get(key) if is_same else None

    def put(
        self, image: ClusterImage, brokers: Mapping[int, Broker], key: CacheKey, encoded: Encoded
    ) -> None:
        """Keep a response of this image."""
        size_bytes = len(encoded.data)
        is_full = self._size_bytes + size_bytes > CACHED_RESPONSES_SIZE_BYTES_MAX
        if image is not self._image or brokers is not self._brokers or is_full:
            self._image, self._brokers = image, brokers
            self._encoded, self._size_bytes = {}, 0
        self._encoded[key] = encoded
        self._size_bytes += size_bytes

"""Assembles Metadata responses from separately encoded topics.

Encoding takes about 10 µs a partition, and one change of one partition outdates every earlier
response. So a topic's bytes are kept while its records are the same objects, and a response is
joined from the bytes before the topics, the topics, and the bytes after them. A topic is joined
from its partitions in the same way: encoding one of ten thousand takes a tenth of a second, which
would block the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from kio.index import load_response_schema
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Broker, Partition, Topic
from tidelog_core.wire_messages import write_message

from tidelog_node.wire.primitives import array_length

FLEXIBLE_FROM = 9
ERROR_CODE_FROM = 13
CLUSTER_OPERATIONS = range(8, 11)  # the versions that have them
TOPIC_OPERATIONS_FROM = 8
PIECES_SIZE_BYTES_MAX = 32 * 1024 * 1024
CACHED_RESPONSES_SIZE_BYTES_MAX = 32 * 1024 * 1024


class ResponseKey(NamedTuple):
    """The request and the client of a response: with the image they determine its bytes."""

    version: int
    listener: str
    has_topic_operations: bool
    has_cluster_operations: bool
    topics: tuple[str, ...] | None  # by name; ``None``: all topics
    zone: str  # of the client


class TopicKey(NamedTuple):
    """The values that, with the image, determine the bytes of one topic of a response."""

    name: str
    version: int
    has_operations: bool
    zone: str  # of the client, if leaders of its zone are shown to it; else ""


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
    """The topics that were encoded last; bounded by ``PIECES_SIZE_BYTES_MAX``."""

    def __init__(self) -> None:
        self._pieces: dict[TopicKey, _Piece] = {}
        self._size_bytes = 0

    async def get(
        self,
        image: ClusterImage,
        brokers: Mapping[int, Broker],
        key: TopicKey,
        encode: Callable[[Topic], Awaitable[Encoded]],
    ) -> Encoded:
        """Return the topic of the image, from ``encode`` or from an earlier call."""
        topic, partitions = image.topics[key.name], image.partitions(key.name)
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
    tail_size_bytes = 4 * (version >= TOPIC_OPERATIONS_FROM)
    return _with_elements(empty, partitions, tail_size_bytes, is_flexible=version >= FLEXIBLE_FROM)


def join_topics(empty: bytes, topics: Sequence[bytes], version: int) -> bytes:
    """Return ``empty``, a response encoded without topics, with these topics."""
    tail_size_bytes = 4 * (version in CLUSTER_OPERATIONS) + 2 * (version >= ERROR_CODE_FROM)
    return _with_elements(empty, topics, tail_size_bytes, is_flexible=version >= FLEXIBLE_FROM)


def _with_elements(
    empty: bytes, elements: Sequence[bytes], tail_size_bytes: int, *, is_flexible: bool
) -> bytes:
    """Return the structure with the elements in its last array, which is empty.

    ``tail_size_bytes`` is the size of the fields after that array, without tagged fields.
    """
    array_end = len(empty) - tail_size_bytes - is_flexible  # the byte: there are no tagged fields
    array_start = array_end - len(array_length(0, is_flexible=is_flexible))
    length = array_length(len(elements), is_flexible=is_flexible)
    return b"".join((empty[:array_start], length, *elements, empty[array_end:]))


@cache
def _topic_schema(version: int) -> Any:
    schema = load_response_schema(ApiKey.METADATA, version)
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
        self._encoded: dict[ResponseKey, Encoded] = {}
        self._size_bytes = 0

    def get(
        self, image: ClusterImage, brokers: Mapping[int, Broker], key: ResponseKey
    ) -> Encoded | None:
        """Return the response if it is known."""
        is_same = image is self._image and brokers is self._brokers
        return self._encoded.get(key) if is_same else None

    def put(
        self, image: ClusterImage, brokers: Mapping[int, Broker], key: ResponseKey, encoded: Encoded
    ) -> None:
        """Keep a response of this image."""
        size_bytes = len(encoded.data)
        is_full = self._size_bytes + size_bytes > CACHED_RESPONSES_SIZE_BYTES_MAX
        if image is not self._image or brokers is not self._brokers or is_full:
            self._image, self._brokers = image, brokers
            self._encoded, self._size_bytes = {}, 0
        self._encoded[key] = encoded
        self._size_bytes += size_bytes

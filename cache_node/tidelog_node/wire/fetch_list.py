"""An encoded list of partitions, grouped by topic, that may begin with any of its partitions.

A consumer without a fetch session names all of its partitions in every request, and every response
holds all of them. A partition has a fixed size in a request, and also in a response if it has no
records, so both lists have the same layout:

    [topic name (13+: id), number of partitions, [partition], 12+ tagged fields: 0]

librdkafka keeps its partitions in a ring and begins each request with the next one. If that
partition is in the middle of a topic, the list names the topic twice: first with the partition and
those after it, at the end with those before it. A list of a single topic names it once.
``ListLayout.pieces`` composes such a list from bytes of the kept list. ``find_changes`` compares it
without parsing it: an unchanged partition costs only a comparison of bytes.

Source: FetchRequest.json and FetchResponse.json; librdkafka's ``rd_kafka_broker_fetch_toppars``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from tidelog_node.wire.fetch import (
    FLEXIBLE_FROM,
    SESSIONS_FROM,
    TOPIC_ID_FROM,
    write_count,
    write_topic_head,
)
from tidelog_node.wire.fetch_answer import FetchAnswer, FetchResult
from tidelog_node.wire.primitives import (
    INT32,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
)

RACK_FROM = 11
INDEX_SIZE_BYTES = 4  # of a partition's index, its first field
# Finding more takes as long as parsing the list, and the request has not waited for its turn.
CHANGES_MAX = 500


class Piece(NamedTuple):
    """The bytes ``before``, then ``[start, end)`` of the kept list."""

    before: bytes
    start: int
    end: int


class ListLayout:
    """The position of each partition in a list. A *place* is a 0-based index in the kept list."""

    __slots__ = (
        "_counts",
        "_end_of_topic",
        "_entry_starts",
        "_firsts",
        "_names",
        "_starts",
        "_version",
        "entry_size_bytes",
        "size_bytes",
    )

    def __init__(
        self, version: int, topics: Sequence[tuple[bytes, int]], entry_size_bytes: int
    ) -> None:
        """``topics``: name or id, and partition count. At least one topic; no count is 0."""
        self._version = version
        self._names = [name for name, _ in topics]
        self._counts = [count for _, count in topics]
        self._end_of_topic = b"\x00" if version >= FLEXIBLE_FROM else b""
        self._firsts: list[int] = []  # the place of each topic's first partition
        self._starts: list[int] = []  # of each topic, in bytes
        self._entry_starts: list[int] = []  # of its partitions
        self.entry_size_bytes = entry_size_bytes
        place = position = 0
        for name, count in topics:
            self._firsts.append(place)
            self._starts.append(position)
            position += len(self._head(name, count))
            self._entry_starts.append(position)
            position += count * entry_size_bytes + len(self._end_of_topic)
            place += count
        self.size_bytes = position

    def empty_list(self) -> bytearray:
        """Return the list with every partition's bytes set to zero."""
        out = bytearray()
        for name, count in zip(self._names, self._counts, strict=True):
            out += self._head(name, count)
            out += bytes(count * self.entry_size_bytes)
            out += self._end_of_topic
        return out

    def position(self, place: int) -> int:
        """Return the position in the kept list at which the partition's bytes begin."""
        topic = bisect_right(self._firsts, place) - 1
        return self._entry_starts[topic] + (place - self._firsts[topic]) * self.entry_size_bytes

    def place_at(self, position: int) -> int:
        """Return the place of the partition that holds this byte, -1 if it is between topics."""
        topic = bisect_right(self._starts, position) - 1
        place = (position - self._entry_starts[topic]) // self.entry_size_bytes
        if not 0 <= place < self._counts[topic]:
            return -1
        return self._firsts[topic] + place

    def topic_count(self, first: int) -> int:
        """Return the topic count of the list that begins with the partition at place ``first``."""
        topics = len(self._names)
        is_split = topics > 1 and self._firsts[bisect_right(self._firsts, first) - 1] != first
        return topics + is_split

    def pieces(self, first: int) -> list[Piece]:
        """Return the pieces of the list that begins with the partition at place ``first``."""
        topic = bisect_right(self._firsts, first) - 1
        start, entry_start = self._starts[topic], self._entry_starts[topic]
        before = first - self._firsts[topic]  # partitions of the same topic
        if before == 0:
            if start == 0:
                return [Piece(b"", 0, self.size_bytes)]
            return [Piece(b"", start, self.size_bytes), Piece(b"", 0, start)]
        name, count = self._names[topic], self._counts[topic]
        position = entry_start + before * self.entry_size_bytes
        if len(self._names) == 1:
            entries_end = entry_start + count * self.entry_size_bytes
            return [
                Piece(self._head(name, count), position, entries_end),
                Piece(b"", entry_start, position),
                Piece(self._end_of_topic, 0, 0),
            ]
        return [
            Piece(self._head(name, count - before), position, self.size_bytes),
            Piece(b"", 0, start),
            Piece(self._head(name, before), entry_start, position),
            Piece(self._end_of_topic, 0, 0),
        ]

    def _head(self, name: bytes, count: int) -> bytes:
        out = bytearray()
        write_topic_head(out, self._version, name, count)
        return bytes(out)


def end_of_request(version: int) -> bytes:
    """Return the end of a request that forgets nothing and has no rack and no tagged fields."""
    if version >= FLEXIBLE_FROM:
        return b"\x01\x01\x00"
    if version >= RACK_FROM:
        return b"\x00\x00\x00\x00\x00\x00"
    return b"\x00\x00\x00\x00" if version >= SESSIONS_FROM else b""


def first_named(version: int, sent: bytes) -> tuple[bytes, int]:
    """Return the topic and index of a request's first partition.

    ``sent`` is the request from its topics on. Raises one of ``PARSE_ERRORS``.
    """
    data = memoryview(sent)
    if version >= FLEXIBLE_FROM:
        _, position = read_compact_array_length(data, 0)
        if version >= TOPIC_ID_FROM:
            name, position = sent[position : position + 16], position + 16
        else:
            name, position = read_compact_string(data, position)
        _, position = read_compact_array_length(data, position)
    else:
        _, position = read_array_length(data, 0)
        name, position = read_string(data, position)
        _, position = read_array_length(data, position)
    (index,) = INT32.unpack_from(data, position)
    return name, index


def find_changes(
    version: int, layout: ListLayout, kept: bytearray, sent: bytes, first: int
) -> list[tuple[int, bytes]] | None:
    """Return the partitions whose bytes differ from the kept list: places and new bytes.

    ``sent`` is a request from its topics on; it begins with the partition at place ``first``.
    ``None``: the partitions or their order differ, there are tagged fields, the rest of the
    request is not ``end_of_request``, or more than ``CHANGES_MAX`` partitions have changed.
    """
    found: list[tuple[int, bytes]] = []
    count = bytearray()
    write_count(count, version, layout.topic_count(first))
    if not sent.startswith(count):
        return None
    at = len(count)  # in ``sent``
    for before, start, end in layout.pieces(first):
        if not sent.startswith(before, at):
            return None
        at += len(before)
        shift = at - start
        position = start
        while True:
            position = _difference(kept, sent, position, end, shift)
            if position == end:
                break
            change = _changed_entry(version, layout, sent, position, shift)
            if change is None or len(found) == CHANGES_MAX:
                return None
            found.append(change)
            position = layout.position(change[0]) + layout.entry_size_bytes
        at = shift + end
    return found if sent[at:] == end_of_request(version) else None


def _changed_entry(
    version: int, layout: ListLayout, sent: bytes, position: int, shift: int
) -> tuple[int, bytes] | None:
    """Return the place and new bytes of the partition that differs at this position.

    ``None``: the difference is outside a partition or in its index, its bytes are cut off, or
    it has tagged fields.
    """
    place = layout.place_at(position)
    if place < 0:
        return None
    start, size_bytes = layout.position(place), layout.entry_size_bytes
    entry = sent[start + shift : start + shift + size_bytes]
    if position - start < INDEX_SIZE_BYTES or len(entry) < size_bytes:
        return None
    has_tagged_fields = version >= FLEXIBLE_FROM and entry[-1] != 0
    return None if has_tagged_fields else (place, entry)


def _difference(kept: bytearray, sent: bytes, start: int, end: int, shift: int) -> int:
    """Return the first position in ``[start, end)`` at which the bytes differ, or the end.

    Compares runs that double in size until one differs, then halves of that run. So the cost
    grows with the distance to the difference, not with the length of the list.
    """
    size = 64
    while start < end:
        stop = min(start + size, end)
        if kept[start:stop] != sent[start + shift : stop + shift]:
            break
        start = stop
        size *= 2
    else:
        return end
    while stop - start > 1:
        middle = (start + stop) // 2
        if kept[start:middle] == sent[start + shift : middle + shift]:
            start = middle
        else:
            stop = middle
    return start


def write_list(
    answer: FetchAnswer,
    layout: ListLayout,
    kept: bytearray,
    first: int,
    found: Sequence[tuple[int, FetchResult]],
) -> None:
    """Append the kept list with the results of ``found`` in place of the kept ones.

    It begins with the partition at place ``first``; ``found`` is in the order of that list.
    Raises ``OSError``.
    """
    answer.write_topic_count(layout.topic_count(first))
    positions = [layout.position(place) for place, _ in found]
    i = 0
    for before, start, end in layout.pieces(first):
        answer.write(before)
        at = start
        while i < len(positions) and at <= positions[i] < end:
            answer.write(kept[at : positions[i]])
            answer.write_result(found[i][1])
            at = positions[i] + layout.entry_size_bytes
            i += 1
        answer.write(kept[at:end])
    assert i == len(positions)

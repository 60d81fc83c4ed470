"""A consumer without fetch session, as librdkafka is one: a ring of partitions, all in every fetch.

Each request begins with the next partition of the ring. Its answers are held against the judge's:
the same bytes, read in full by the same handler.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

from tidelog_node.answers import PendingReply, Reply
from tidelog_node.handlers.fetch.fetch_lists import FullList
from tidelog_node.handlers.fetch.full_fetch import FullFetch
from tidelog_node.wire.fetch import FetchPartition, FetchRequest, parse_fetch

from tests.node.fetching.session_world import FetchWorld, Key
from tests.support.request_contexts import a_session, context_of

CORRELATION_ID = 7
_ports = iter(range(10_000, 1 << 30))


class RingClient:
    """One connection and its ring."""

    def __init__(self, world: FetchWorld, version: int, *, isolation: int = 0) -> None:
        self.world = world
        self.version = version
        self.by_id = version >= 13
        self.isolation = isolation
        self.session = a_session(next(_ports))
        self.ring: list[Key] = []
        self.first = 0
        self.offsets: dict[Key, int] = {}
        self.epochs: dict[Key, int] = {}
        self.rack = b""

    def add(self, name: str, count: int) -> None:
        """Have the partitions of a topic, from offset 0 on."""
        for index in range(count):
            key = self.world.key(name, index, by_id=self.by_id)
            self.ring.append(key)
            self.offsets[key] = 0

    def frame(self, **limits: int) -> memoryview:
        """Return the next request, from its body on."""
        self.first %= max(len(self.ring), 1)
        order = self.ring[self.first :] + self.ring[: self.first]
        self.first += 1
        topics: list[tuple[bytes, list[tuple[int, int, int]]]] = []
        for key in order:
            if not topics or topics[-1][0] != key[0]:
                topics.append((key[0], []))
            topics[-1][1].append((key[1], self.epochs.get(key, -1), self.offsets[key]))
        body = fetch_body(self.version, topics, self.isolation, self.rack, **limits)
        return memoryview(bytearray(body))

    def send(self, frame: memoryview) -> Any:
        """Have the node handle the request as its dispatch does; return what it returns."""
        handler = self.world.handler
        request: FetchRequest | None = handler.lists.recall(frame, 0, self.version, self.session)
        if request is None:
            request = parse_fetch(frame, 0, self.version)
        return handler.handle(
            request, context_of(self.version, correlation_id=CORRELATION_ID, session=self.session)
        )

    def judged(self, frame: memoryview) -> tuple[bytes, bool]:
        """Return the answer of a request that is read in full now, and whether it must not wait."""
        return self._read_in_full(parse_fetch(frame, 0, self.version))

    def may_wait(self, frame: memoryview) -> bool:
        """Return whether a request that waits may go on waiting.

        It is not answered because the log start has passed its offset, by a deletion of records of
        an open transaction: it reads again when its time is up (``_LongPoll.on_change``).
        """
        request = parse_fetch(frame, 0, self.version)
        left = [
            (name, [one for one in partitions if not self._is_deleted(name, one)])
            for name, partitions in request.topics
        ]
        _, is_due = self._read_in_full(dataclasses.replace(request, topics=left))
        return not is_due

    def _is_deleted(self, name: bytes, wanted: FetchPartition) -> bool:
        led = self.world.handler.serving.reader.led(has_ids=self.by_id).get(name, {})
        replica = led.get(wanted.partition)
        if replica is None or replica.is_in_trouble:
            return False
        return wanted.offset < replica.log.log_start_offset

    def _read_in_full(self, request: FetchRequest) -> tuple[bytes, bool]:
        serving = self.world.handler.serving
        context = context_of(self.version, correlation_id=CORRELATION_ID)
        served = FullFetch(serving, request, context, opens_session=False)
        reading = served.read(is_new=False)
        is_due = reading.must_answer or reading.size_bytes >= request.min_bytes
        return answer_bytes(served.reply(reading)), is_due

    def fetch(self, **limits: int) -> bytes:
        """Send the next request, and return its answer, which is at once and the judge's."""
        frame = self.frame(**limits)
        expected, _ = self.judged(frame)
        reply = self.send(frame)
        assert isinstance(reply, list), reply
        assert answer_bytes(reply) == expected
        return expected

    def wait(self, **limits: int) -> PendingReply:
        """Send the next request, which finds nothing and waits."""
        reply = self.send(self.frame(max_wait_ms=60_000, **limits))
        assert isinstance(reply, PendingReply)
        return reply

    @property
    def kept(self) -> FullList | None:
        """The list that the node keeps of the connection."""
        kept = self.world.handler.lists._kept.get(self.session)
        return None if kept is None else kept.listed


def fetch_body(
    version: int,
    topics: list[tuple[bytes, list[tuple[int, int, int]]]],
    isolation: int = 0,
    rack: bytes = b"",
    *,
    max_bytes: int = 1 << 24,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
) -> bytes:
    """Return the body of a request without session: index, leader epoch, offset of partitions."""
    parts = [b"" if version >= 15 else struct.pack(">i", -1)]
    parts.append(struct.pack(">iiib", max_wait_ms, min_bytes, max_bytes, isolation))
    if version >= 7:
        parts.append(struct.pack(">ii", 0, -1))
    parts.append(_count(version, len(topics)))
    for name, partitions in topics:
        if version >= 13:
            parts.append(name)
        elif version >= 12:
            parts.append(bytes([len(name) + 1]) + name)
        else:
            parts.append(struct.pack(">h", len(name)) + name)
        parts.append(_count(version, len(partitions)))
        parts += [_entry(version, *partition) for partition in partitions]
        parts.append(b"\x00" if version >= 12 else b"")
    if version >= 7:
        parts.append(_count(version, 0))
    if version >= 12:
        parts.append(bytes([len(rack) + 1]) + rack + b"\x00")
    elif version >= 11:
        parts.append(struct.pack(">h", len(rack)) + rack)
    return b"".join(parts)


def _count(version: int, count: int) -> bytes:
    if version < 12:
        return struct.pack(">i", count)
    count += 1
    return bytes([count]) if count < 128 else bytes([count & 127 | 128, count >> 7])


def _entry(version: int, index: int, leader_epoch: int, offset: int) -> bytes:
    if version >= 12:
        return struct.pack(">iiqiqib", index, leader_epoch, offset, -1, -1, 1 << 20, 0)
    if version >= 9:
        return struct.pack(">iiqqi", index, leader_epoch, offset, -1, 1 << 20)
    if version >= 5:
        return struct.pack(">iqqi", index, offset, -1, 1 << 20)
    return struct.pack(">iqi", index, offset, 1 << 20)


def answer_bytes(reply: Reply) -> bytes:
    """Return all of an answer, with what is in files."""
    out = b""
    for segment in reply:
        if isinstance(segment, bytes | bytearray | memoryview):
            out += segment
        else:
            with segment.file.path.open("rb") as file:
                file.seek(segment.position)
                out += file.read(segment.size_bytes)
    return out

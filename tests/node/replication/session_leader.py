"""A leader in this process that keeps fetch sessions by Kafka's rules, to see what it is asked.

It looks at every partition of a session for each answer: it is a model, and not quick. What it
holds it answers when there is news, when another fetch has come, or when the time is up.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from kio.schema.fetch.v15.request import FetchRequest
from kio.serial import entity_reader
from tidelog_core.errors import ErrorCode
from tidelog_core.records.header import patch
from tidelog_node.follower.wire import CLIENT_ID
from tidelog_node.wire.primitives import write_uvarint

from tests.node.replication.led_node import LedNode
from tests.node.replication.scripted_leader import listening_as_broker_2
from tests.support.batches import batch_of

BODY_AT = 8 + 2 + len(CLIENT_ID) + 1
NO_ID = (0).to_bytes(16)

Key = tuple[bytes, int]


@dataclass
class LedLog:
    """What the leader has of one partition."""

    batches: list[bytes] = field(default_factory=list)  # one record each
    high_watermark: int = 0
    log_start_offset: int = 0
    error: ErrorCode = ErrorCode.none


@dataclass
class Kept:
    """A session."""

    epoch: int = 1
    offsets: dict[Key, int] = field(default_factory=dict)
    heard: dict[Key, tuple[int, int]] = field(default_factory=dict)  # as last answered


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    session_id: int
    session_epoch: int
    named: dict[int, int]  # offsets by partition
    forgotten: list[int]
    max_wait_ms: int
    replica_epoch: int


class SessionLeader:
    """Leads the partitions of one topic."""

    def __init__(self) -> None:
        self.topic_id = NO_ID
        self.logs: dict[int, LedLog] = {}
        self.sessions: dict[int, Kept] = {}
        self.slots = 1
        self.seen: list[Seen] = []
        self.answered: list[list[int]] = []  # the partitions of each answer
        self.connection_count = 0
        self.sent_count = 0  # records
        self.answers_to_lose = 0
        self.is_silent = False  # every connection ends instead of an answer
        self.refused_count = 0
        self.next_error = ErrorCode.none  # of the next answer, instead of it
        self.is_hasty = False  # it holds no fetch
        self.names_all = False  # with each answer, also partitions without news
        self.may_close = asyncio.Event()  # a session without partitions; until then it waits
        self.may_close.set()
        self._last_id = 0
        self._news: list[asyncio.Event] = []

    def append(self, partition: int, value: bytes, *, is_committed: bool = True) -> None:
        """Append a record."""
        log = self.logs.setdefault(partition, LedLog())
        batch = bytearray(batch_of(value))
        patch(batch, 0, base_offset=len(log.batches), leader_epoch=0)
        log.batches.append(bytes(batch))
        if is_committed:
            log.high_watermark = len(log.batches)
        self.stir()

    def stir(self) -> None:
        """Let the held fetches look whether there is news."""
        for event in self._news:
            event.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's fetches in order."""
        self.connection_count += 1
        frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        stir = asyncio.Event()
        self._news.append(stir)

        async def receive() -> None:
            try:
                while True:
                    (size_bytes,) = struct.unpack(">i", await reader.readexactly(4))
                    frames.put_nowait(await reader.readexactly(size_bytes))
                    stir.set()
            except (asyncio.IncompleteReadError, ConnectionError):
                frames.put_nowait(None)
                stir.set()

        receiving = asyncio.create_task(receive())
        try:
            while (frame := await frames.get()) is not None:
                answer = await self._answer(frame, frames, stir)
                if self.is_silent:
                    self.refused_count += 1
                    break
                if self.answers_to_lose:
                    self.answers_to_lose -= 1
                    break
                writer.write(struct.pack(">i", len(answer)) + answer)
        finally:
            self._news.remove(stir)
            receiving.cancel()
            writer.close()

    async def _answer(
        self, frame: bytes, frames: asyncio.Queue[bytes | None], stir: asyncio.Event
    ) -> bytes:
        (correlation_id,) = struct.unpack_from(">i", frame, 4)
        request, _ = entity_reader(FetchRequest)(memoryview(frame), BODY_AT)
        self.seen.append(_seen(request))
        if self.next_error is not ErrorCode.none:
            error, self.next_error = self.next_error, ErrorCode.none
            return _encode(correlation_id, error, 0, NO_ID, [])
        named = {
            (topic.topic_id.bytes, int(one.partition)): int(one.fetch_offset)
            for topic in request.topics
            for one in topic.partitions
        }
        session_id, kept = int(request.session_id), Kept(offsets=named)
        if request.session_epoch > 0:
            found = self.sessions.get(session_id)
            if found is None or found.epoch != request.session_epoch:
                error = ErrorCode.invalid_fetch_session_epoch
                if found is None:
                    error = ErrorCode.fetch_session_id_not_found
                return _encode(correlation_id, error, 0, NO_ID, [])
            kept = found
            kept.epoch += 1
            kept.offsets.update(named)
            _forget(kept, request)
            if not kept.offsets:
                await self.may_close.wait()
                del self.sessions[session_id]
                self.answered.append([])
                return _encode(correlation_id, ErrorCode.none, 0, NO_ID, [])
        else:
            self.sessions.pop(session_id, None)
            session_id = 0
            if request.session_epoch == 0 and len(self.sessions) < self.slots:
                self._last_id += 1
                session_id = self._last_id
                self.sessions[session_id] = kept
        deadline = asyncio.get_running_loop().time() + request.max_wait.total_seconds()
        while True:
            stir.clear()
            results = self._results(kept, is_full=request.session_epoch <= 0 or self.names_all)
            has_news = any(result[-1] or result[1] for result in results)
            left = deadline - asyncio.get_running_loop().time()
            if has_news or left <= 0 or self.is_hasty or not frames.empty():
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(stir.wait(), left)
        for index, _, high_watermark, log_start_offset, records in results:
            if records:
                offset = kept.offsets[self.topic_id, index]
                self.sent_count += len(self.logs[index].batches) - offset
            kept.heard[self.topic_id, index] = (high_watermark, log_start_offset)
        self.answered.append([result[0] for result in results])
        return _encode(correlation_id, ErrorCode.none, session_id, self.topic_id, results)

    def _results(self, kept: Kept, *, is_full: bool) -> list[tuple[int, int, int, int, bytes]]:
        results = []
        for key, offset in kept.offsets.items():
            log = self.logs.get(key[1], LedLog())
            records = b"".join(log.batches[offset:])
            marks = (log.high_watermark, log.log_start_offset)
            if key[0] != self.topic_id or log.error is not ErrorCode.none:
                code = int(log.error or ErrorCode.unknown_topic_id)
                results.append((key[1], code, -1, -1, b""))
            elif is_full or records or kept.heard.get(key) != marks:
                results.append((key[1], 0, *marks, records))
        return results


def _forget(kept: Kept, request: Any) -> None:
    for topic in request.forgotten_topics_data:
        for partition in topic.partitions:
            del kept.offsets[topic.topic_id.bytes, int(partition)]
            kept.heard.pop((topic.topic_id.bytes, int(partition)), None)


def _seen(request: Any) -> Seen:
    return Seen(
        int(request.session_id),
        int(request.session_epoch),
        {
            int(one.partition): int(one.fetch_offset)
            for topic in request.topics
            for one in topic.partitions
        },
        [int(one) for topic in request.forgotten_topics_data for one in topic.partitions],
        round(request.max_wait.total_seconds() * 1000),
        int(request.replica_state.replica_epoch),
    )


def _encode(
    correlation_id: int,
    error: ErrorCode,
    session_id: int,
    topic_id: bytes,
    results: list[tuple[int, int, int, int, bytes]],
) -> bytes:
    out = bytearray(struct.pack(">iBihi", correlation_id, 0, 0, error, session_id))
    write_uvarint(out, (1 if results else 0) + 1)
    if results:
        out += topic_id
        write_uvarint(out, len(results) + 1)
        for index, code, high_watermark, log_start_offset, records in results:
            out += struct.pack(
                ">ihqqqBi", index, code, high_watermark, high_watermark, log_start_offset, 1, -1
            )
            write_uvarint(out, len(records) + 1)
            out += records + b"\0"
        out.append(0)
    out.append(0)
    return bytes(out)


@asynccontextmanager
async def session_leader(node: LedNode) -> AsyncIterator[SessionLeader]:
    """Listen as broker 2 of the node's cluster."""
    leader = SessionLeader()
    async with listening_as_broker_2(node, leader.serve):
        yield leader

"""One log over real files, the tier worker and its cache, while segments move to the tier and go."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from random import Random

import pytest
from tidelog_core.errors import OffsetOutOfRange
from tidelog_core.log.unified_log import RemoteRead
from tidelog_core.records.batch import HEADER_SIZE, iter_headers, parse_header
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.replicas.replica import Replica

from tests.support.tier_node import CONFIG, SETTLE_TIMEOUT_S, TierNode, running_node, slice_bytes
from tests.support.tier_segments import BASE_TIMESTAMP_MS

LOCAL_BYTES = "3000"  # a little more than one segment


async def read_batches(replica: Replica, offset: int, max_bytes: int) -> tuple[bytes, int]:
    """Return what one read gives, whole batches only, and where to read on."""
    log = replica.unified_log
    found = log.read(offset, max_bytes=max_bytes, up_to=log.local.high_watermark)
    if isinstance(found, RemoteRead):
        found = found.found or await found.wait()
    if found.slice is None:
        return b"", offset
    content, end = slice_bytes(found.slice), 0
    while end + HEADER_SIZE <= len(content):
        header = parse_header(content, end)
        if end + header.size_bytes > len(content):
            break
        end, offset = end + header.size_bytes, header.next_offset
    return content[:end], offset


class Readers:
    """Asks one partition all kinds of things and knows the answers from a list of its batches."""

    def __init__(self, node: TierNode, replica: Replica, random: Random) -> None:
        self._node = node
        self._replica = replica
        self._random = random
        self.produced = b""
        self.inspector = BatchInspector()

    def expected_from(self, offset: int) -> bytes:
        """Return the bytes of all batches from the one with the offset on."""
        return b"".join(
            self.produced[position : position + header.size_bytes]
            for position, header in iter_headers(self.produced)
            if header.next_offset > offset
        )

    async def scan(self) -> None:
        """Read from the log start to the end."""
        log, max_bytes = self._replica.log, self._random.randrange(200, 5_000)
        start = offset = log.log_start_offset
        end, scanned = log.high_watermark, b""
        try:
            while offset < end:
                content, offset = await read_batches(self._replica, offset, max_bytes)
                scanned += content
        except OffsetOutOfRange:
            assert offset < log.log_start_offset  # It was deleted meanwhile.
        assert self.expected_from(start).startswith(scanned)

    async def read_somewhere(self) -> None:
        """Read at any offset."""
        log = self._replica.log
        offset = self._random.randrange(log.high_watermark + 1)
        is_there = offset >= log.log_start_offset
        try:
            content, _ = await read_batches(self._replica, offset, self._random.randrange(1, 3_000))
        except OffsetOutOfRange:
            assert offset < log.log_start_offset
            return
        assert is_there
        assert self.expected_from(offset).startswith(content)
        assert content or offset == log.high_watermark

    async def look_up(self) -> None:
        """Ask for offsets by time and by epoch."""
        log, search = self._replica.unified_log, self.inspector.search
        local = log.local
        wanted = self._random.randrange(local.high_watermark)
        start = local.log_start_offset
        found = await log.offset_for_timestamp(BASE_TIMESTAMP_MS + wanted, search)
        assert found is not None
        timestamp_ms, offset = found
        assert timestamp_ms == BASE_TIMESTAMP_MS + offset
        assert max(wanted, start) <= offset <= max(wanted, local.log_start_offset)
        end = local.log_end_offset
        newest = await log.max_timestamp(search)
        assert newest is not None
        assert newest[0] == BASE_TIMESTAMP_MS + newest[1]
        assert end <= newest[1] + 1 <= local.log_end_offset
        assert log.offset_for_leader_epoch(0) == (0, local.log_end_offset)
        assert log.leader_epoch_for(start) == 0


async def run_readers(folder: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    config = dataclasses.replace(CONFIG, remote_chunk_bytes=random.choice((300, 4096)))
    async with running_node(folder, config) as node:
        replica = await node.create_topic(
            configs={"local.retention.bytes": LOCAL_BYTES, "retention.ms": "-1"}
        )
        readers = Readers(node, replica, random)
        questions = (readers.scan, readers.read_somewhere, readers.look_up)
        # As much as stays on the disk, so that each round evicts some.
        readers.produced += b"".join(node.produce_segments(replica, 2))
        for _ in range(rounds):
            readers.produced += b"".join(node.produce_segments(replica, random.randrange(1, 4)))
            readers.produced += node.produce(replica, 2)
            log = replica.log
            if random.random() < 0.4:
                room = log.high_watermark - log.log_start_offset
                log.advance_log_start_offset(log.log_start_offset + random.randrange(room // 3))
            local_start = log.local_log_start_offset
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                while log.local_log_start_offset == local_start:  # until some is evicted
                    await asyncio.gather(*(random.choice(questions)() for _ in range(6)))
                    await asyncio.sleep(0.005)
            assert log.local_log_start_offset > log.log_start_offset
        await asyncio.gather(*(question() for question in questions * 4))
        await readers.inspector.close()


async def test_readers_find_the_produced_batches_while_segments_move(tmp_path: Path) -> None:
    print("seed 1")
    await run_readers(tmp_path, 1, rounds=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 16))
async def test_readers_find_the_produced_batches_for_long(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    await run_readers(tmp_path, seed, rounds=60)

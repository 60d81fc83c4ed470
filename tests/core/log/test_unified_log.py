"""One log over this node's disk and a remote source, against a plain list of its batches.

Segments are copied to the source, evicted, compacted there and deleted while the log is read and
searched: whatever happens, an answer is the list's at some moment between question and answer.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from random import Random

import pytest
from tidelog_core.errors import OffsetOutOfRange
from tidelog_core.log.record_source import ReadLimits, SourceRead, TimestampOffset
from tidelog_core.log.time_search import BatchSearch
from tidelog_core.log.unified_log import RemoteRead, UnifiedLog
from tidelog_core.log.values import LogRead, SealedSegment
from tidelog_core.model import FileSlice
from tidelog_core.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    find_record,
    iter_headers,
    parse_header,
)

from tests.support.batches import batch
from tests.support.clock import NOW_MS
from tests.support.log_building import append, open_log

STEPS = 120
STEPS_SLOW = 1_500
QUESTIONS_MAX = 3  # under way at once
FILES_MAX = 20  # open at once
PAUSES_MAX = 4  # of one question in the source


@dataclass(frozen=True)
class Batch:
    """A batch as it is in the log."""

    header: BatchHeader
    content: bytes
    timestamps: tuple[int, ...]

    def record_at_or_after(self, timestamp_ms: int, offset: int) -> TimestampOffset | None:
        """Return its first record that fits."""
        for delta, found_ms in enumerate(self.timestamps):
            found_offset = self.header.base_offset + delta
            if found_ms >= timestamp_ms and found_offset >= offset:
                return found_ms, found_offset
        return None


class FolderSource:
    """A record source over copies of sealed segments, which takes its time."""

    def __init__(self, folder: Path, random: Random) -> None:
        folder.mkdir()
        self._folder = folder
        self._random = random
        self._segments: dict[int, tuple[int, Path]] = {}  # end offset and file by base offset
        self._files: list[BufferedReader] = []
        self._open: int | None = None  # the offset at which a reader would go on

    async def _pause(self) -> None:
        for _ in range(self._random.randrange(PAUSES_MAX)):
            await asyncio.sleep(0)

    def copy(self, sealed: SealedSegment) -> None:
        """Take a segment in."""
        path = self._folder / sealed.path.name
        path.write_bytes(sealed.path.read_bytes())
        self._segments[sealed.base_offset] = sealed.end_offset, path

    def forget_below(self, offset: int) -> None:
        """Drop the segments wholly below the offset."""
        for base_offset, (end_offset, _) in tuple(self._segments.items()):
            if end_offset <= offset:
                del self._segments[base_offset]

    def drop_batch(self, end_offset: int) -> int | None:
        """Compact one batch away that lies below the offset; return its base offset."""
        batches = [
            (path, position, header)
            for end, path in self._segments.values()
            if end <= end_offset
            for position, header in iter_headers(path.read_bytes())
        ]
        if not batches:
            return None
        path, position, header = self._random.choice(batches)
        content = path.read_bytes()
        # Open files keep what they had, as objects do.
        path.unlink()
        path.write_bytes(content[:position] + content[position + header.size_bytes :])
        self._open = None
        return header.base_offset

    def _locate(self, offset: int) -> tuple[int, Path]:
        bases = sorted(self._segments)
        at = bisect_right(bases, offset) - 1
        if at < 0 or self._segments[bases[at]][0] <= offset:
            raise OffsetOutOfRange(("t", 0), offset, start=0, end=0)  # type: ignore[arg-type]
        return self._segments[bases[at]]

    def _cut(self, offset: int, limits: ReadLimits) -> SourceRead | None:
        end_offset, path = self._locate(offset)
        rows = [
            (position, header)
            for position, header in iter_headers(path.read_bytes())
            if header.next_offset > offset
        ]
        if not rows:
            return self._cut(end_offset, limits) if end_offset in self._segments else None
        first_position, first = rows[0]
        size_bytes = next_offset = 0
        for position, header in rows:
            end = position + header.size_bytes - first_position
            if end > limits.max_bytes and (size_bytes or not limits.min_one_batch):
                break
            size_bytes, next_offset = end, header.next_offset
        if not size_bytes:
            return SourceRead(None, first.base_offset)
        self._open = next_offset if self._random.random() < 0.5 else None
        self._files.append(path.open("rb"))
        if len(self._files) > FILES_MAX:
            self._files.pop(0).close()
        return SourceRead(FileSlice(self._files[-1], first_position, size_bytes), first.base_offset)

    def close(self) -> None:
        """Close the files that were read."""
        for file in self._files:
            file.close()

    def read_open(self, offset: int, limits: ReadLimits) -> SourceRead | None:
        return self._cut(offset, limits) if offset == self._open else None

    async def read(self, offset: int, limits: ReadLimits) -> SourceRead | None:
        await self._pause()
        found = self._cut(offset, limits)
        await self._pause()
        return found

    def _batches(self) -> Iterator[bytes]:
        for base_offset in sorted(self._segments):
            content = self._segments[base_offset][1].read_bytes()
            for position, header in iter_headers(content):
                yield content[position : position + header.size_bytes]

    async def offset_for_timestamp(
        self, timestamp_ms: int, *, start_offset: int
    ) -> TimestampOffset | None:
        await self._pause()
        each = (find_record(one, timestamp_ms, start_offset) for one in self._batches())
        found = next(filter(None, each), None)
        await self._pause()
        return found

    async def max_timestamp(self, *, start_offset: int) -> TimestampOffset | None:
        await self._pause()
        each = (find_record(one, None, start_offset) for one in self._batches())
        found = max(filter(None, each), key=lambda one: (one[0], -one[1]), default=None)
        await self._pause()
        return found


@dataclass
class ModeledLog:
    """A log, its source, and the list of batches that they should be."""

    folder: Path
    random: Random
    batches: list[Batch] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)  # and where each begins
    log_start: int = 0
    changes: int = 0

    def __post_init__(self) -> None:
        self.local = open_log(self.folder / "log", segment_bytes=600)
        self.source = FolderSource(self.folder / "source", self.random)
        self.log = UnifiedLog(self.local, lambda: self.source)

    # -- what happens

    def append(self) -> None:
        random = self.random
        epoch = self.local.leader_epoch if self.epochs else 0
        if random.random() < 0.2:
            epoch += random.randrange(1, 3)
        if not self.epochs or epoch > self.epochs[-1][0]:
            self.epochs.append((epoch, self.local.log_end_offset))
        count = random.randrange(1, 5)
        times = [NOW_MS + random.randrange(500) for _ in range(count)]
        content = batch(count, timestamps=times, value_size_bytes=random.randrange(80))
        append(self.local, content, epoch=epoch)
        ((_, header),) = iter_headers(content)
        self.batches.append(Batch(header, bytes(content), tuple(times)))

    def copy(self) -> None:
        for sealed in self.local.sealed_above(self.local.tiered_up_to):
            self.source.copy(sealed)
            self.local.set_tiered_up_to(sealed.end_offset)
            break

    def evict(self) -> None:
        self.local.evict_local(self.random.randrange(self.local.log_end_offset + 1))

    def delete(self) -> None:
        room = self.local.log_end_offset - self.log_start
        self.log_start += self.random.randrange(room // 4 + 1)
        self.local.advance_log_start_offset(self.log_start)

    def forget(self) -> None:
        self.source.forget_below(self.log_start)

    def compact(self) -> None:
        dropped = self.source.drop_batch(self.local.local_log_start_offset)
        self.batches = [b for b in self.batches if b.header.base_offset != dropped]

    def change(self) -> None:
        """Let anything happen."""
        happens: tuple[Callable[[], None], ...] = (
            *(self.append, self.append, self.append, self.local.roll, self.copy, self.copy),
            *(self.evict, self.evict, self.delete, self.forget, self.compact),
        )
        self.random.choice(happens)()

    # -- what the list says

    def first_at(self, timestamp_ms: int) -> TimestampOffset | None:
        found = (b.record_at_or_after(timestamp_ms, self.log_start) for b in self.batches)
        return next(filter(None, found), None)

    def newest(self, end: int) -> TimestampOffset | None:
        times = [
            time
            for b in self.batches
            for delta, time in enumerate(b.timestamps)
            if self.log_start <= b.header.base_offset + delta < end
        ]
        return self.first_at(max(times)) if times else None

    def run_from(self, offset: int) -> bytes:
        """Return all bytes that a reader gets from the offset on."""
        return b"".join(b.content for b in self.batches if b.header.next_offset > offset)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return what OffsetForLeaderEpoch answers."""
        known = [
            (each, max(start, self.log_start))
            for (each, start), (_, end) in zip(
                self.epochs, [*self.epochs[1:], (0, 2**62)], strict=True
            )
            if end > self.log_start
        ]
        if not known or epoch > known[-1][0] or epoch < 0:
            return -1, -1
        ends = [*(start for _, start in known[1:]), self.local.log_end_offset]
        floor = [(each, end) for (each, _), end in zip(known, ends, strict=True) if each <= epoch]
        return floor[-1] if floor else (epoch, known[0][1])

    async def search(
        self, look: Callable[[BatchSearch], TimestampOffset | None]
    ) -> TimestampOffset | None:
        """Search the local log, before and after others have had their turns."""
        for _ in range(self.random.randrange(PAUSES_MAX)):
            look(find_record)
            await asyncio.sleep(0)
        return look(find_record)


class Question:
    """A question that is under way, and what the list has said since it was asked."""

    def __init__(self, world: ModeledLog) -> None:
        self._world = world
        self.may_be: list[object] = []
        random = world.random
        time = NOW_MS + random.randrange(-5, 510)
        kind = random.randrange(3)
        if kind == 0:
            self._expected: Callable[[], list[object]] = lambda: [world.first_at(time)]
            self.task: asyncio.Task[object] = asyncio.ensure_future(
                world.log.offset_for_timestamp(time, world.search)
            )
        elif kind == 1:
            # Deletions may be seen, and appends of the same time not.
            ends: list[int] = []

            def newest() -> list[object]:
                ends.append(world.local.log_end_offset)
                return [world.newest(end) for end in ends]

            self._expected = newest
            self.task = asyncio.ensure_future(world.log.max_timestamp(world.search))
        else:
            offset = random.randrange(world.local.log_end_offset + 2)
            limits = random.randrange(400), random.random() < 0.7
            self._expected = lambda: [self._run_from(offset)]
            self.task = asyncio.ensure_future(read(world, offset, *limits))
        self.note()

    def note(self) -> None:
        """Take note of what would be right now."""
        self.may_be += [now for now in self._expected() if now not in self.may_be]

    def _run_from(self, offset: int) -> bytes | None:
        world = self._world
        if not world.log_start <= offset <= world.local.log_end_offset:
            return None
        return world.run_from(offset)

    def check(self) -> None:
        """Compare the answer."""
        answer = self.task.result()
        if not isinstance(answer, bytes):
            assert answer in self.may_be
            return
        runs = [run for run in self.may_be if isinstance(run, bytes)]
        assert any(run.startswith(answer) for run in runs)


async def read(world: ModeledLog, offset: int, max_bytes: int, is_whole: bool) -> bytes | None:
    """Return what one read gives, ``None`` where the offset is out of range."""
    try:
        found = world.log.read(
            offset,
            max_bytes=max_bytes,
            up_to=world.local.log_end_offset,
            min_one_batch=is_whole,
        )
        if isinstance(found, RemoteRead):
            found = found.found or await found.wait()
    except OffsetOutOfRange:
        return None
    content = bytes_of(found)
    whole = whole_batches(content)
    if content:
        assert whole, "the first batch is whole"
        assert found.start_offset == whole[0].base_offset
        assert len(content) <= max_bytes or (is_whole and len(whole) == 1)
    return content


def whole_batches(content: bytes) -> list[BatchHeader]:
    """Return the headers of the batches that are not cut."""
    whole, end = [], 0
    while end + HEADER_SIZE <= len(content):
        header = parse_header(content, end)
        end += header.size_bytes
        if end <= len(content):
            whole.append(header)
    return whole


def bytes_of(found: LogRead) -> bytes:
    if found.slice is None:
        return b""
    part = found.slice
    return os.pread(part.file.fileno(), part.size_bytes, part.position)


async def check_at_rest(world: ModeledLog) -> None:
    """Ask everything while nothing changes."""
    end = world.local.log_end_offset
    for offset in {0, world.log_start - 1, end + 1, *range(world.log_start, end + 1, 7)}:
        content = await read(world, offset, 300, True)
        if not world.log_start <= offset <= end:
            assert content is None
            continue
        assert content is not None
        run = world.run_from(offset)
        assert run.startswith(content)
        assert content or not run
    scanned, offset = b"", world.log_start
    while content := await read(world, offset, 200, True):
        whole = whole_batches(content)
        scanned += content[: sum(header.size_bytes for header in whole)]
        offset = whole[-1].next_offset
    assert scanned == world.run_from(world.log_start)
    for time in range(NOW_MS - 5, NOW_MS + 510, 20):
        found = await world.log.offset_for_timestamp(time, world.search)
        assert found == world.first_at(time)
    assert await world.log.max_timestamp(world.search) == world.newest(end)
    for epoch in range(-1, (world.epochs[-1][0] if world.epochs else 0) + 2):
        assert world.log.offset_for_leader_epoch(epoch) == world.epoch_end(epoch)
    for each in world.batches:
        if each.header.base_offset >= world.log_start:
            epoch = each.header.partition_leader_epoch
            assert world.log.leader_epoch_for(each.header.base_offset) == epoch


async def run_history(world: ModeledLog, steps: int) -> None:
    """Change the log at random, with questions under way, and compare every answer."""
    questions: list[Question] = []
    for step in range(steps):
        world.change()
        for question in questions:
            question.note()
        if len(questions) < QUESTIONS_MAX:
            questions.append(Question(world))
        await asyncio.sleep(0)
        for question in questions:
            if question.task.done():
                question.check()
        questions = [question for question in questions if not question.task.done()]
        if step % 40 == 39:
            await check_at_rest(world)
    for question in questions:
        await question.task
        question.check()
    await check_at_rest(world)


def run_seed(folder: Path, seed: int, steps: int) -> None:
    print(f"seed {seed}")
    world = ModeledLog(folder, Random(seed))
    try:
        asyncio.run(run_history(world, steps))
    finally:
        world.source.close()
        world.local.close()


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_a_list_of_records(tmp_path: Path, seed: int) -> None:
    run_seed(tmp_path, seed, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 112))
def test_answers_are_those_of_a_list_of_records_for_long(tmp_path: Path, seed: int) -> None:
    run_seed(tmp_path, seed, STEPS_SLOW)

"""One log over this node's disk and a remote source, against a plain list of its batches.

Segments are copied to the source, evicted, compacted there and deleted while the log is read and
searched, replicated and cut: whatever happens, an answer is the list's at some moment between
question and answer. A reader of committed records leaves out what the answer says was aborted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from enum import Enum, auto
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from tidelog_core.errors import OffsetOutOfRange
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.record_source import ReadLimits, SourceRead, TimestampOffset
from tidelog_core.log.segments.time_search import BatchSearch
from tidelog_core.log.unified_log import RemoteRead, UnifiedLog
from tidelog_core.log.values import AbortedTransaction, LogRead
from tidelog_core.records.batch import HEADER_SIZE, BatchHeader, find_record, parse_header

from tests.core.log.modeled_log import ModeledLog
from tests.support.batches import batch
from tests.support.clock import NOW_MS
from tests.support.local_logs import is_abort_marker
from tests.support.log_building import append, open_log, transact

STEPS = 400
STEPS_SLOW = 1_500
QUESTIONS_MAX = 3  # under way at once


class Reader(Enum):
    """Who reads, which says how far."""

    FOLLOWER = auto()
    UNCOMMITTED = auto()
    COMMITTED = auto()

    def up_to(self, log: ModeledLog) -> int:
        """Return the end of what it may read, by the list."""
        match self:
            case Reader.FOLLOWER:
                return log.log_end
            case Reader.UNCOMMITTED:
                return log.high_watermark
            case Reader.COMMITTED:
                return log.last_stable_offset()


class Answer(NamedTuple):
    """What one read gave."""

    content: bytes
    aborted: frozenset[int]  # the batches that a reader of committed records leaves out


class Run(NamedTuple):
    """What a read might give at one moment."""

    content: bytes
    aborted: frozenset[int]

    def has(self, answer: Answer, reader: Reader) -> bool:
        """Whether the answer is of this moment."""
        if not self.content.startswith(answer.content):
            return False
        bases = {header.base_offset for header in whole_batches(answer.content)}
        return reader is not Reader.COMMITTED or answer.aborted == self.aborted & bases


class Question:
    """A question that is under way, and what the list has said since it was asked."""

    def __init__(self, log: ModeledLog) -> None:
        self._log = log
        self.may_be: list[object] = []
        self.bars_cuts = False
        random = log.random
        time = NOW_MS + random.randrange(-5, 510)
        kind = random.randrange(4)
        if kind == 0:
            self._expected: Callable[[], list[object]] = lambda: [log.first_at(time)]
            self.task: asyncio.Task[object] = asyncio.ensure_future(
                log.log.offset_for_timestamp(time, log.search)
            )
        elif kind == 1:
            # Deletions may be seen, and appends of the same time not. A cut would make the end of
            # one log meet the start of another.
            self.bars_cuts = True
            ends: list[int] = []

            def newest() -> list[object]:
                ends.append(log.log_end)
                return [log.newest(end) for end in ends]

            self._expected = newest
            self.task = asyncio.ensure_future(log.log.max_timestamp(log.search))
        else:
            offset = random.randrange(log.log_end + 2)
            self._reader = random.choice(list(Reader))
            limits = random.randrange(400), random.random() < 0.7
            self._expected = lambda: [self._run_from(offset)]
            self.task = asyncio.ensure_future(read(log, offset, self._reader, *limits))
        self.note()

    def note(self) -> None:
        """Take note of what would be right now."""
        self.may_be += [now for now in self._expected() if now not in self.may_be]

    def _run_from(self, offset: int) -> Run | None:
        log = self._log
        if not log.log_start <= offset <= log.log_end:
            return None
        content = log.run_from(offset, self._reader.up_to(log))
        return Run(content, log.aborted_batches())

    def check(self) -> None:
        """Compare the answer."""
        answer = self.task.result()
        if not isinstance(answer, Answer):
            assert answer in self.may_be
            return
        runs = [run for run in self.may_be if isinstance(run, Run)]
        assert any(run.has(answer, self._reader) for run in runs)


async def read(
    log: ModeledLog, offset: int, reader: Reader, max_bytes: int, is_whole: bool
) -> Answer | None:
    """Return what one read gives, ``None`` where the offset is out of range."""
    try:
        found = log.log.read(
            offset,
            max_bytes=max_bytes,
            up_to=reader.up_to(log),
            min_one_batch=is_whole,
            include_aborted=reader is Reader.COMMITTED,
        )
        if isinstance(found, RemoteRead):
            found = found.found or await found.wait()
    except OffsetOutOfRange:
        return None
    assert found.high_watermark == log.high_watermark
    assert found.last_stable_offset == log.last_stable_offset()
    assert (found.log_start_offset, found.log_end_offset) == (log.log_start, log.log_end)
    content = bytes_of(found)
    whole = whole_batches(content)
    if content:
        assert whole, "the first batch is whole"
        assert found.start_offset == whole[0].base_offset
        assert len(content) <= max_bytes or (is_whole and len(whole) == 1)
    return Answer(content, left_out(content, found.aborted_transactions))


def whole_batches(content: bytes) -> list[BatchHeader]:
    """Return the headers of the batches that are not cut."""
    whole, end = [], 0
    while end + HEADER_SIZE <= len(content):
        header = parse_header(content, end)
        end += header.size_bytes
        if end <= len(content):
            whole.append(header)
    return whole


def left_out(content: bytes, aborted: Iterable[AbortedTransaction]) -> frozenset[int]:
    """Return the batches that Kafka's consumer passes over, by their base offsets."""
    waiting = sorted(aborted, key=lambda one: one.first_offset)
    under_way, passed, position = set[int](), set[int](), 0
    for header in whole_batches(content):
        while waiting and waiting[0].first_offset <= header.last_offset:
            under_way.add(waiting.pop(0).producer_id)
        if header.is_control:
            if is_abort_marker(content, position):
                under_way.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in under_way:
            passed.add(header.base_offset)
        position += header.size_bytes
    return frozenset(passed)


def bytes_of(found: LogRead) -> bytes:
    if found.slice is None:
        return b""
    part = found.slice
    return os.pread(part.file.fileno(), part.size_bytes, part.position)


async def check_at_rest(log: ModeledLog) -> None:
    """Ask everything while nothing changes."""
    end = log.log_end
    for reader in Reader:
        up_to = reader.up_to(log)
        for offset in {0, log.log_start - 1, end + 1, *range(log.log_start, end + 1, 7)}:
            answer = await read(log, offset, reader, 300, True)
            if not log.log_start <= offset <= end:
                assert answer is None
                continue
            assert answer is not None
            run = Run(log.run_from(offset, up_to), log.aborted_batches())
            assert run.has(answer, reader)
            # Behind evicted records nobody is given more than what is replicated.
            assert answer.content or not log.run_from(offset, min(up_to, log.high_watermark))
        await check_scan(log, reader)
    for time in range(NOW_MS - 5, NOW_MS + 510, 20):
        found = await log.log.offset_for_timestamp(time, log.search)
        assert found == log.first_at(time)
    assert await log.log.max_timestamp(log.search) == log.newest(end)
    for epoch in range(-1, (log.epochs[-1][0] if log.epochs else 0) + 2):
        assert log.log.offset_for_leader_epoch(epoch) == log.epoch_end(epoch)
    for each in log.batches:
        if each.header.base_offset >= log.log_start:
            epoch = each.header.partition_leader_epoch
            assert log.log.leader_epoch_for(each.header.base_offset) == epoch


async def check_scan(log: ModeledLog, reader: Reader) -> None:
    """Read all that the reader may, one answer after the other."""
    scanned, offset = b"", log.log_start
    while (answer := await read(log, offset, reader, 200, True)) and answer.content:
        whole = whole_batches(answer.content)
        scanned += answer.content[: sum(header.size_bytes for header in whole)]
        offset = whole[-1].next_offset
    run, up_to = log.run_from(log.log_start, reader.up_to(log)), log.high_watermark
    least = log.run_from(log.log_start, up_to) if reader is Reader.FOLLOWER else run
    assert run.startswith(scanned)
    assert scanned.startswith(least)


async def run_history(log: ModeledLog, steps: int) -> None:
    """Change the log at random, with questions under way, and compare every answer."""
    questions: list[Question] = []
    for step in range(steps):
        log.may_cut = not any(question.bars_cuts for question in questions)
        log.change()
        for question in questions:
            question.note()
        if len(questions) < QUESTIONS_MAX:
            questions.append(Question(log))
        await asyncio.sleep(0)
        for question in questions:
            if question.task.done():
                question.check()
        questions = [question for question in questions if not question.task.done()]
        if step % 40 == 39:
            await check_at_rest(log)
    for question in questions:
        await question.task
        question.check()
    await check_at_rest(log)


def run_seed(folder: Path, seed: int, steps: int) -> None:
    print(f"seed {seed}")
    log = ModeledLog(folder, Random(seed))
    try:
        asyncio.run(run_history(log, steps))
    finally:
        log.source.close()
        log.local.close()


class EmptySource:
    """A source whose last records compaction has removed; something happens while it is asked."""

    def __init__(self, happens: Callable[[], None], newest: TimestampOffset | None = None) -> None:
        self._happens = happens
        self._newest = newest  # the one record of a search, as it was before that

    read_bytes_max = 1 << 31

    def read_open(self, offset: int, limits: ReadLimits) -> SourceRead | None:
        return None

    async def read(self, offset: int, limits: ReadLimits) -> SourceRead | None:
        self._happens()
        return None

    async def offset_for_timestamp(
        self, timestamp_ms: int, *, start_offset: int
    ) -> TimestampOffset | None:
        self._happens()
        return self._newest

    async def max_timestamp(self, *, start_offset: int) -> TimestampOffset | None:
        self._happens()
        return self._newest


async def search_local(
    find: Callable[[BatchSearch], TimestampOffset | None],
) -> TimestampOffset | None:
    return find(find_record)


async def read_meanwhile(
    folder: Path, happens: Callable[[LocalLog], None], **limits: bool
) -> tuple[LocalLog, LogRead]:
    """Read offset 0 of a log of [0, 1) evicted and [1, 3) here, behind the evicted records."""
    log = open_log(folder / "log")
    append(log, batch())
    log.roll()
    append(log, batch(2))
    log.set_tiered_up_to(1)
    log.evict_local(1)
    unified = UnifiedLog(log, lambda: EmptySource(lambda: happens(log)))
    found = unified.read(0, max_bytes=10_000, up_to=log.last_stable_offset, **limits)
    assert isinstance(found, RemoteRead)
    assert found.found is None
    try:
        return log, await found.wait()
    finally:
        log.close()


async def test_records_of_a_transaction_begun_after_the_log_was_cut_are_not_read_as_committed(
    tmp_path: Path,
) -> None:
    def lose(log: LocalLog) -> None:
        log.truncate_to(1)
        transact(log, 7)
        transact(log, 7, 1)

    log, found = await read_meanwhile(tmp_path, lose, include_aborted=True)
    assert (log.last_stable_offset, log.high_watermark) == (1, 3)
    assert bytes_of(found) == b""


async def test_an_offset_deleted_while_it_is_read_is_out_of_range(tmp_path: Path) -> None:
    def delete(log: LocalLog) -> None:
        log.advance_log_start_offset(3)

    with pytest.raises(OffsetOutOfRange):
        await read_meanwhile(tmp_path, delete)


async def test_a_record_deleted_while_its_time_is_looked_up_is_not_found(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    for _ in range(2):
        append(log, batch(timestamps=[NOW_MS]))
        log.roll()
    log.set_tiered_up_to(1)
    log.evict_local(1)
    source = EmptySource(lambda: log.advance_log_start_offset(1), newest=(NOW_MS, 0))
    try:
        found = await UnifiedLog(log, lambda: source).offset_for_timestamp(NOW_MS, search_local)
    finally:
        log.close()
    assert found == (NOW_MS, 1)


async def test_the_newest_record_is_found_though_it_is_evicted_while_it_is_looked_for(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "log")
    for time_ms in (NOW_MS + 1, NOW_MS):
        append(log, batch(timestamps=[time_ms]))
        log.roll()
    log.set_tiered_up_to(1)
    source = EmptySource(lambda: None, newest=(NOW_MS + 1, 0))

    async def evict_first(
        find: Callable[[BatchSearch], TimestampOffset | None],
    ) -> TimestampOffset | None:
        log.evict_local(1)
        return find(find_record)

    try:
        found = await UnifiedLog(log, lambda: source).max_timestamp(evict_first)
    finally:
        log.close()
    assert found == (NOW_MS + 1, 0)


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_a_list_of_records(tmp_path: Path, seed: int) -> None:
    run_seed(tmp_path, seed, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 112))
def test_answers_are_those_of_a_list_of_records_for_long(tmp_path: Path, seed: int) -> None:
    run_seed(tmp_path, seed, STEPS_SLOW)


def test_a_cold_read_takes_no_more_off_an_answers_limit_than_it_can_return(tmp_path: Path) -> None:
    """A fetch of several partitions would leave nothing for the last ones."""
    log = open_log(tmp_path / "log")
    append(log, batch())
    log.roll()
    append(log, batch(2))
    log.set_tiered_up_to(1)
    log.evict_local(1)
    source = EmptySource(lambda: None)
    source.read_bytes_max = 500
    unified = UnifiedLog(log, lambda: source)
    for limit, expected in ((10_000, 500), (400, 400)):
        read = unified.read(0, max_bytes=limit, up_to=log.last_stable_offset)
        assert isinstance(read, RemoteRead)
        assert read.max_bytes == expected
    log.close()

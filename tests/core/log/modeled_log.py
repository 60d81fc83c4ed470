"""One log over this node's disk and a remote source, and a plain list of its batches beside it.

Whatever happens to the log happens to the list: it says what a reader must get.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from random import Random

from tidelog_core.errors import OffsetOutOfRange
from tidelog_core.log.record_source import ReadLimits, SourceRead, TimestampOffset
from tidelog_core.log.segments.time_search import BatchSearch
from tidelog_core.log.unified_log import UnifiedLog
from tidelog_core.log.values import AbortedTransaction, AppendOrigin, SealedSegment
from tidelog_core.model import FileSlice
from tidelog_core.records.batch import BatchHeader, find_record, iter_headers

from tests.support.batches import batch
from tests.support.clock import NOW_MS
from tests.support.log_building import marker, open_log

FILES_MAX = 20  # open at once
PAUSES_MAX = 4  # of one question in the source
PRODUCERS = (11, 12)  # of transactions


@dataclass(frozen=True)
class Batch:
    """A batch as it is in the log."""

    header: BatchHeader
    content: bytes
    timestamps: tuple[int, ...]
    is_commit: bool | None = None  # of a marker

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
        self._aborted: set[AbortedTransaction] = set()
        self._files: list[BufferedReader] = []
        self._open: int | None = None  # the offset at which a reader would go on

    async def _pause(self) -> None:
        for _ in range(self._random.randrange(PAUSES_MAX)):
            await asyncio.sleep(0)

    def copy(self, sealed: SealedSegment, aborted: list[AbortedTransaction]) -> None:
        """Take a segment in; its transactions are all decided."""
        path = self._folder / sealed.path.name
        path.write_bytes(sealed.path.read_bytes())
        self._segments[sealed.base_offset] = sealed.end_offset, path
        self._aborted.update(one for one in aborted if one.first_offset < sealed.end_offset)

    def forget_below(self, offset: int) -> None:
        """Drop the segments wholly below the offset."""
        for base_offset, (end_offset, _) in tuple(self._segments.items()):
            if end_offset <= offset:
                del self._segments[base_offset]

    def drop_batch(self, end_offset: int) -> int | None:
        """Compact one batch of no transaction away below the offset; return its base offset."""
        batches = [
            (path, position, header)
            for end, path in self._segments.values()
            if end <= end_offset
            for position, header in iter_headers(path.read_bytes())
            if not header.is_transactional and not header.is_control
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
        aborted = (
            one
            for one in self._aborted
            if limits.include_aborted
            and one.first_offset < next_offset
            and one.last_offset >= first.base_offset
        )
        found = FileSlice(self._files[-1], first_position, size_bytes)
        return SourceRead(found, first.base_offset, tuple(aborted), next_offset)

    def close(self) -> None:
        """Close the files that were read."""
        for file in self._files:
            file.close()

    read_bytes_max = 1 << 31

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
    log_end: int = 0
    high_watermark: int = 0
    may_cut: bool = True

    def __post_init__(self) -> None:
        self.local = open_log(self.folder / "log", segment_bytes=600)
        self.source = FolderSource(self.folder / "source", self.random)
        self.log = UnifiedLog(self.local, lambda: self.source)

    # -- what happens --

    def append(self) -> None:
        """Append a batch of any producer."""
        producer_id = self.random.choice((None, None, *PRODUCERS))
        count = self.random.randrange(1, 5)
        times = [NOW_MS + self.random.randrange(500) for _ in range(count)]
        fields = {} if producer_id is None else self._transactional(producer_id)
        size = self.random.randrange(80)
        self._append(batch(count, timestamps=times, value_size_bytes=size, **fields), times)

    def end_transaction(self) -> None:
        """Commit or abort one of the transactions that are open."""
        still_open = [one for one in self.transactions() if one[2] is None]
        if still_open:
            producer_id = self.random.choice(still_open)[0]
            is_commit = self.random.random() < 0.5
            content = marker(is_commit=is_commit, producer_id=producer_id, epoch=0)
            self._append(content, [NOW_MS], is_commit=is_commit)

    def _transactional(self, producer_id: int) -> dict[str, int | bool]:
        known = dict(self.local.producers.items()).get(producer_id)
        return {
            "producer_id": producer_id,
            "producer_epoch": 0,
            "base_sequence": 0 if known is None else known.last_sequence + 1,
            "is_transactional": True,
        }

    def _append(
        self, content: bytearray, times: list[int], *, is_commit: bool | None = None
    ) -> None:
        epoch = self.epochs[-1][0] if self.epochs else 0
        if self.random.random() < 0.2:
            epoch += self.random.randrange(1, 3)
        if not self.epochs or epoch > self.epochs[-1][0]:
            self.epochs.append((epoch, self.log_end))
        origin = AppendOrigin.CLIENT if is_commit is None else AppendOrigin.COORDINATOR
        self.local.append_as_leader(content, leader_epoch=epoch, origin=origin)
        ((_, header),) = iter_headers(content)
        self.batches.append(Batch(header, bytes(content), tuple(times), is_commit))
        self.log_end = header.next_offset

    def replicate(self) -> None:
        """Have the followers fetch some of what they lack, or all of it."""
        missing = self.log_end - self.high_watermark
        self.high_watermark += self.random.choice((missing, self.random.randrange(missing + 1)))
        self.local.advance_high_watermark(self.high_watermark)

    def cut(self) -> None:
        """Lose some of the last batches to an election, be they committed or not."""
        # What was copied stays, and what has decided its transactions.
        tiered = self.local.tiered_up_to
        decisions = (
            ended.header.next_offset
            for _, bases, ended in self.transactions()
            if ended is not None and bases and bases[0] < tiered
        )
        first = max(self.local.local_log_start_offset, self.log_start, tiered, *decisions)
        bases = [b.header.base_offset for b in self.batches if b.header.base_offset >= first]
        if not bases or not self.may_cut:
            return
        self.log_end = self.random.choice(bases[-4:])
        self.local.truncate_to(self.log_end)
        self.high_watermark = min(self.high_watermark, self.log_end)
        self.batches = [b for b in self.batches if b.header.base_offset < self.log_end]
        self.epochs = [one for one in self.epochs if one[1] < self.log_end]

    def copy(self) -> None:
        """Copy a segment that is stable."""
        for sealed in self.local.sealed_above(self.local.tiered_up_to):
            if sealed.end_offset <= self.last_stable_offset():
                self.source.copy(sealed, self.aborted())
                self.local.set_tiered_up_to(sealed.end_offset)
            break

    def evict(self) -> None:
        self.local.evict_local(self.random.randrange(self.log_end + 1))

    def delete(self) -> None:
        room = self.high_watermark - self.log_start
        self.log_start += self.random.randrange(max(room, 0) // 4 + 1)
        self.local.advance_log_start_offset(self.log_start)

    def forget(self) -> None:
        self.source.forget_below(self.log_start)

    def compact(self) -> None:
        dropped = self.source.drop_batch(self.local.local_log_start_offset)
        self.batches = [b for b in self.batches if b.header.base_offset != dropped]

    def change(self) -> None:
        """Let anything happen."""
        happens: tuple[Callable[[], None], ...] = (
            *(self.append, self.append, self.append, self.append, self.local.roll),
            *(self.end_transaction, self.end_transaction, self.replicate, self.replicate),
            *(self.copy, self.copy, self.copy, self.evict, self.evict),
            *(self.delete, self.forget, self.compact, self.compact),
        )
        # Elections of a replica that lacks committed batches are rare.
        self.cut() if self.random.random() < 0.02 else self.random.choice(happens)()

    # -- what the list says --

    def transactions(self) -> list[tuple[int, list[int], Batch | None]]:
        """Return each one's producer, the base offsets of its batches, and its marker."""
        found: list[tuple[int, list[int], Batch | None]] = []
        under_way: dict[int, list[int]] = {}
        for one in self.batches:
            header = one.header
            if one.is_commit is not None:
                found.append((header.producer_id, under_way.pop(header.producer_id, []), one))
            elif header.is_transactional:
                under_way.setdefault(header.producer_id, []).append(header.base_offset)
        return [*found, *((who, bases, None) for who, bases in under_way.items())]

    def aborted(self) -> list[AbortedTransaction]:
        """Return the transactions that were aborted."""
        return [
            AbortedTransaction(who, bases[0], ended.header.base_offset, 0)
            for who, bases, ended in self.transactions()
            if ended is not None and not ended.is_commit and bases
        ]

    def aborted_batches(self) -> frozenset[int]:
        """Return the base offsets of the batches in them."""
        return frozenset(
            base
            for _, bases, ended in self.transactions()
            if ended is not None and not ended.is_commit
            for base in bases
        )

    def last_stable_offset(self) -> int:
        """Return the end of what is replicated and decided."""
        undecided = [
            max(bases[0], self.log_start)
            for _, bases, ended in self.transactions()
            if bases and (ended is None or ended.header.base_offset >= self.high_watermark)
        ]
        return min([self.high_watermark, *undecided])

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

    def run_from(self, offset: int, up_to: int) -> bytes:
        """Return all bytes that a reader gets from the offset on, below another."""
        return b"".join(
            b.content
            for b in self.batches
            if b.header.next_offset > offset and b.header.next_offset <= up_to
        )

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return what OffsetForLeaderEpoch answers."""
        starts = [start for _, start in self.epochs]
        known = [
            (each, max(start, self.log_start))
            for (each, start), end in zip(self.epochs, [*starts[1:], 2**62], strict=False)
            if end > self.log_start
        ]
        if not known or epoch > known[-1][0] or epoch < 0:
            return -1, -1
        ends = [*(start for _, start in known[1:]), self.log_end]
        floor = [(each, end) for (each, _), end in zip(known, ends, strict=True) if each <= epoch]
        return floor[-1] if floor else (epoch, known[0][1])

    async def search(
        self, find: Callable[[BatchSearch], TimestampOffset | None]
    ) -> TimestampOffset | None:
        """Search the local log, before and after others have had their turns."""
        for _ in range(self.random.randrange(PAUSES_MAX)):
            find(find_record)
            await asyncio.sleep(0)
        return find(find_record)

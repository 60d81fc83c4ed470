"""The finished segments of one partition as this node knows them, and when they are read again.

They are read from the metadata in pages, which takes seconds where there are a hundred thousand.
What was read last is served until the next reading is complete: the objects of segments that
were replaced stay in the bucket for ``file.delete.delay.ms``, and a reader that finds one gone
asks for the next reading, waits for it and tries again.

A reading that swaps have met may have gaps (``read_changing_tier``). Readers are served from it
all the same, since a partition that is compacted for hours has no other. Nobody decides by it:

- ``whole`` is the last reading without gaps, with what was added and removed since. A swap leaves
  a segment in the place of others, so this has every offset that the tier has, however old it
  is. A reading is without gaps if no swap met it, or if it has all offsets of the whole reading
  before it: a swap hides offsets, if anything. So the whole reading keeps up with a compaction
  of hours, whose replaced objects are deleted after a while. The leader copies, retains and
  looks up times by it.
- ``search`` does not say that an offset is nowhere unless a reading without gaps says so.

Where there is no such reading, both raise ``TierRewritten``.

What may interleave, and why that is safe:

- Swaps arrive during a reading. It may have missed them, so it covers those only that were noted
  before it began (``_loaded_number``); the segments stay stale and are read once more. A caller
  waits for a reading that began after its own call, never for the swaps to end.
- A segment is added or removed during a reading. It is noted in the segments that are served,
  and again in those that were read (``_changes``): doing it twice changes nothing. Where the
  segment was replaced in between, a swap is noted later and has all read again.
- Someone distrusts what was read during a reading (``distrust``). It began too early to count.
- Several ask for a reading. One reads at a time; those who waited find theirs done. Between two
  readings there is a pause that grows with their duration, whoever asks.
- A reader is cancelled while it reads. The next one that waits reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from uuid import UUID

from tidelog_core.errors import TierRewritten
from tidelog_core.metadata.records import SegmentMeta, segment_key_from
from tidelog_core.metadata.store import KeyRange, MetadataStore
from tidelog_core.tier.contents import OVERLAPPING_COUNT_MAX, TierContents, read_changing_tier
from tidelog_core.tier.lifecycle import read_segments
from tidelog_core.tier.planning import finished_segments
from tidelog_core.tier.tiered_segments import TieredSegments

PAUSE_SHARE = 4.0  # a pause is so many times as long as the reading before it
PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 10.0  # a reader that needs the next reading waits no longer than this
GAP_CHECK_SECONDS = 60.0  # how often all segments are read for offsets that none of them has


class KnownSegments:
    """The segments of one partition in memory. For the tasks of one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        topic_id: UUID,
        partition: int,
        *,
        on_replaced: Callable[[Collection[SegmentMeta]], None],
    ) -> None:
        """``on_replaced`` is called when a reading is complete, before anyone is served from it.

        With the segments that are not to be read: unfinished ones, and those it has no more.
        """
        self._store = store
        self._topic_id = topic_id
        self._partition = partition
        self._on_replaced = on_replaced
        self._segments: TieredSegments | None = None  # None: never read
        self._whole: TieredSegments | None = None  # the same, or of an earlier reading
        # The unfinished ones of the last reading, until they are asked for or may have changed.
        self._unfinished: tuple[SegmentMeta, ...] | None = None
        self._loading = asyncio.Lock()
        self._changes: list[Callable[[TieredSegments], None]] = []  # since the reading began
        self._invalidations = 0  # so far
        self._loaded_number = 0  # the invalidations before the last complete reading began
        self._trusted_number = 0  # the invalidations before a reading that counts as whole
        self._load_at = 0.0  # the next reading begins then at the earliest, by the loop's time
        self._gap_check_at = 0.0  # so does one for an offset that is not here
        self._gap_check_end = (
            0  # up to which the tier was known to have all when the last one began
        )

    @property
    def is_stale(self) -> bool:
        """Whether the segments may have been replaced since they were read."""
        return self._loaded_number < self._invalidations

    @property
    def is_settled(self) -> bool:
        """Whether what was read last is whole, and nothing is known to have happened since."""
        return self._whole is not None and self._whole is self._segments and not self.is_stale

    async def segments(self) -> TieredSegments:
        """Return the segments that were read last, perhaps with gaps, from memory once read."""
        if self._segments is None:
            async with self._loading:
                if self._segments is None:
                    await self._load()
        assert self._segments is not None
        return self._segments

    async def caught_up(self) -> TieredSegments:
        """Return the segments as of a reading that began after the last invalidation."""
        number = self._invalidations
        if self._segments is not None and self._loaded_number >= number:
            return self._segments
        await asyncio.sleep(max(0.0, self._load_at - asyncio.get_running_loop().time()))
        async with self._loading:
            if self._segments is None or self._loaded_number < number:
                await self._load()
            assert self._segments is not None
            return self._segments

    async def whole(self) -> TieredSegments:
        """Return segments that have every offset of the tier. Raises ``TierRewritten``."""
        if self._whole is None:
            if self._segments is not None:
                self.invalidate()
            await self.caught_up()
        return self._require_whole()

    async def contents(self) -> TierContents:
        """Return the whole segments, and the unfinished ones as of after the last invalidation.

        They are read again unless nobody has asked for what was read last, and nothing was
        added or removed since. Raises ``TierRewritten``.
        """
        while True:
            if self._unfinished is None or self._whole is None:
                self.invalidate()
            await self.caught_up()
            if self._unfinished is not None:
                unfinished, self._unfinished = self._unfinished, None
                return TierContents(self._require_whole(), unfinished, is_whole=True)

    async def search(self, offset: int, *, tiered_end: int) -> TieredSegments:
        """Return the segments after a look for one that holds an offset that none here holds.

        The segments that may be new are read each time: those behind the last one, and those
        that begin just below the offset. One may begin further below: another leader's copy of
        what it had in one long segment reaches over many short ones. So all are read if they are
        stale, or had gaps, or if ``tiered_end``, up to which the caller's log knows the tier to
        have every record, has moved since they were last read for this; and otherwise once in
        ``GAP_CHECK_SECONDS``, whatever the number of offsets and callers. Thus no record is
        missed that the local log has been evicted for: what is not found below ``tiered_end`` was
        not in a reading that began after the eviction.

        Raises ``TierRewritten`` where the offset is not found and the reading may have a gap there.
        """
        known = await self._look_around(offset)
        now = asyncio.get_running_loop().time()
        is_checked = now < self._gap_check_at and tiered_end <= self._gap_check_end
        if known.locate(offset) is not None or (self.is_settled and is_checked):
            return known
        if not self.is_stale:
            self.invalidate()
        known = await self.caught_up()
        if known is self._whole:
            self._gap_check_at = now + GAP_CHECK_SECONDS
            self._gap_check_end = max(tiered_end, self._gap_check_end)
        elif known.locate(offset) is None:
            raise self._rewritten()
        return known

    def add(self, segment: SegmentMeta) -> None:
        """Note a segment whose copy has finished."""
        self._change(lambda segments: segments.add(segment))

    def remove(self, segment: SegmentMeta) -> None:
        """Note that a segment is no longer read."""
        self._change(lambda segments: segments.remove(segment))

    def invalidate(self) -> None:
        """Note that the segments may have been replaced; they are served until read again."""
        self._invalidations += 1

    def distrust(self) -> None:
        """Have ``whole`` read all again: more may have been added and removed than was noted."""
        self.invalidate()
        self._whole, self._trusted_number = None, self._invalidations

    def _require_whole(self) -> TieredSegments:
        if self._whole is None:
            raise self._rewritten()
        return self._whole

    def _rewritten(self) -> TierRewritten:
        return TierRewritten(
            f"the tier of {self._topic_id}:{self._partition} changed while it was read"
        )

    def _change(self, change: Callable[[TieredSegments], None]) -> None:
        self._unfinished = None
        if self._loading.locked():
            self._changes.append(change)
        for known in (self._segments, self._whole):  # Often the same, which changes nothing.
            if known is not None:
                change(known)

    async def _look_around(self, offset: int) -> TieredSegments:
        known = await self.segments()
        end_offset, number = known.end_offset, self._invalidations
        ranges = [
            KeyRange(segment_key_from(end_offset)),
            KeyRange(
                end=segment_key_from(offset + 1), limit=OVERLAPPING_COUNT_MAX, is_descending=True
            ),
        ]
        for keys in ranges:
            metas = await read_segments(self._store, self._topic_id, self._partition, keys=keys)
            for meta in finished_segments(metas):
                is_new = meta.base_offset >= end_offset or offset < meta.end_offset
                # Else they may have been read too early.
                if is_new and number == self._invalidations:
                    self.add(meta)
            known = await self.segments()
            if known.locate(offset) is not None:
                break
        return known

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        number, began = self._invalidations, loop.time()
        self._changes.clear()
        try:
            contents = await read_changing_tier(self._store, self._topic_id, self._partition)
        finally:
            pause_s = PAUSE_SHARE * (loop.time() - began)
            self._load_at = loop.time() + min(max(pause_s, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX)
        for change in self._changes:
            change(contents.finished)
        known = self._segments or TieredSegments()
        self._segments, self._loaded_number = contents.finished, number
        is_whole = contents.is_whole or self._lacks_nothing(contents.finished)
        if is_whole and number >= self._trusted_number:
            self._whole = contents.finished
        self._unfinished = None if self._changes else contents.unfinished
        self._changes.clear()
        self._on_replaced((*contents.unfinished, *known.without(contents.finished)))

    def _lacks_nothing(self, read: TieredSegments) -> bool:
        """Return whether these have every offset from the whole reading's first to its end."""
        whole = self._whole
        if whole is None or whole.first is None:
            return False
        return read.tiered_end(whole.first.base_offset) >= whole.end_offset

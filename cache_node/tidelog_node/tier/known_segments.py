"""The finished segments of one partition as this node knows them, and when it reads them again.

They are read from the metadata in pages, which takes seconds for a hundred thousand segments. The
last reading is served until the next one is complete: the objects of replaced segments stay in the
bucket for ``file.delete.delay.ms``, and a reader that finds one missing waits for the next reading
and tries again.

A reading that overlaps a swap may have gaps (``read_changing_tier``). Reads are served from it all
the same, since a partition under compaction for hours has no other. It is never used for decisions:

- ``whole`` is the last reading without gaps, plus the segments added and minus those removed since.
  A swap replaces segments by one that covers the same offsets, so ``whole`` has every offset of the
  tier, however old it is. A reading has no gaps if no swap overlapped it, or if it has all offsets
  of the previous whole reading: a swap can only hide offsets. So ``whole`` keeps up with hours of
  compaction, whose replaced objects are deleted after a while. The leader uses it for copies,
  retention and lookups by time.
- ``search`` reports an offset as absent only if a reading without gaps lacks it.

Without such a reading both raise ``TierRewritten``.

Possible interleavings, and why they are safe:

- Swaps arrive during a reading. It may have missed them, so it covers only those noted before it
  began (``_loaded_number``); the segments stay stale and are read once more. A caller waits for a
  reading that began after its own call, never for the swaps to end.
- A segment is added or removed during a reading. The change is applied to the segments that are
  served, and again to those just read (``_changes``): applying it twice has no effect. If the
  segment was replaced in between, a swap is noted later and causes another reading.
- ``distrust`` is called during a reading. That reading began too early to count.
- Several callers need a reading. One reads at a time; the others find it done. Between two readings
  there is a pause that grows with their duration, however many callers wait.
- A caller is cancelled while it reads. The next waiting caller reads.
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

PAUSE_SHARE = 4.0  # length of a pause, relative to the reading before it
PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 10.0  # a reader that needs the next reading waits no longer than this
GAP_CHECK_SECONDS = 60.0  # between readings of all segments for offsets that none of them has


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
        """``on_replaced`` is called when a reading is complete, before it is served.

        With the segments not to be read: the unfinished ones, and those that the reading before
        had and this one lacks.
        """
        self._store = store
        self._topic_id = topic_id
        self._partition = partition
        self._on_replaced = on_replaced
        self._segments: TieredSegments | None = None  # None: never read
        self._whole: TieredSegments | None = None  # the same, or an earlier reading
        # The unfinished segments of the last reading, until they are taken or may have changed.
        self._unfinished: tuple[SegmentMeta, ...] | None = None
        self._loading = asyncio.Lock()
        self._changes: list[Callable[[TieredSegments], None]] = []  # since the reading began
        self._invalidations = 0  # so far
        self._loaded_number = 0  # ``_invalidations`` when the last complete reading began
        self._trusted_number = 0  # only readings begun at or after this invalidation count as whole
        self._load_at = 0.0  # earliest start of the next reading, by the loop's time
        self._gap_check_at = 0.0  # likewise, for an offset that no segment has
        self._gap_check_end = 0  # the greatest ``tiered_end`` that those readings covered

    @property
    def is_stale(self) -> bool:
        """Whether the segments may have been replaced since they were read."""
        return self._loaded_number < self._invalidations

    @property
    def is_settled(self) -> bool:
        """Whether the last reading is whole and no replacement was noted since."""
        return self._whole is not None and self._whole is self._segments and not self.is_stale

    @property
    def size_bytes(self) -> int | None:
        """The bytes of the segments of the last reading; ``None`` if none was read."""
        return None if self._segments is None else self._segments.bytes_above(0)

    async def segments(self) -> TieredSegments:
        """Return the last reading, perhaps with gaps; reads only the first time."""
        if self._segments is None:
            async with self._loading:
                if self._segments is None:
                    await self._load()
        assert self._segments is not None
        return self._segments

    async def caught_up(self) -> TieredSegments:
        """Return a reading that began after the last invalidation."""
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
        """Return the whole segments, and the unfinished ones read after the last invalidation.

        Reads again unless the last reading has not been returned here yet and no segment was added
        or removed since. Raises ``TierRewritten``.
        """
        while True:
            if self._unfinished is None or self._whole is None:
                self.invalidate()
            await self.caught_up()
            if self._unfinished is not None:
                unfinished, self._unfinished = self._unfinished, None
                return TierContents(self._require_whole(), unfinished, is_whole=True)

    async def search(self, offset: int, *, tiered_end: int) -> TieredSegments:
        """Return the segments after a search for one with an offset that no known segment has.

        Segments that may be new are read each time: those after the last one, and those that begin
        just below the offset. The one with the offset may begin further below, since another
        leader's long segment may overlap many short ones. So all segments are read if they are
        stale or had gaps, or if ``tiered_end``, the end of the tier as known to the caller's log,
        has moved since all were last read for this purpose; otherwise once in
        ``GAP_CHECK_SECONDS``, for any number of offsets and callers. So no record evicted from
        the local log is missed: an offset below ``tiered_end`` that is not found was absent from a
        reading that began after the eviction.

        Raises ``TierRewritten`` if the offset is not found and the reading may have a gap there.
        """
        known = await self._read_nearby(offset)
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
        """Note that segments may have been replaced; they are served until the next reading."""
        self._invalidations += 1

    def distrust(self) -> None:
        """Make ``whole`` read again: changes may have been missed."""
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
        for known in (self._segments, self._whole):  # Often the same object.
            if known is not None:
                change(known)

    async def _read_nearby(self, offset: int) -> TieredSegments:
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
                # Otherwise the segment may have been read too early.
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
        """Whether these have every offset from the first to the end of the whole reading."""
        whole = self._whole
        if whole is None or whole.first is None:
            return False
        return read.tiered_end(whole.first.base_offset) >= whole.end_offset

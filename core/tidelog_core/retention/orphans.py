"""Which objects of the bucket nothing needs any more: decisions of the scrub, without I/O.

An object is *named* by the segment item with its id, in whatever state; what is named is
never an orphan: copying and retention look after it. Of the others:

- too young: it may be of a copy whose metadata was read too early, or not restored yet;
- *accounted for*: its first record also lies in a finished segment, or below the log start
  where a finished segment takes over. What it is a failed copy of was copied again;
- *doubtful*: below the log start but with nothing finished there, or of a topic that is
  neither there nor deleted just now. So it looks after a late upload; but also after the
  metadata was set back to an earlier time, and then it may be wanted: it goes after a
  longer time;
- *unexplained*: of a topic that is there, at offsets that nothing else has. It may be the
  only copy of what the metadata has forgotten: it is kept and reported. What a failed copy
  left is accounted for as soon as the leader has copied the segment again.

Of a deleted topic whose tombstone is left retention takes care.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.objects.store import ObjectMeta
from tidelog_core.tier.keys import SegmentKeys, parse_segment_key
from tidelog_core.tier.planning import finished_segments, locate


class TopicState(Enum):
    """What the metadata says of the topic that an object's key names."""

    LIVE = "live"
    DELETED = "deleted"  # its tombstone is left
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeLimits:
    """How old an object must be to be taken for an orphan, by its time of writing."""

    orphan_age_ms: int  # where it is accounted for
    doubtful_age_ms: int  # where it is doubtful; not less than the other


@dataclass(frozen=True, slots=True)
class Judgement:
    """Segment objects that no item names, by what is to be done with them."""

    orphans: tuple[ObjectMeta, ...]
    young: tuple[ObjectMeta, ...]
    unexplained: tuple[ObjectMeta, ...]


def judge_unnamed(
    objects: Iterable[ObjectMeta],
    metas: Sequence[SegmentMeta],
    *,
    topic: TopicState,
    log_start_offset: int,
    limits: AgeLimits,
    now_ms: int,
) -> Judgement:
    """Return what the partition's segment objects that ``metas`` do not name are.

    ``metas`` must have been read after ``objects`` were listed: the item is written
    before the first object, so an object without one is of no copy that may still end.
    """
    named = {meta.segment_id for meta in metas}
    finished = finished_segments(metas)
    orphans, young, unexplained = [], [], []
    for found in objects:
        key = parse_segment_key(found.key)
        if key is None or key.segment_id in named or topic is TopicState.DELETED:
            continue
        age_limit_ms: int | None = limits.doubtful_age_ms
        if topic is TopicState.LIVE:
            age_limit_ms = _age_limit_ms(key.base_offset, finished, log_start_offset, limits)
        if age_limit_ms is None:
            unexplained.append(found)
        elif now_ms - found.modified_ms <= age_limit_ms:
            young.append(found)
        else:
            orphans.append(found)
    return Judgement(tuple(orphans), tuple(young), tuple(unexplained))


def is_manifest_orphan(
    found: ObjectMeta, *, topic: TopicState, limits: AgeLimits, now_ms: int
) -> bool:
    """Return whether a topic's manifest is left over from a topic that is gone."""
    age_ms = now_ms - found.modified_ms
    return topic is TopicState.UNKNOWN and age_ms > limits.doubtful_age_ms


def select_missing(
    metas: Iterable[SegmentMeta], keys_of: Iterable[SegmentKeys], present: dict[str, int]
) -> list[tuple[SegmentMeta, str]]:
    """Return the finished segments' objects that a listing (key to size) does not show.

    One of another size than its metadata says is not there either. What is written after
    the listing is missing here too: look again before anyone is told.
    """
    missing = []
    for meta, keys in zip(metas, keys_of, strict=True):
        if meta.state is not SegmentState.COPY_FINISHED:
            continue
        for key, size_bytes in ((keys.log, meta.size_bytes), (keys.index, meta.index_size_bytes)):
            if present.get(key) != size_bytes:
                missing.append((meta, key))
    return missing


def _age_limit_ms(
    base_offset: int, finished: Sequence[SegmentMeta], log_start_offset: int, limits: AgeLimits
) -> int | None:
    """Return how old the object must be, ``None`` where it is never taken for an orphan."""
    if locate(finished, base_offset) is not None:
        return limits.orphan_age_ms
    if base_offset >= log_start_offset:
        return None
    is_continued = locate(finished, log_start_offset) is not None
    return limits.orphan_age_ms if is_continued else limits.doubtful_age_ms

"""Decides which objects of the bucket are no longer needed. No I/O.

The scrub removes them by these rules, ``tidelog verify`` reports them.

An object is *named* by the segment item with its id, in any state. A named object is never an
orphan: copying and retention handle it. The others are:

- *accounted for*: a finished segment also has its first record. The object is a failed copy
  whose segment was copied again;
- *doubtful*: below the log start without a finished segment there, or of a topic that neither
  exists nor was deleted recently. That may be a late upload. It may also be needed, if the metadata
  was set back to an earlier time or restored from a damaged bucket: it is removed after a longer
  time;
- *unexplained*: of an existing topic, at offsets that no other segment has, or below a log
  start that a restoration has chosen because older records were missing. It may be the only copy
  of records that the metadata has lost: it is kept and reported. A failed copy
  becomes accounted for as soon as the leader has copied the segment again.

Retention handles deleted topics that still have a tombstone.

The age of an object counts from when a scrub first saw it in this state with this metadata. Its own
timestamp does not say when the metadata lost it, and is from another clock.

Log start objects are needed up to the greatest offset that the metadata store has reached. A
greater one is from before the metadata was set back, and is treated as accounted for. So is the
deletion object of a topic that the metadata has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.metadata.store import Item
from tidelog_core.objects.store import ObjectMeta
from tidelog_core.tier.keys import SegmentKey, SegmentKeys, parse_log_start_key, parse_segment_key
from tidelog_core.tier.tiered_segments import TieredSegments


class TopicState(Enum):
    """The state in the metadata of the topic in an object's key."""

    LIVE = "live"
    DELETED = "deleted"  # its tombstone is left, or may be
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeLimits:
    """The time for which a scrub must have seen an orphan before it removes it."""

    orphan_age_ms: int  # of objects accounted for
    doubtful_age_ms: int  # of doubtful objects; not less than the other


@dataclass(frozen=True, slots=True)
class Candidate:
    """An object that nothing needs, to be removed at an age limit."""

    found: ObjectMeta
    age_limit_ms: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """Objects that no item names, by the scrub's treatment."""

    candidates: tuple[Candidate, ...]
    unexplained: tuple[ObjectMeta, ...] = ()


def judge_unnamed(
    objects: Iterable[ObjectMeta],
    metas: Sequence[SegmentMeta],
    *,
    topic: TopicState,
    log_start_offset: int,
    restored_log_start: int,
    limits: AgeLimits,
) -> Judgement:
    """Return the judgement of the partition's segment objects that ``metas`` do not name.

    ``metas`` must have been read after ``objects`` were listed: an item is written
    before the first object, so an object without one is of no copy that may still be finished.
    """
    named = {meta.segment_id for meta in metas}
    finished = TieredSegments(metas)
    candidates, unexplained = [], []
    for found in objects:
        key = parse_segment_key(found.key)
        if key is None or key.segment_id in named or topic is TopicState.DELETED:
            continue
        age_limit_ms: int | None = limits.doubtful_age_ms
        if topic is TopicState.LIVE and is_accounted_for(key, finished):
            age_limit_ms = limits.orphan_age_ms
        elif topic is TopicState.LIVE and (
            key.base_offset >= log_start_offset or log_start_offset <= restored_log_start
        ):
            age_limit_ms = None
        if age_limit_ms is None:
            unexplained.append(found)
        else:
            candidates.append(Candidate(found, age_limit_ms))
    return Judgement(tuple(candidates), tuple(unexplained))


def is_accounted_for(key: SegmentKey, finished: TieredSegments) -> bool:
    """Whether the first record of an object that no item names is in a finished segment too."""
    return finished.locate(key.base_offset) is not None


def named_segments(items: Iterable[Item]) -> set[UUID]:
    """Return the segments that a partition's items name, also of items that cannot be read.

    The key ends with the id.
    """
    found = set()
    for item in items:
        with contextlib.suppress(ValueError):
            found.add(UUID(item.id.key.partition("-")[2]))
    return found


def state_of_topic(
    topic_id: UUID, *, live: Container[UUID], deleted: Container[UUID], is_complete: bool
) -> TopicState:
    """Return the state of the topic in the metadata.

    If topic items or tombstones are unreadable, ``is_complete`` is false: any of them may be this
    topic's, so its objects are left alone like those of a deleted topic, for retention.
    """
    if topic_id in live:
        return TopicState.LIVE
    if topic_id in deleted or not is_complete:
        return TopicState.DELETED
    return TopicState.UNKNOWN


def judge_log_starts(
    objects: Iterable[ObjectMeta],
    *,
    topic: TopicState,
    log_start_offset: int,
    limits: AgeLimits,
) -> Judgement:
    """Return which log start objects of the partition are not needed.

    ``log_start_offset`` must have been read after ``objects`` were listed.
    """
    offsets = {found: key.offset for found in objects if (key := parse_log_start_key(found.key))}
    if topic is TopicState.DELETED:
        return Judgement(())
    if topic is TopicState.UNKNOWN:
        return Judgement(tuple(Candidate(found, limits.doubtful_age_ms) for found in offsets))
    newest = max((o for o in offsets.values() if o <= log_start_offset), default=0)
    return Judgement(
        tuple(
            Candidate(found, limits.orphan_age_ms)
            for found, offset in offsets.items()
            if offset != newest
        )
    )


def manifest_age_limit_ms(topic: TopicState, limits: AgeLimits) -> int | None:
    """Return how long a topic's manifest is kept, ``None`` for as long as the topic exists."""
    return limits.doubtful_age_ms if topic is TopicState.UNKNOWN else None


def deletion_age_limit_ms(topic: TopicState, limits: AgeLimits) -> int | None:
    """Return how long a topic's deletion object is kept, ``None`` for as long as it is deleted."""
    if topic is TopicState.LIVE:
        return limits.orphan_age_ms
    return manifest_age_limit_ms(topic, limits)


def select_old(
    candidates: Iterable[Candidate], first_seen_ms: Mapping[str, int], *, now_ms: int
) -> list[ObjectMeta]:
    """Return the objects to remove, given when each key was first seen in its state."""
    return [
        one.found
        for one in candidates
        if now_ms - first_seen_ms.get(one.found.key, now_ms) > one.age_limit_ms
    ]


def select_missing(
    metas: Iterable[SegmentMeta], keys_of: Iterable[SegmentKeys], present: dict[str, int]
) -> list[tuple[SegmentMeta, str]]:
    """Return the finished segments' objects that are missing in a listing (key to size).

    An object of another size than in the metadata is missing too. Objects written after
    the listing also appear as missing: check again before reporting them.
    """
    missing = []
    for meta, keys in zip(metas, keys_of, strict=True):
        if meta.state is not SegmentState.COPY_FINISHED:
            continue
        for key, size_bytes in ((keys.log, meta.size_bytes), (keys.index, meta.index_size_bytes)):
            if present.get(key) != size_bytes:
                missing.append((meta, key))
    return missing

"""The life of a tiered segment: its states, and the order in which items and objects change.

    absent ──> COPY_STARTED ──> COPY_FINISHED ──> DELETE_STARTED ──> absent
                    └──────────── given up ──────────────┘

    1. COPY_STARTED                        names the objects, for a later clean-up
    2. the log object, the index object    a reader of the bucket alone finds the segment
    3. COPY_FINISHED                       readers of the metadata find it
    4. the partition's log start offset    no reader requests it (``metadata.leadership``), or
       moves past it                       a compacted one replaces it (``tier_compaction.swap``)
       a log start object in the bucket    no restoration brings it back
    5. DELETE_STARTED, with a time         no plan includes it
    6. file.delete.delay.ms later: the     readers that had found it are done
       index object, the log object
    7. the item is removed

Leaders, retention functions, rewriters and the clean-up of deleted topics take these steps, each
from the current metadata. They need not coordinate:

- *States.* A commit is conditional on the version at which the segment's item was read, so the
  store makes exactly the transition that is checked here (``is_valid_transition``). No state
  follows DELETE_STARTED: steps 6 and 7 can be taken twice, late, or by two processes.
- *Fences.* Steps 1 to 3 describe one leader's log. They are valid in its leader epoch only
  (``Leadership``), and so is giving up a copy that an earlier leader began. A rewriter's
  steps are valid under its claim. Step 5 of a finished segment needs no fence: the log start
  never goes back, so what step 4 allowed stays allowed. If two processes mark a segment, one
  conflicts and finds it marked; the first time counts.
- *Order of the objects.* The index object makes a segment visible to a reader of the bucket
  alone. It is put last and deleted first, each step durable before the next. So an index
  object in the bucket means a complete log object, after a crash at any point. An interrupted
  deletion leaves only a log object, like an unfinished copy: no reader counts it and none misses
  it. The other order would leave only an index object, like a lost log. A reader could tell the
  two apart below the log start and for replaced segments, but not for a copy that was given up
  and is not repeated yet.
  With this order, readers that have the index can read the log for longer. A fenced leader may
  still store its copy while the next leader deletes it. The result is a whole segment only if both
  its objects are put after both deletes; ``delete_given_up_copy`` or the scrub removes it. A store
  deletes the objects of one call in any order, so the two kinds take two calls.
- *Crashes.* Between any two steps they leave a state that the next run handles: a COPY_STARTED
  item, a log start past segments, an item whose deletion is due.
- *Unknown outcomes* of commits are settled by reading. A leader's put is done if the item has
  the next version and the same body; a mark is done if the state is DELETE_STARTED. Puts and
  deletes of objects are repeated: a key has the id of one attempt and is never reused, so
  a delete that takes effect late removes nothing that is needed.
- *Listings* are not used: the items name the objects. A reader that lists a bucket whose listings
  lag behind may see one object of a segment without the other in either order.

The wait before step 6 is in the item and outlives the process that began it. It is wall-clock
time; writers' clocks are taken to agree within a few seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from tidelog_core.batched import batched
from tidelog_core.errors import OutcomeUnknown, VersionConflict
from tidelog_core.metadata import records
from tidelog_core.metadata.leadership import Leadership, require_leadership
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.metadata.store import (
    ALL_KEYS,
    COMMIT_WRITES_MAX,
    Item,
    KeyRange,
    MetadataStore,
    Write,
)
from tidelog_core.metadata.update import ATTEMPTS_MAX
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import INDEX_SUFFIX, SegmentKeys

AT_ONCE = 0  # as deletable_ms: no reader ever had the objects
MARKS_MAX = COMMIT_WRITES_MAX - 1  # segments in one commit, besides the leader's fence

_NEXT_STATES: Mapping[SegmentState | None, frozenset[SegmentState | None]] = {
    None: frozenset({SegmentState.COPY_STARTED}),
    SegmentState.COPY_STARTED: frozenset({SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}),
    # To itself: how far it is compacted is found out later.
    SegmentState.COPY_FINISHED: frozenset(
        {SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}
    ),
    SegmentState.DELETE_STARTED: frozenset({None}),
}


# -- deciding --


def is_valid_transition(source: SegmentState | None, target: SegmentState | None) -> bool:
    """Whether a segment may go from one state to the other; ``None`` means that it has no item.

    A restoration writes the segments that it has found in a bucket as COPY_FINISHED, to a store
    without items.
    """
    return target in _NEXT_STATES[source]


def finished(segment: SegmentMeta) -> SegmentMeta:
    """Return the segment in the state COPY_FINISHED, in which both objects are whole."""
    return _moved(segment, SegmentState.COPY_FINISHED)


def marked_for_deletion(segment: SegmentMeta, *, deletable_ms: int) -> SegmentMeta:
    """Return the segment in the state DELETE_STARTED. If it is already, its time is kept."""
    if segment.state is SegmentState.DELETE_STARTED:
        return segment
    marked = _moved(segment, SegmentState.DELETE_STARTED)
    return dataclasses.replace(marked, deletable_ms=deletable_ms)


def below_log_start(metas: Iterable[SegmentMeta], log_start_offset: int) -> list[SegmentMeta]:
    """Return the finished segments wholly below the log start."""
    return [
        meta
        for meta in metas
        if meta.state is SegmentState.COPY_FINISHED and meta.end_offset <= log_start_offset
    ]


def select_deletable(metas: Iterable[SegmentMeta], *, now_ms: int) -> list[SegmentMeta]:
    """Return the segments marked for deletion whose objects may be deleted now."""
    return [
        meta
        for meta in metas
        if meta.state is SegmentState.DELETE_STARTED and meta.deletable_ms <= now_ms
    ]


def next_deletable_ms(metas: Iterable[SegmentMeta]) -> int | None:
    """Return when the first of the deletions that have begun may end, ``None`` for none."""
    started = (meta for meta in metas if meta.state is SegmentState.DELETE_STARTED)
    return min((meta.deletable_ms for meta in started), default=None)


# -- copying, in a leader epoch --


async def read_segments(
    store: MetadataStore, topic_id: UUID, partition: int, *, keys: KeyRange = ALL_KEYS
) -> list[SegmentMeta]:
    """Return the partition's segments in any state, by base offset. Raises ``CorruptItem``."""
    items = await store.list(records.segment_collection(topic_id, partition), keys=keys)
    return [SegmentMeta.from_item(item) for item in items]


async def start_copy(
    store: MetadataStore, leadership: Leadership, segment: SegmentMeta
) -> SegmentMeta:
    """Record that the segment's objects may exist from now on; return the stored segment.

    Can be repeated. Raises ``VersionConflict``, and as ``require_leadership``.
    """
    assert is_valid_transition(None, segment.state)
    return await _put(store, leadership, segment)


async def finish_copy(
    store: MetadataStore, leadership: Leadership, segment: SegmentMeta
) -> SegmentMeta:
    """Record that both objects are whole: from now on readers use them.

    Can be repeated. Raises ``VersionConflict`` if another process has given the copy up, and the
    errors of ``require_leadership``.
    """
    return await _put(store, leadership, finished(segment))


async def delete_given_up_copy(
    store: MetadataStore, objects: ObjectStore, segment: SegmentMeta, keys: SegmentKeys
) -> bool:
    """Delete the objects of this leader's copy, if another leader has removed its item.

    Returns whether it was removed. While it exists, the other leader deletes the objects.
    """
    if await store.get(segment.item_id) is not None:
        return False
    await delete_objects(objects, (keys.log, keys.index))
    return True


# -- deleting --


async def start_deletions(
    store: MetadataStore,
    segments: Sequence[SegmentMeta],
    *,
    deletable_ms: int,
    leadership: Leadership | None = None,
) -> list[SegmentMeta]:
    """Mark segments for deletion, so that they are no longer read; return them as stored.

    For finished segments below the log start or of a deleted topic, and for copies that are given
    up: a leader gives up another's in its ``leadership``. Segments that are already marked keep
    their time; removed ones are not returned. Raises ``VersionConflict`` if a copy has finished
    since it was read, the errors of the store, and, with ``leadership``, those of
    ``require_leadership``. Some segments may then be marked; repeat.
    """
    started: list[SegmentMeta] = []
    for some in batched(segments, MARKS_MAX):
        started += await _mark(store, some, deletable_ms, leadership)
    return started


async def end_deletions(
    store: MetadataStore,
    objects: ObjectStore,
    segments: Sequence[SegmentMeta],
    *,
    keys_of: Callable[[SegmentMeta], SegmentKeys],
) -> None:
    """Delete the objects of segments whose deletion is due, then their items. Can be repeated."""
    for some in batched(segments, COMMIT_WRITES_MAX):
        pairs = map(keys_of, some)
        await delete_objects(objects, [key for pair in pairs for key in (pair.log, pair.index)])
        await drop_segments(store, some)


async def delete_objects(objects: ObjectStore, keys: Iterable[str]) -> None:
    """Delete objects of the tier, index objects first: an index always has its whole log."""
    indexes: list[str] = []
    others: list[str] = []
    for key in keys:
        (indexes if key.endswith(INDEX_SUFFIX) else others).append(key)
    for some in (indexes, others):
        if some:
            await objects.delete(some)


async def drop_segments(store: MetadataStore, segments: Sequence[SegmentMeta]) -> None:
    """Delete the items of segments whose objects are deleted. Can be repeated."""
    for some in batched(segments, COMMIT_WRITES_MAX):
        assert all(is_valid_transition(segment.state, None) for segment in some)
        try:
            await store.commit([records.delete(s, is_logged=False) for s in some])
        except VersionConflict:  # Another process has dropped some of them.
            for segment in some:
                await _drop_one(store, segment)


# -- committing --


async def _put(store: MetadataStore, leadership: Leadership, segment: SegmentMeta) -> SegmentMeta:
    write = records.put(segment, is_logged=False)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        fence = records.check(await require_leadership(store, leadership))
        try:
            await store.commit([write], checks=[fence])
        except (OutcomeUnknown, VersionConflict) as error:
            # It may be from an earlier attempt with an unknown outcome.
            if _is_done(write, await store.get(write.id)):
                break
            is_lost = isinstance(error, VersionConflict) and _names(error, write)
            if is_lost or attempt == ATTEMPTS_MAX:
                raise
            # Only the partition's item has changed: check whether the leadership lasts.
        else:
            break
    return _stored(segment)


async def _mark(
    store: MetadataStore,
    segments: Sequence[SegmentMeta],
    deletable_ms: int,
    leadership: Leadership | None,
) -> list[SegmentMeta]:
    for attempt in range(1, ATTEMPTS_MAX + 1):
        marked = [s for s in segments if s.state is SegmentState.DELETE_STARTED]
        fresh = [
            marked_for_deletion(segment, deletable_ms=deletable_ms)
            for segment in segments
            if segment.state is not SegmentState.DELETE_STARTED
        ]
        if not fresh:
            return marked
        fences = []
        if leadership is not None:
            fences.append(records.check(await require_leadership(store, leadership)))
        try:
            await store.commit([records.put(s, is_logged=False) for s in fresh], checks=fences)
        except (VersionConflict, OutcomeUnknown):
            again = await _read_again(store, segments)
            if attempt == ATTEMPTS_MAX or not _may_be_marked(again, segments):
                raise
            segments = again
        else:
            return marked + [_stored(segment) for segment in fresh]
    raise AssertionError("unreachable")


async def _read_again(store: MetadataStore, segments: Sequence[SegmentMeta]) -> list[SegmentMeta]:
    """Return the segments whose items still exist, as stored now."""
    found = await store.get_many([segment.item_id for segment in segments])
    items = (found.get(segment.item_id) for segment in segments)
    return [SegmentMeta.from_item(item) for item in items if item is not None]


def _may_be_marked(again: Iterable[SegmentMeta], segments: Iterable[SegmentMeta]) -> bool:
    """Whether nothing has happened to the segments but that they were marked or compacted."""
    before = {segment.segment_id: segment.state for segment in segments}
    return all(
        segment.state in (before[segment.segment_id], SegmentState.DELETE_STARTED)
        for segment in again
    )


async def _drop_one(store: MetadataStore, segment: SegmentMeta) -> None:
    item = await store.get(segment.item_id)
    if item is not None:
        await store.commit([Write(item.id, None, item.version, False)])


def _moved(segment: SegmentMeta, state: SegmentState) -> SegmentMeta:
    assert is_valid_transition(segment.state, state), f"{segment.state} to {state}"
    return dataclasses.replace(segment, state=state)


def _stored(segment: SegmentMeta) -> SegmentMeta:
    return dataclasses.replace(segment, version=segment.version + 1)


def _names(conflict: VersionConflict, write: Write) -> bool:
    return (write.id.collection, write.id.key) in conflict.keys


def _is_done(write: Write, found: Item | None) -> bool:
    return (
        found is not None
        and found.version == write.expected_version + 1
        and (dict(found.body) == dict(write.body or {}))
    )

"""Selects the segments in the bucket that make up a partition's log, without metadata.

The rules of ``docs/format.md``, "Without metadata":

1. A segment is complete if it has its index object and a log object of the right size.
2. Segments that overlap have the same leader epochs for the same offsets. If they do
   not, an unclean election came between, and the later leader's segment counts.
3. For its offsets, the segment that was rewritten last counts.
4. A segment that starts a new chain of hashes had no valid one before it: segments that end
   at or before its base offset were being deleted.
5. So were segments that end at or before the published log start. The log start is published
   before anything is deleted for it, so all later segments must exist.
6. The log is the run without a gap up to the greatest end offset. A log with a gap cannot
   be served: new records would be appended in the gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.tier.integrity import CHAIN_PROBLEM, NO_HASH, continues_chain


@dataclass(frozen=True, slots=True)
class CompleteSegment:
    """A segment whose two objects exist and agree."""

    meta: SegmentMeta
    log_key: str
    index_key: str
    previous_hash: bytes
    producer_id_max: int = -1  # of its producer snapshot and aborted transactions; -1: none
    # The hashes that later segments may continue, with base offsets; empty: only its own.
    continued: tuple[tuple[bytes, int], ...] = ()

    @property
    def chained_hash(self) -> bytes:
        """The chained hash of the partition up to and including this segment."""
        return bytes.fromhex(self.meta.chained_hash)


@dataclass(frozen=True, slots=True)
class BrokenSegment:
    """A segment with a missing or damaged object."""

    key: str  # of the object that is wrong
    problem: str
    base_offset: int  # in its key
    end_offset: int | None  # None: unknown, nothing readable has it
    leader_epoch: int  # in its key
    is_unfinished: bool = False  # it has no index object, so it was never part of the log


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence about an object."""

    object: str  # its key
    text: str


@dataclass(frozen=True, slots=True)
class Selection:
    """A partition's log, as far as the bucket shows it."""

    segments: tuple[CompleteSegment, ...]  # by base offset, without gaps
    log_start_offset: int
    deleted_end: int  # segments that end at or below it were deleted, as far as the bucket shows
    leader_epoch_max: int  # the greatest in any object; -1: none
    producer_id_max: int  # likewise
    left_out: tuple[Remark, ...]  # the objects that do not count, and why
    problems: tuple[Remark, ...]  # where records may be lost


def select_segments(
    complete: Sequence[CompleteSegment],
    broken: Sequence[BrokenSegment] = (),
    *,
    published_start: int = 0,
) -> Selection:
    """Return the segments that make up the partition's log.

    ``published_start`` is the published log start, 0 if there is none: the
    true one may be later, never earlier.
    """
    left_out: list[Remark] = []
    problems: list[Remark] = []
    chain_start = max(
        (s.meta.base_offset for s in complete if s.previous_hash == NO_HASH), default=0
    )
    deleted_end = max(chain_start, published_start)
    kept = _without_deleted(complete, deleted_end, left_out)
    continued = {segment.previous_hash for segment in complete}
    chosen: list[CompleteSegment] = []
    for overlapping in _overlapping(kept):
        group = _without_rewritten(_without_superseded(overlapping, left_out), left_out)
        chosen += _without_repeated(group, continued, left_out)
    kept = sorted(chosen, key=_place)
    if kept and published_start and kept[0].meta.base_offset > deleted_end:
        problems.append(_missing_before(kept[0], published_start))
    problems += _chain_problems(kept, complete)
    run = _last_run(kept, left_out, problems)
    if run:
        log_start_offset = max(run[0].meta.base_offset, deleted_end)
    else:
        # No segment is readable. At least new records must not get the offsets of lost ones.
        ends = (s.end_offset or s.base_offset for s in broken)
        log_start_offset = max(deleted_end, *ends, 0)
    for segment in broken:
        is_harmless = segment.is_unfinished or _is_dispensable(
            segment, run, log_start_offset if run else deleted_end
        )
        remarks = left_out if is_harmless else problems
        remarks.append(Remark(segment.key, segment.problem))
    return Selection(
        segments=tuple(run),
        log_start_offset=log_start_offset,
        deleted_end=deleted_end,
        leader_epoch_max=_leader_epoch_max(complete, broken),
        producer_id_max=max((segment.producer_id_max for segment in complete), default=-1),
        left_out=tuple(left_out),
        problems=tuple(problems),
    )


def agree(one: SegmentMeta, other: SegmentMeta) -> bool:
    """Whether the segments have the same leader epochs where they overlap.

    They then have the same records there: an epoch has one leader, which gives an offset once.
    """
    low = max(one.base_offset, other.base_offset)
    high = min(one.end_offset, other.end_offset)
    if low >= high:
        return True
    edges = {low}
    for epochs in (one.leader_epochs, other.leader_epochs):
        edges.update(start for _, start in epochs if low < start < high)
    return all(_epoch_at(one, edge) == _epoch_at(other, edge) for edge in edges)


def _place(segment: CompleteSegment) -> tuple[int, int]:
    return segment.meta.base_offset, segment.meta.end_offset


def _epoch_at(segment: SegmentMeta, offset: int) -> int:
    return max((epoch for epoch, start in segment.leader_epochs if start <= offset), default=-1)


def _without_deleted(
    segments: Sequence[CompleteSegment], deleted_end: int, left_out: list[Remark]
) -> list[CompleteSegment]:
    kept = []
    for segment in segments:
        if segment.meta.end_offset <= deleted_end:
            text = f"the log starts at {deleted_end}: it was being deleted"
            left_out.append(Remark(segment.index_key, text))
        else:
            kept.append(segment)
    return kept


def _overlapping(segments: Sequence[CompleteSegment]) -> Iterator[list[CompleteSegment]]:
    """Yield the segments in groups that do not overlap one another; most have one member."""
    group: list[CompleteSegment] = []
    end_offset = 0
    for segment in sorted(segments, key=_place):
        if group and segment.meta.base_offset >= end_offset:
            yield group
            group, end_offset = [], 0
        group.append(segment)
        end_offset = max(end_offset, segment.meta.end_offset)
    if group:
        yield group


def _without_superseded(
    segments: Sequence[CompleteSegment], left_out: list[Remark]
) -> list[CompleteSegment]:
    kept: list[CompleteSegment] = []
    for segment in sorted(segments, key=lambda s: (-s.meta.leader_epoch, _place(s))):
        rival = next((other for other in kept if not agree(segment.meta, other.meta)), None)
        if rival is None:
            kept.append(segment)
        else:
            text = f"superseded by a later leader's records, in {rival.index_key}"
            left_out.append(Remark(segment.index_key, text))
    return kept


def _without_rewritten(
    segments: Sequence[CompleteSegment], left_out: list[Remark]
) -> list[CompleteSegment]:
    """Leave out segments that rewritten ones replace: they may have fewer records."""
    kept = []
    for segment in segments:
        end_offset, newer = segment.meta.base_offset, ""
        for other in sorted(segments, key=_place):
            is_newer = other.meta.rewrite_epoch > segment.meta.rewrite_epoch
            if is_newer and other.meta.base_offset <= end_offset < other.meta.end_offset:
                end_offset, newer = other.meta.end_offset, other.index_key
        if end_offset < segment.meta.end_offset:
            kept.append(segment)
        else:
            left_out.append(Remark(segment.index_key, f"rewritten since, as {newer}"))
    return kept


def _has_offsets_of(one: CompleteSegment, other: CompleteSegment) -> bool:
    return (
        one.meta.base_offset <= other.meta.base_offset
        and one.meta.end_offset >= other.meta.end_offset
    )


def _without_repeated(
    segments: Sequence[CompleteSegment], continued: Set[bytes], left_out: list[Remark]
) -> list[CompleteSegment]:
    """Leave out segments that another segment wholly covers, unless the chain continues them.

    Such a copy was complete when its leader crashed, and the segment was copied again.
    """
    kept = list(segments)
    for segment in sorted(segments, key=lambda s: s.meta.end_offset - s.meta.base_offset):
        if segment.chained_hash in continued:
            continue
        holder = next(
            (other for other in kept if other is not segment and _has_offsets_of(other, segment)),
            None,
        )
        if holder is not None:
            kept.remove(segment)
            text = f"the same records are in {holder.index_key}"
            left_out.append(Remark(segment.index_key, text))
    return kept


def _chain_problems(
    kept: Sequence[CompleteSegment], known: Sequence[CompleteSegment]
) -> list[Remark]:
    """Report segments that follow another by offset but continue no known hash."""
    bases = {segment.chained_hash: segment.meta.base_offset for segment in known}
    for segment in known:
        bases.update(segment.continued)
    problems = []
    first_end = end_offset = kept[0].meta.end_offset if kept else 0
    for segment in kept[1:]:
        meta = segment.meta
        is_new_chain = segment.previous_hash == NO_HASH or meta.base_offset > end_offset
        if not is_new_chain and not continues_chain(
            meta.base_offset, segment.previous_hash, first_end=first_end, bases=bases
        ):
            problems.append(Remark(segment.index_key, CHAIN_PROBLEM))
        end_offset = max(end_offset, meta.end_offset)
    return problems


def _last_run(
    kept: Sequence[CompleteSegment], left_out: list[Remark], problems: list[Remark]
) -> list[CompleteSegment]:
    """Return the segments without a gap up to the end, and report those before a gap."""
    run: list[CompleteSegment] = []
    end_offset = 0
    for segment in kept:
        if run and segment.meta.base_offset > end_offset:
            missing = _missing_before(segment, end_offset)
            text = f"{missing.text}, and the segments before it are left out"
            problems.append(Remark(segment.log_key, text))
            gap = f"[{end_offset}, {segment.meta.base_offset})"
            text = f"it is before the missing offsets {gap} and cannot be served"
            left_out += [Remark(before.index_key, text) for before in run]
            run = []
        run.append(segment)
        end_offset = max(end_offset, segment.meta.end_offset)
    return run


def _missing_before(segment: CompleteSegment, start: int) -> Remark:
    gap = f"[{start}, {segment.meta.base_offset})"
    return Remark(segment.log_key, f"offsets {gap} are missing before it")


def _is_dispensable(
    broken: BrokenSegment, run: Sequence[CompleteSegment], deleted_end: int
) -> bool:
    """Whether the run, or the deleted part, has all offsets of the broken segment."""
    if broken.end_offset is None:
        return False
    if broken.end_offset <= deleted_end:
        return True
    if not run:
        return False
    ends = max(segment.meta.end_offset for segment in run)
    return run[0].meta.base_offset <= broken.base_offset and broken.end_offset <= ends


def _leader_epoch_max(complete: Sequence[CompleteSegment], broken: Sequence[BrokenSegment]) -> int:
    epochs = [segment.leader_epoch for segment in broken]
    for segment in complete:
        epochs.append(segment.meta.leader_epoch)
        epochs += [epoch for epoch, _ in segment.meta.leader_epochs]
    return max(epochs, default=-1)

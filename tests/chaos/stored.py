"""What lies on the disks and in the object store after a run, against each other and the history.

Pure but for the two functions that read files. Batches are compared byte for byte, by
their digest; where segments are cut does not matter.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.errors import TidelogError
from tidelog_core.log.paths import LOG_SUFFIX, parse_segment_name
from tidelog_core.records.batch import decode_records, iter_headers

from tests.chaos.checker import Anomaly, Kind
from tests.chaos.history import FinalLog, Resent


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One record batch, ``[base_offset, next_offset)``."""

    base_offset: int
    next_offset: int
    producer_id: int  # -1: none
    producer_epoch: int
    digest: str  # of all its bytes
    values: tuple[str, ...]  # none of a marker


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The batches that one holder has of a partition, in order."""

    holder: str  # "node 1", or the key of a segment object
    batches: tuple[StoredBatch, ...]
    problem: str = ""  # what keeps the rest from being read
    # Offsets ``[start, end)`` whose bytes were in objects that are gone: the tier must have them.
    gone: tuple[tuple[int, int], ...] = ()

    def between(self, start: int, end: int) -> list[StoredBatch]:
        """Return the batches that lie wholly in ``[start, end)``."""
        return [b for b in self.batches if start <= b.base_offset and b.next_offset <= end]

    @property
    def start_offset(self) -> int | None:
        """The first offset that is here; None for an empty log."""
        return self.batches[0].base_offset if self.batches else None


def parse_log(holder: str, content: bytes) -> StoredLog:
    """Return the log in the bytes of its segments, back to back."""
    batches: list[StoredBatch] = []
    problem = ""
    try:
        for position, header in iter_headers(content):
            whole = content[position : position + header.size_bytes]
            digest = hashlib.sha256(whole).hexdigest()
            records = () if header.is_control else decode_records(content, position)
            values = tuple((record.value or b"").decode() for record in records)
            batches.append(
                StoredBatch(
                    header.base_offset,
                    header.next_offset,
                    header.producer_id,
                    header.producer_epoch,
                    digest,
                    values,
                )
            )
    except TidelogError as error:
        problem = str(error)
    return StoredLog(holder, tuple(batches), problem)


def read_local_log(holder: str, directory: Path) -> StoredLog:
    """Return a partition's log as its directory has it; empty where there is none."""
    if not directory.is_dir():
        return StoredLog(holder, ())
    segments = sorted(path for path in directory.glob(f"*{LOG_SUFFIX}") if _is_segment(path))
    return parse_log(holder, b"".join(path.read_bytes() for path in segments))


def _is_segment(path: Path) -> bool:
    return parse_segment_name(path.name) is not None


def compare_stored(
    final: FinalLog, replicas: Sequence[StoredLog], tier: Sequence[StoredLog]
) -> list[Anomaly]:
    """Return where replicas, tier and what was served differ.

    ``tier`` has one log a finished segment, in order. Only what is below the high
    watermark, which is the end of ``final``, is compared.
    """
    where = f"{final.topic}-{final.partition}"
    found = [
        Anomaly(Kind.STORED_DIFFERS, where, f"{log.holder} cannot be read: {log.problem}")
        for log in (*replicas, *tier)
        if log.problem
    ]
    held = [log for log in replicas if log.batches]
    for other in held[1:]:
        found += _compare_pair(where, Kind.DIVERGENCE, held[0], other, final.end_offset)
    for segment in tier:
        for replica in held:
            found += _compare_pair(where, Kind.TIER_DIFFERS, segment, replica, final.end_offset)
    found += _compare_ends(where, final, replicas, tier)
    found += _compare_served(where, final, (*replicas, *tier))
    return found


def completed(
    chains: StoredLog, tier: Sequence[StoredLog], *, log_start_offset: int = 0
) -> StoredLog:
    """Return what chains have, with what was collected of them because the tier has it.

    Where both have a batch, the one of the chains stays, to be compared with the tier's. What is
    gone and is not in the tier is a problem, unless the log starts behind it.
    """
    batches = {batch.base_offset: batch for log in tier for batch in log.batches}
    batches |= {batch.base_offset: batch for batch in chains.batches}
    ordered = tuple(batches[base_offset] for base_offset in sorted(batches))
    lost = [
        (max(start, log_start_offset), end)
        for start, end in chains.gone
        if end > log_start_offset and not _has_all(batches, max(start, log_start_offset), end)
    ]
    problem = chains.problem
    if lost and not problem:
        ranges = ", ".join(f"[{start}, {end})" for start, end in lost)
        problem = f"objects with the offsets {ranges} are gone, and the tier does not have them"
    return StoredLog(chains.holder, ordered, problem)


def _has_all(batches: Mapping[int, StoredBatch], start: int, end: int) -> bool:
    """Return whether batches have all offsets ``[start, end)``; the first may begin before."""
    at = max((offset for offset in batches if offset <= start), default=start)
    while at < end:
        batch = batches.get(at)
        if batch is None:
            return False
        at = batch.next_offset
    return True


def compare_copies(
    final: FinalLog, original: StoredLog, copies: Sequence[StoredLog]
) -> list[Anomaly]:
    """Return where copies differ from the log that counts; they may lack any of it."""
    where = f"{final.topic}-{final.partition}"
    found: list[Anomaly] = []
    for copy in copies:
        found += _compare_pair(where, Kind.DIVERGENCE, original, copy, final.end_offset)
    return found


def find_resent(final: FinalLog, logs: Sequence[StoredLog]) -> list[Resent]:
    """Return the values that one producer's epochs have once each, but more than one of them.

    ``logs`` are all holders of the partition; batches from the high watermark on do not count.
    """
    holders: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for log in logs:
        for batch in log.between(0, final.end_offset):
            for value in batch.values:
                holders[value][batch.base_offset] = batch.producer_id, batch.producer_epoch
    return [
        Resent(final.topic, final.partition, value)
        for value, batches in holders.items()
        if len(batches) > 1
        and len({producer_id for producer_id, _ in batches.values()}) == 1
        and len(set(batches.values())) == len(batches)
    ]


def _compare_pair(
    where: str, kind: Kind, one: StoredLog, other: StoredLog, high_watermark: int
) -> Iterator[Anomaly]:
    """Compare over the offsets that both have; tell the first difference."""
    if not one.batches or not other.batches:
        return
    start = max(one.batches[0].base_offset, other.batches[0].base_offset)
    ends = one.batches[-1].next_offset, other.batches[-1].next_offset
    end = min(high_watermark, *ends)
    first, second = one.between(start, end), other.between(start, end)
    for mine, theirs in zip(first, second, strict=False):
        if (mine.base_offset, mine.digest) != (theirs.base_offset, theirs.digest):
            detail = f"{one.holder} and {other.holder} differ at offset {mine.base_offset}"
            yield Anomaly(kind, where, f"{detail} (of {end})")
            return
    if len(first) != len(second):
        detail = f"{one.holder} has {len(first)} batches in [{start}, {end})"
        yield Anomaly(kind, where, f"{detail}, {other.holder} {len(second)}")


def _compare_ends(
    where: str, final: FinalLog, replicas: Sequence[StoredLog], tier: Sequence[StoredLog]
) -> Iterator[Anomaly]:
    """Every replica that is in sync reaches the high watermark once all is quiet.

    One that is empty may have been cut to where the tier ends.
    """
    tier_end = max((log.batches[-1].next_offset for log in tier if log.batches), default=0)
    for log in replicas:
        end = log.batches[-1].next_offset if log.batches else tier_end
        if end < final.end_offset:
            detail = f"{log.holder} ends at {end}, the high watermark is {final.end_offset}"
            yield Anomaly(Kind.DIVERGENCE, where, detail)


def _compare_served(where: str, final: FinalLog, logs: Sequence[StoredLog]) -> Iterator[Anomaly]:
    """Every record that was served is stored somewhere, and nothing else at its offset."""
    stored: dict[int, str] = {}
    for log in logs:
        for batch in log.batches:
            stored.update(enumerate(batch.values, batch.base_offset))
    for offset, value in final.records:
        if stored.get(offset) != value:
            detail = f"offset {offset} was served as {value!r}, stored is {stored.get(offset)!r}"
            yield Anomaly(Kind.STORED_DIFFERS, where, detail)
            return

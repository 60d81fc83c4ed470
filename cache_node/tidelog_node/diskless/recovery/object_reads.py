"""Plans the reads of objects that fill the logs of several partitions: each object once.

A leader's partitions share its objects. If each partition fetched its own slices, an object would
be read as often as it has partitions. So the reads go object by object. A log takes its slices in
order of offset, and a read has only slices whose predecessors come with it or before it: nothing is
kept for later.

    an object is read once all partitions that need it have what comes before

Partitions that were in their chains in different orders may wait for each other. Then an object is
read for those that are ready, and once more for the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tidelog_core.diskless.wal.epoch_chains import PartitionName

from tidelog_node.diskless.recovery.chain_slices import StoredObject, StoredSlice

WAVE_BYTES_MIN = 16 << 20  # the partitions of the first wave have no more together
WAVE_GROWTH = 8  # each wave may have so many times the bytes of the one before


class ObjectRead(NamedTuple):
    """Slices to read from one object, each partition's in order of offset."""

    place: StoredObject
    slices: Mapping[PartitionName, Sequence[StoredSlice]]


def plan_reads(missing: Mapping[PartitionName, Sequence[StoredSlice]]) -> Iterator[ObjectRead]:
    """Yield reads of all the slices; each partition's slices come in the order given."""
    left = {name: deque(_by_object(slices)) for name, slices in missing.items() if slices}
    needs: dict[StoredObject, int] = {}  # in how many places of the partitions' orders
    for parts in left.values():
        for place, _ in parts:
            needs[place] = needs.get(place, 0) + 1
    ready: dict[StoredObject, list[PartitionName]] = {}  # the partitions that need it next
    whole: deque[StoredObject] = deque()  # that nobody needs later

    def note_next(name: PartitionName) -> None:
        place = left[name][0][0]
        ready.setdefault(place, []).append(name)
        if len(ready[place]) == needs[place]:
            whole.append(place)

    for name in left:
        note_next(name)
    while ready:
        place = whole.popleft() if whole else _best_of(ready, needs)
        names = ready.pop(place)
        needs[place] -= len(names)
        yield ObjectRead(place, {name: left[name].popleft()[1] for name in names})
        for name in names:
            if left[name]:
                note_next(name)


def waves(sizes_bytes: Mapping[PartitionName, int]) -> list[list[PartitionName]]:
    """Return the partitions in groups that are led one after the other, short tails first.

    Those without a byte to check or to read are the first group. Later groups grow, so that an
    object is read for few of them.
    """
    ordered = sorted(sizes_bytes, key=lambda name: (sizes_bytes[name], name))
    found: list[list[PartitionName]] = []
    size_bytes, limit = 0, 0
    for name in ordered:
        if not found or (sizes_bytes[name] and size_bytes + sizes_bytes[name] > limit):
            found.append([])
            size_bytes = 0
            limit = limit * WAVE_GROWTH or (WAVE_BYTES_MIN if sizes_bytes[name] else 0)
        found[-1].append(name)
        size_bytes += sizes_bytes[name]
    return found


def _by_object(slices: Sequence[StoredSlice]) -> list[tuple[StoredObject, list[StoredSlice]]]:
    """Return the slices, neighbours of one object together."""
    parts: list[tuple[StoredObject, list[StoredSlice]]] = []
    for one in slices:
        place = StoredObject(one.chain, one.sequence)
        if not parts or parts[-1][0] != place:
            parts.append((place, []))
        parts[-1][1].append(one)
    return parts


def _best_of(
    ready: Mapping[StoredObject, Sequence[PartitionName]], needs: Mapping[StoredObject, int]
) -> StoredObject:
    """Return the object that the fewest partitions will need again."""
    return min(ready, key=lambda place: (needs[place] - len(ready[place]), place))

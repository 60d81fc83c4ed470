"""What goes into one object, and what waits for the next one."""

from __future__ import annotations

from tidelog_core.diskless.chain.noted_ranges import ForeignRange, NotedRange, NotedRanges
from tidelog_core.diskless.wal.epoch_chains import PartitionName

from tests.support.wal_objects import TOPIC_ID, foreign_slice

P0, P1 = PartitionName(TOPIC_ID, 0), PartitionName(TOPIC_ID, 1)


def test_a_reference_does_not_overtake_the_range_before_it() -> None:
    waiting = NotedRanges(300)
    before, reference = NotedRange(P1, 7, 0, 20, 250), foreign_slice(base_offset=20)
    waiting.add(before, 5.0)
    waiting.add_reference(reference, 6.0)
    first = waiting.take()
    assert (first.ranges, first.references) == ((before,), ())
    assert waiting.has(P1)
    assert waiting.first_ms == 5.0
    second = waiting.take()
    assert (second.ranges, second.references) == ((), (reference,))
    assert not waiting.has(P1)
    assert (waiting.size_bytes, waiting.first_ms) == (0, None)


def test_no_partition_waits_for_a_busier_one() -> None:
    waiting = NotedRanges(300)
    for number in range(3):
        waiting.add(NotedRange(P0, 7, number, number + 1, 200), 0.0)
    waiting.add(NotedRange(P1, 7, 0, 1, 200), 0.0)
    waiting.add_foreign(ForeignRange(P0, 1, 100), 0.0)
    taken = [waiting.take() for _ in range(4)]
    assert [[part.partition.partition for part in one.ranges] for one in taken] == [
        [0],
        [1],
        [0],
        [0],
    ]
    assert [len(one.foreign) for one in taken] == [0, 1, 0, 0]
    assert waiting.size_bytes == 0

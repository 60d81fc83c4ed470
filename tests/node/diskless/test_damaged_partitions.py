"""Partitions whose records are damaged are tried again less and less often."""

from __future__ import annotations

from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import CorruptObject
from tidelog_node.diskless.takeover.damaged_partitions import DamagedPartitions

RETRY = 1.0, 30.0

A, B = (PartitionName(UUID(int=1), number) for number in range(2))


def test_a_damaged_one_waits_longer_after_every_try_and_others_do_not() -> None:
    damaged = DamagedPartitions()
    waited: list[float] = []
    for _ in range(8):
        damaged.note(A, CorruptObject("key", "damaged"))
        by_delay = {
            name: s for s, names in damaged.delays([A, B], *RETRY).items() for name in names
        }
        assert by_delay[B] == 1
        waited.append(by_delay[A])
    assert waited == [1, 2, 4, 8, 16, 30, 30, 30]


def test_another_failure_in_between_and_success_begin_again() -> None:
    damaged = DamagedPartitions()
    for end in (lambda: damaged.delays([A], *RETRY), lambda: damaged.forget([A])):
        for _ in range(3):
            damaged.note(A, CorruptObject("key", "damaged"))
            damaged.delays([A], *RETRY)
        end()  # A store that was away, then; or it is led.
        assert len(damaged) == 0
        damaged.note(A, CorruptObject("key", "damaged"))
        assert damaged.delays([A], *RETRY) == {1: [A]}
        damaged.forget([A])


def test_what_was_noted_of_one_that_is_led_elsewhere_by_now_is_forgotten() -> None:
    damaged = DamagedPartitions()
    damaged.note(A, CorruptObject("key", "damaged"))
    damaged.forget([A])
    assert damaged.delays([A], *RETRY) == {1: [A]}
    assert len(damaged) == 0

"""The appends that a chain has not committed are counted, in little memory."""

from __future__ import annotations

from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_node.diskless.chain.pending_appends import RUN_COUNT_MAX, PendingAppends

P0, P1 = (PartitionName(UUID(int=1), number) for number in range(2))


def test_appends_are_settled_by_the_offsets_that_are_committed() -> None:
    appends = PendingAppends()
    appends.add(P0, 10, RUN_COUNT_MAX)
    appends.add(P0, 20, 5)
    appends.add(P1, 3, 2)
    assert appends.count == RUN_COUNT_MAX + 7
    appends.settle(P0, 9)
    assert appends.count == RUN_COUNT_MAX + 7
    appends.settle(P0, 19)
    assert appends.count == 7
    appends.settle(P0, 20)
    appends.settle(P0, 30)
    assert appends.count == 2
    appends.clear()
    appends.settle(P1, 3)
    assert appends.count == appends.size_bytes == 0


def test_many_appends_are_kept_as_few_runs() -> None:
    appends = PendingAppends()
    for number in range(10_000):
        appends.add(P0, number + 1, 1)
    assert len(appends._runs[P0]) == -(-10_000 // RUN_COUNT_MAX)
    appends.settle(P0, 5_000)
    assert 5_000 <= appends.count < 5_000 + RUN_COUNT_MAX
    appends.settle(P0, 10_000)
    assert appends.count == 0

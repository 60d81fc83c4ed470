"""A leader whose answers change nothing is asked again after a pause, as in Kafka's fetcher."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.node.replication.following_by_hand import (
    FollowingByHand,
    following_by_hand,
    leaders_batches,
)

BATCHES = leaders_batches(6)
FOR_EVER_S = 3_600.0


def take(
    leader: FollowingByHand,
    records: Sequence[bytes],
    *,
    other: Sequence[bytes] = (),
    diverging: tuple[int, int] | None = None,
) -> None:
    """Apply an answer for partition 0, and for partition 1 if it has records."""
    answered = {0: records, 1: other} if other else {0: records}
    assert leader.answer(answered, high_watermark=0, diverging=diverging).apply_turn()


def has(leader: FollowingByHand, partition: int) -> int:
    return leader.node.replica(partition).log.log_end_offset


@pytest.mark.parametrize(
    "useless", [BATCHES[:1], [BATCHES[2][:-1]], [BATCHES[2][:20]]], ids=["below", "cut", "torn"]
)
async def test_a_partition_whose_leader_sends_nothing_to_append_waits(
    tmp_path: Path, useless: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the records, or the first batch is not whole."""
    async with following_by_hand(tmp_path, partition_count=2) as leader:
        leader.backoff_s = FOR_EVER_S
        assert leader.fetch() == {0: 0, 1: 0}
        take(leader, BATCHES[:2], other=BATCHES[:1])
        leader.fetch()
        take(leader, useless)
        leader.fetch()
        take(leader, useless, other=BATCHES[1:3])
        assert leader.fetch() == {1: 3}
        assert leader.forgotten == [0]
        # The other partition is followed as before.
        assert leader.answer({1: BATCHES[3:]}, high_watermark=0).apply_turn()
        assert (has(leader, 0), has(leader, 1)) == (2, 6)
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(record.message, getattr(record, "partition", "")) for record in said] == [
        ("leader's answers change nothing, will retry", "t-0")
    ]


async def test_a_partition_whose_leader_names_a_divergence_that_is_none_waits(
    tmp_path: Path,
) -> None:
    async with following_by_hand(tmp_path, partition_count=2) as leader:
        leader.backoff_s = FOR_EVER_S
        leader.fetch()
        take(leader, BATCHES[:2], other=BATCHES[:1])
        for _ in range(2):
            leader.fetch()
            take(leader, (), diverging=(0, 2))
        leader.fetch()
        assert leader.forgotten == [0]
        assert has(leader, 0) == 2


async def test_one_answer_with_known_records_makes_no_pause(tmp_path: Path) -> None:
    """Two fetches that are under way may be answered with the same records."""
    async with following_by_hand(tmp_path, partition_count=2) as leader:
        leader.backoff_s = FOR_EVER_S
        leader.fetch()
        for count in range(1, 6):
            take(leader, BATCHES[count - 1 : count], other=BATCHES[count - 1 : count])
            assert leader.fetch() == {0: count, 1: count}
            take(leader, BATCHES[count - 1 : count])
            leader.fetch()
            assert leader.forgotten == []


async def test_a_partition_is_fetched_again_after_the_pause(tmp_path: Path) -> None:
    async with following_by_hand(tmp_path, partition_count=2) as leader:
        leader.fetch()
        take(leader, BATCHES[:2], other=BATCHES[:1])
        for _ in range(5):
            leader.fetch()
            take(leader, BATCHES[:1])
        leader.fetch()
        take(leader, BATCHES[2:])
        assert has(leader, 0) == 6

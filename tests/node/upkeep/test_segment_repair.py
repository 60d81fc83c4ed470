"""What a node does about one damaged segment, with a leader that answers what the test says."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.errors import StorageError
from tidelog_node.follower import turn_room
from tidelog_node.replicas.replica import Replica
from tidelog_node.upkeep import segment_repair

from tests.node.replication.scripted_leader import OF_A_LATER_KAFKA
from tests.node.upkeep.repair_world import mending

CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE = 2, 1
LEADER_EPOCH_POSITION = 15  # its lowest byte


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_repair, "RETRY_SECONDS_MAX", 0.0)


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """Return what the repair said at the level, and the reason with it."""
    return [
        f"{record.message} {getattr(record, 'reason', '')}"
        for record in caplog.records
        if record.name == segment_repair.__name__ and record.levelno == level
    ]


async def test_a_follower_puts_the_leaders_batches_in_the_place_of_damaged_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with mending(tmp_path) as one:
        one.leader.answers = [(0, one.whole[1])]
        await one.follow()
        for _ in range(3):
            one.damage(1)
            await one.attempt(1)
            assert one.paths[1].read_bytes() == one.whole[1]
        kept = one.node.directories.quarantine(one.replica)
        first, second, _ = sorted(kept.iterdir())
        first.unlink()  # A person has seen enough of it.
        one.damage(1)
        await one.attempt(1)
        assert second.exists()
        assert len(list(kept.iterdir())) == 3
        assert one.health.is_well
    assert len(said(caplog, logging.WARNING)) == 4


async def test_the_leaders_batches_are_taken_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_room, "TURN_BATCHES_MAX", 1)
    async with mending(tmp_path) as one:
        one.leader.answers = [(0, one.whole[1])]
        await one.follow()
        one.damage(1)
        await one.attempt(1)
        assert one.paths[1].read_bytes() == one.whole[1]
        assert one.leader.asked_count == 1


async def test_a_batch_of_another_leader_epoch_is_replaced_and_never_taken_from_the_leader(
    tmp_path: Path,
) -> None:
    """No CRC covers the epoch; the log's own checkpoint tells which it was."""
    async with mending(tmp_path) as one:
        damaged = bytearray(one.whole[1])
        damaged[LEADER_EPOCH_POSITION] ^= 1
        one.paths[1].write_bytes(damaged)
        one.leader.answers = [(0, bytes(damaged)), (0, one.whole[1])]
        await one.follow()
        await one.attempt(1)
        assert one.paths[1].read_bytes() == damaged
        await one.attempt(1)
        assert one.paths[1].read_bytes() == one.whole[1]
        assert one.health.is_well


async def test_an_answer_of_a_later_version_is_waited_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async with mending(tmp_path) as one:
        one.leader.answers = [(OF_A_LATER_KAFKA, b""), (0, one.whole[1])]
        await one.follow()
        one.damage(1)
        await one.attempt(1)
        assert any(str(OF_A_LATER_KAFKA) in line for line in said(caplog, logging.INFO))
        await one.attempt(1)
        assert one.paths[1].read_bytes() == one.whole[1]


async def test_what_nobody_has_thought_of_does_not_end_the_mending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with mending(tmp_path) as one:
        one.trouble = ValueError("nobody knows")
        one.damage(1)
        await one.attempt(1)
        one.trouble, one.leader.answers = None, [(0, one.whole[1])]
        await one.follow()
        await one.attempt(1)
        assert one.paths[1].read_bytes() == one.whole[1]
    assert [line for line in said(caplog, logging.ERROR) if "broke" in line]


async def test_a_segment_that_is_damaged_on_the_leader_too_is_not_handed_back_and_forth(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with mending(tmp_path) as one:
        one.leader.answers = [(CORRUPT_MESSAGE, b"")]
        one.damage(1)
        await one.attempt(1)
        assert one.offered == [(2, 3)]
        await one.follow()
        await one.attempt(1)
        assert not any("nowhere else" in line for line in said(caplog, logging.ERROR))
        await one.lead()
        await one.attempt(1)
        assert one.offered == [(2, 3), (3,)]
        await one.lead(isr=(1, 2))
        await one.attempt(1, times=3)
        assert one.offered[2:] == [()] * 3
        assert len([x for x in said(caplog, logging.ERROR) if "nowhere else" in x]) == 1


async def test_a_follower_says_that_the_only_other_copy_is_damaged_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with mending(tmp_path) as one:
        one.leader.answers = [(CORRUPT_MESSAGE, b"")]
        await one.follow(isr=(1, 2))
        one.damage(1)
        await one.attempt(1, times=3)
        assert len([x for x in said(caplog, logging.ERROR) if "nowhere else" in x]) == 1
        # It is mended where another copy comes up.
        one.leader.answers = [(0, one.whole[1])]
        await one.attempt(1)
        assert one.paths[1].read_bytes() == one.whole[1]


async def test_a_diskless_leader_gives_its_log_up_and_stops_leading(tmp_path: Path) -> None:
    """Its chains have everything: with what is left the log could not be tiered."""
    async with mending(tmp_path, is_diskless=True) as one:
        asked: list[Replica] = []
        one.node.replicas.roles.unentered_lead.subscribe(asked.append)
        pending = one.node.send(b"pending")
        one.damage(1)
        await one.attempt(1)
        assert (await pending).error_code is ErrorCode.not_leader_or_follower
        assert (one.replica.is_leader, one.replica.chain) == (False, None)
        assert one.replica.damage is not None
        assert asked == [one.replica]
        assert not one.offered


@pytest.mark.parametrize("answer", ["gap", "no such offset"])
async def test_a_log_whose_segment_the_leader_cannot_give_is_fetched_again_as_a_whole(
    answer: str, tmp_path: Path
) -> None:
    """As where the leader was compacted once, or its log begins inside the segment."""
    async with mending(tmp_path) as one:
        second = len(one.whole[1]) // 2  # It has two batches of one size.
        gap, refusal = (0, one.whole[1][second:]), (OFFSET_OUT_OF_RANGE, b"")
        one.leader.answers = [gap if answer == "gap" else refusal]
        await one.follow()
        one.damage(1)
        await one.attempt(1, times=segment_repair.UNLIKE_ATTEMPTS_MAX - 1)
        assert one.replica.damage is None
        await one.attempt(1)
        assert str(one.paths[1]) in str(one.replica.damage)


async def test_a_segment_that_cannot_be_copied_though_it_is_whole_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with mending(tmp_path) as one:
        base_offset = int(one.paths[1].stem)
        one.repair.suspect(one.replica.partition, base_offset, StorageError("no index"))
        await one.repair.attempt_due()
        await one.attempt(2)  # The scrubber has misread: nothing is to be done.
    assert [line for line in said(caplog, logging.ERROR) if "no index" in line]
    assert len(said(caplog, logging.ERROR)) == 1


async def test_a_damaged_segment_that_retention_takes_was_not_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with mending(tmp_path) as one:
        one.damage(0)
        await one.lead(isr=(1,))
        await one.attempt(0)
        assert not one.health.is_well
        one.replica.log.advance_log_start_offset(int(one.paths[1].stem))
        await one.attempt(0)
        assert one.health.is_well
    assert not any("replaced" in line for line in said(caplog, logging.WARNING))
    assert any("gone" in line for line in said(caplog, logging.WARNING))

"""What may happen to a partition between two turns that apply one answer of its leader."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.records import AckedBy
from tidelog_core.replication.follower_state import Append
from tidelog_node.follower import turn_room
from tidelog_node.follower.fetched_answer import FetchedAnswer

from tests.node.replication.following_by_hand import (
    FollowingByHand,
    bytes_of,
    following_by_hand,
    leaders_batches,
)
from tests.node.replication.led_node import LedNode
from tests.node.replication.test_following_sessions import SECONDS_MAX, following, held
from tests.support.hand_chain import DISKLESS
from tests.support.waiting import eventually_async

TURN, COUNT = 7, 40  # batches of a turn, and of an answer
BATCHES = leaders_batches(COUNT)


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_room, "TURN_BATCHES_MAX", TURN)


def apply_rest(answer: FetchedAnswer) -> int:
    """Apply turns until none is left; return how many that took."""
    count = 1
    while not answer.apply_turn():
        count += 1
        assert count <= COUNT
    return count


async def test_an_answer_is_applied_in_turns_of_whole_batches(tmp_path: Path) -> None:
    async with following_by_hand(tmp_path) as leader:
        log = leader.node.replica().log
        assert leader.fetch() == {0: 0}
        answer = leader.answer({0: BATCHES}, high_watermark=COUNT - 2)
        ends = []
        while not answer.apply_turn():
            ends.append(log.log_end_offset)
            assert log.high_watermark == log.log_end_offset
        assert ends == [7, 14, 21, 28, 35]
        assert (log.log_end_offset, log.high_watermark) == (COUNT, COUNT - 2)
        assert bytes_of(leader.node.replica()) == b"".join(BATCHES)
        assert leader.fetch() == {0: COUNT}


async def test_an_answer_that_fits_is_applied_in_one_turn(tmp_path: Path) -> None:
    async with following_by_hand(tmp_path) as leader:
        leader.fetch()
        assert leader.answer({0: BATCHES[:TURN]}, high_watermark=0).apply_turn()
        assert leader.fetch() == {0: TURN}


async def test_a_turn_ends_behind_the_batch_that_reaches_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following_by_hand(tmp_path) as leader:
        log = leader.node.replica().log
        monkeypatch.setattr(turn_room, "TURN_BYTES_MAX", 2 * len(BATCHES[0]) + 1)
        leader.fetch()
        answer = leader.answer({0: BATCHES}, high_watermark=0)
        assert not answer.apply_turn()
        assert log.log_end_offset == 3
        monkeypatch.setattr(turn_room, "TURN_BYTES_MAX", 1)
        assert not answer.apply_turn()
        assert log.log_end_offset == 4
        apply_rest(answer)
        assert bytes_of(leader.node.replica()) == b"".join(BATCHES)


async def test_a_batch_that_is_cut_at_the_end_takes_no_turns_for_ever(tmp_path: Path) -> None:
    async with following_by_hand(tmp_path) as leader:
        leader.fetch()
        answer = leader.answer({0: [*BATCHES[:TURN], BATCHES[TURN][:-1]]}, high_watermark=0)
        assert not answer.apply_turn()
        assert apply_rest(answer) == 1
        assert leader.fetch() == {0: TURN}


async def test_partitions_share_the_room_of_a_turn(tmp_path: Path) -> None:
    """The results of many partitions take time even without records."""
    async with following_by_hand(tmp_path, partition_count=3) as leader:
        leader.fetch()
        first, second, third = (leader.node.replica(index).log for index in range(3))
        answer = leader.answer({0: BATCHES[:4], 1: BATCHES[:4], 2: BATCHES[:4]}, high_watermark=9)
        assert not answer.apply_turn()
        assert [log.log_end_offset for log in (first, second, third)] == [4, 2, 0]
        assert apply_rest(answer) == 1
        assert [log.log_end_offset for log in (first, second, third)] == [4, 4, 4]
        assert leader.fetch() == {0: 4, 1: 4, 2: 4}


async def test_results_without_records_are_applied_in_turns(tmp_path: Path) -> None:
    count = 2 * TURN + 1
    async with following_by_hand(tmp_path, partition_count=count) as leader:
        logs = [leader.node.replica(index).log for index in range(count)]
        named = dict.fromkeys(range(count), BATCHES[:1])
        leader.fetch()
        apply_rest(leader.answer(named, high_watermark=0))
        leader.fetch()
        answer = leader.answer(dict.fromkeys(range(count), ()), high_watermark=1)
        for applied in (TURN, 2 * TURN):
            assert not answer.apply_turn()
            assert sum(log.high_watermark for log in logs) == applied
        assert answer.apply_turn()
        assert all(log.high_watermark == 1 for log in logs)


# -- what changes between two turns --


async def applied_around(
    leader: FollowingByHand, change: Callable[[LedNode], Awaitable[None] | None]
) -> None:
    """Apply one turn of an answer, make the change, and apply the rest."""
    leader.fetch()
    answer = leader.answer({0: BATCHES}, high_watermark=COUNT)
    assert not answer.apply_turn()
    changing = change(leader.node)
    if changing is not None:
        await changing
    apply_rest(answer)


async def test_the_rest_is_fetched_again_if_the_log_was_truncated(tmp_path: Path) -> None:
    async with following_by_hand(tmp_path) as leader:
        log = leader.node.replica().log
        await applied_around(leader, lambda _: log.truncate_to(3))
        assert log.log_end_offset == 3
        assert leader.fetch() == {0: 3}
        apply_rest(leader.answer({0: BATCHES[3:]}, high_watermark=COUNT))
        assert bytes_of(leader.node.replica()) == b"".join(BATCHES)


async def test_the_rest_is_dropped_if_the_log_begins_elsewhere(tmp_path: Path) -> None:
    """As at the tier's end, which may be beyond what the answer has."""
    async with following_by_hand(tmp_path) as leader:
        log = leader.node.replica().log
        await applied_around(leader, lambda _: log.truncate_fully_and_start_at(20))
        assert (log.local_log_start_offset, log.log_end_offset) == (20, 20)
        assert leader.fetch() == {0: 20}


async def test_the_rest_is_dropped_in_a_new_leader_epoch(tmp_path: Path) -> None:
    """The leader may have other records there by now."""
    async with following_by_hand(tmp_path) as leader:
        await applied_around(leader, lambda node: node.change_partition(leader_epoch=1))
        log = leader.node.replica().log
        assert (log.log_end_offset, log.high_watermark) == (TURN, TURN)
        leader.fetch()  # The partition is removed from the session first.
        assert leader.answer({}, high_watermark=0).apply_turn()
        assert leader.fetch() == {0: TURN}


async def test_the_rest_is_dropped_by_a_node_that_leads_now(tmp_path: Path) -> None:
    async with following_by_hand(tmp_path) as leader:
        change = {"leader": 1, "leader_epoch": 1}
        await applied_around(leader, lambda node: node.change_partition(**change))
        replica = leader.node.replica()
        assert replica.is_leader
        assert replica.log.log_end_offset == TURN
        leader.node.send(b"own", acks=1)
        assert replica.log.log_end_offset == TURN + 1


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_the_rest_is_dropped_once_the_partition_is_gone(
    tmp_path: Path, *, is_deleted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with following_by_hand(tmp_path, partition_count=2) as leader:
        first, second = leader.node.replica(), leader.node.replica(1)
        leader.fetch()
        answer = leader.answer({0: BATCHES, 1: BATCHES}, high_watermark=COUNT)
        assert not answer.apply_turn()
        if is_deleted:
            await leader.node.delete_topic()
        else:
            await leader.node.change_partition(replicas=(2, 3), isr=(2, 3))
        apply_rest(answer)
        assert first.is_dropped
        assert second.is_dropped is is_deleted
        if not is_deleted:
            assert second.log.log_end_offset == COUNT
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_no_records_are_appended_once_the_partition_is_diskless(tmp_path: Path) -> None:
    """They come from the bucket. The leader's high watermark goes to the partition's feed."""
    async with following_by_hand(tmp_path) as leader:
        wal = (EpochChain(0, ChainName(2, UUID(int=2)), 0),)
        await applied_around(
            leader, lambda node: node.change_partition(acked_by=AckedBy.CHAIN, wal=wal)
        )
        replica = leader.node.replica()
        assert replica.is_diskless
        assert replica.log.log_end_offset == TURN
        assert leader.told == [(replica, Append(COUNT, 0))]


async def test_the_rest_is_appended_to_a_log_that_was_replaced_by_an_equal_one(
    tmp_path: Path,
) -> None:
    async with following_by_hand(tmp_path) as leader:
        replica = leader.node.replica()

        def replace(_: LedNode) -> None:
            before = replica.log
            before._segments.go_offline()
            before.close()
            replica.take(replica.reopen(None))

        await applied_around(leader, replace)
        assert bytes_of(replica) == b"".join(BATCHES)
        assert replica.log.high_watermark == COUNT


async def test_the_rest_is_dropped_if_a_shorter_log_has_replaced_the_log(tmp_path: Path) -> None:
    async with following_by_hand(tmp_path) as leader:
        replica = leader.node.replica()

        def lose_two(_: LedNode) -> None:
            before = replica.log
            before._segments.go_offline()
            before.close()
            (path,) = before.directory.glob("*.log")
            os.truncate(path, path.stat().st_size * (TURN - 2) // TURN)
            replica.take(replica.reopen(None))

        await applied_around(leader, lose_two)
        assert replica.log.log_end_offset == TURN - 2
        leader.fetch()  # The partition is removed from the session first.
        assert leader.answer({}, high_watermark=0).apply_turn()
        assert leader.fetch() == {0: TURN - 2}


async def test_a_log_that_goes_offline_between_turns_holds_up_no_other(tmp_path: Path) -> None:
    async with following_by_hand(tmp_path, partition_count=2) as leader:
        first, second = leader.node.replica(), leader.node.replica(1)
        leader.fetch()
        answer = leader.answer({0: BATCHES, 1: BATCHES}, high_watermark=COUNT)
        assert not answer.apply_turn()
        first.log.take_offline()
        apply_rest(answer)
        assert first.log.log_end_offset == TURN
        assert bytes_of(second) == b"".join(BATCHES)
        assert leader.fetch() == {1: COUNT}  # The first one waits.


async def test_a_damaged_batch_of_a_later_turn_leaves_what_was_applied(tmp_path: Path) -> None:
    async with following_by_hand(tmp_path, partition_count=2) as leader:
        damaged = bytearray(BATCHES[TURN + 1])
        damaged[-1] ^= 1
        records = {0: [*BATCHES[: TURN + 1], bytes(damaged), *BATCHES[TURN + 2 :]], 1: BATCHES}
        leader.fetch()
        apply_rest(leader.answer(records, high_watermark=COUNT))
        assert leader.node.replica().log.log_end_offset == TURN
        assert bytes_of(leader.node.replica(1)) == b"".join(BATCHES)
        assert leader.fetch() == {1: COUNT}  # The first one waits.


async def test_a_diskless_partition_is_heard_of_once_its_result_is_applied(tmp_path: Path) -> None:
    """Else its old high watermark would count as the one of the answer."""
    count = TURN + 1
    async with following_by_hand(tmp_path, partition_count=count, **DISKLESS) as leader:
        roles = [leader.node.replica(index).role for index in range(count)]
        followers = [role.follower for role in roles if role is not None]
        marks: dict[int, tuple[bytes, ...]] = dict.fromkeys(range(count), ())
        begun_ms = leader.node.now_ms

        def heard() -> set[float]:
            return {follower.heard_ms for follower in followers if follower is not None}

        leader.fetch()
        first = leader.answer(marks, high_watermark=0, answered_ms=begun_ms + 10)
        assert not first.apply_turn()
        assert heard() == {begun_ms}
        assert first.apply_turn()
        assert heard() == {begun_ms + 10}
        leader.fetch()
        second = leader.answer(marks, high_watermark=0, answered_ms=begun_ms + 20)
        assert not second.apply_turn()
        assert heard() == {begun_ms + 10}
        assert second.apply_turn()
        assert heard() == {begun_ms + 20}


# -- the fetcher --


async def test_the_fetcher_lets_others_run_between_turns_and_fetches_nothing_twice(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as (node, leader):
        await held(leader)
        for offset in range(COUNT):
            leader.append(0, b"%d" % offset)
        log, ends = node.replica().log, set()
        async with asyncio.timeout(SECONDS_MAX):
            while log.high_watermark < COUNT:
                ends.add(log.log_end_offset)
                await asyncio.sleep(0)
        assert ends >= {7, 14, 21, 28, 35}
        await held(leader)
        assert leader.seen[-1].named == {0: COUNT}
        assert leader.sent_count == COUNT
        assert leader.connection_count == 1


async def test_an_answer_before_another_one_leaves_nothing_unfetched(tmp_path: Path) -> None:
    """The buffer is needed for the next answer, so the rest of the first one is dropped.

    The leader sends a mark that moves without records once. So it must be asked for again.
    """
    async with following(tmp_path) as (node, leader):
        leader.append(2, b"record", is_committed=False)
        await eventually_async(lambda: node.replica(2).log.log_end_offset == 1, "it is there")
        await held(leader)
        # News that the leader has not looked for yet. Another fetch makes it answer the held one.
        leader.logs[0].batches += BATCHES
        leader.logs[0].high_watermark = COUNT
        leader.logs[2].high_watermark = 1
        await node.change_partition(1, leader_epoch=1)
        logs = [node.replica(index).log for index in range(3)]
        await eventually_async(lambda: logs[0].high_watermark == COUNT, "all is there")
        await eventually_async(lambda: logs[2].high_watermark == 1, "the mark has moved")
        assert bytes_of(node.replica()) == b"".join(BATCHES)
        leader.append(1, b"record")
        await eventually_async(lambda: logs[1].log_end_offset == 1, "it is followed")
        assert leader.connection_count == 1


async def test_a_fetcher_that_is_closed_between_turns_leaves_the_rest(tmp_path: Path) -> None:
    async with following(tmp_path) as (node, leader):
        await held(leader)
        for offset in range(COUNT):
            leader.append(0, b"%d" % offset)
        log = node.replica().log
        async with asyncio.timeout(SECONDS_MAX):
            while log.log_end_offset < 2 * TURN:
                assert log.log_end_offset in {0, TURN}
                await asyncio.sleep(0)
        end_offset = log.log_end_offset
    # One more turn may have been scheduled already.
    assert log.log_end_offset <= end_offset + TURN < COUNT

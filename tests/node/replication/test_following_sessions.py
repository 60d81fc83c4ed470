"""What a follower asks a leader that keeps fetch sessions, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.errors import (
    ErrorCode,
    StorageError,
    TierUnavailable,
    UnknownTopicOrPartition,
)
from tidelog_core.metadata import records
from tidelog_node.follower import fetcher
from tidelog_node.follower.fetchers import FollowerFetchers
from tidelog_node.follower.followed import PartitionAnswer
from tidelog_node.follower.turn_room import TurnRoom
from tidelog_node.follower.wire import FetchedPartition

from tests.node.replication.led_node import LedNode, led_node
from tests.node.replication.session_leader import LedLog, SessionLeader, session_leader
from tests.node.replication.test_leader_answers import fetchers_of
from tests.support.waiting import eventually_async

SECONDS_MAX = 60.0
LONG_MS = 120_000  # a held fetch that nothing ends would fail the test
QUICK_MS = 20


@asynccontextmanager
async def following(
    folder: Path,
    *,
    partition_count: int = 5,
    wait_ms: int = LONG_MS,
    backoff_ms: int = QUICK_MS,
) -> AsyncIterator[tuple[LedNode, SessionLeader]]:
    """A node that follows every partition of a topic at the model leader."""
    async with fetching(
        folder, partition_count=partition_count, wait_ms=wait_ms, backoff_ms=backoff_ms
    ) as (node, leader, _):
        yield node, leader


@asynccontextmanager
async def fetching(
    folder: Path,
    *,
    partition_count: int = 5,
    wait_ms: int = LONG_MS,
    backoff_ms: int = QUICK_MS,
) -> AsyncIterator[tuple[LedNode, SessionLeader, FollowerFetchers]]:
    """Like ``following``, with the fetchers."""
    config = NodeConfig(replica_fetch_wait_max_ms=wait_ms, replica_fetch_backoff_ms=backoff_ms)
    async with led_node(folder, config) as node, session_leader(node) as leader:
        replica = await node.create_topic(leader=2, partition_count=partition_count)
        leader.topic_id = replica.topic_id.bytes
        leader.logs = {index: LedLog() for index in range(partition_count)}
        replicas = [node.replica(index) for index in range(partition_count)]
        await eventually_async(
            lambda: all(one.is_follower for one in replicas), "the logs are open"
        )
        fetchers = fetchers_of(node)
        fetchers.start()
        try:
            yield node, leader, fetchers
        finally:
            await fetchers.close()


async def held(leader: SessionLeader) -> None:
    """Wait until the leader holds a fetch of a session."""
    await eventually_async(
        lambda: len(leader.seen) > len(leader.answered) and leader.seen[-1].max_wait_ms > 0,
        "a fetch is held",
    )


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_one_full_fetch_is_followed_by_empty_ones(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path, wait_ms=QUICK_MS) as (_, leader):
            await eventually_async(lambda: len(leader.answered) > 4, "it goes on")
            first, *others = leader.seen
            assert (first.session_epoch, first.max_wait_ms) == (0, 0)
            assert first.named == dict.fromkeys(range(5), 0)
            assert [(seen.session_id, seen.session_epoch) for seen in others[:3]] == [
                (1, 1),
                (1, 2),
                (1, 3),
            ]
            assert not any(seen.named or seen.forgotten for seen in others)
            assert all(seen.max_wait_ms == QUICK_MS for seen in others)
            assert not any(leader.answered[2:])

    run(test())


def test_a_record_makes_the_next_fetch_name_its_partition_alone(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path) as (node, leader):
            await held(leader)
            for _ in range(3):
                before = len(leader.seen)
                leader.append(3, b"record")
                await eventually_async(lambda: len(leader.seen) > before, "it goes on")  # noqa: B023
                await held(leader)
            assert [seen.named for seen in leader.seen[-3:]] == [{3: 1}, {3: 2}, {3: 3}]
            assert node.replica(3).log.log_end_offset == 3
            assert node.replica(3).log.high_watermark == 3
            assert [answered for answered in leader.answered if answered][1:] == [[3]] * 3

    run(test())


def test_marks_that_move_without_records_are_taken(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path, wait_ms=QUICK_MS) as (node, leader):
            leader.append(2, b"record", is_committed=False)
            log = node.replica(2).log
            await eventually_async(lambda: log.log_end_offset == 1, "the record is there")
            assert log.high_watermark == 0
            leader.logs[2].high_watermark = 1
            await eventually_async(lambda: log.high_watermark == 1, "the high watermark has moved")
            leader.logs[2].log_start_offset = 1
            await eventually_async(lambda: log.log_start_offset == 1, "the log start has moved")
            # It tells the leader where its log starts.
            await eventually_async(lambda: leader.seen[-1].named == {2: 1}, "it is told")

    run(test())


def test_a_new_partition_does_not_wait_for_the_held_fetch(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path) as (node, leader):
            await held(leader)
            begun = time.monotonic()
            await node.change_partition(1, leader_epoch=1)
            await eventually_async(lambda: leader.seen[-1].named == {1: 0}, "it is asked for")
            await held(leader)
            assert time.monotonic() - begun < LONG_MS / 2000
            assert leader.connection_count == 1
            assert leader.seen[-1].session_id == 1
            # Forgotten first: in the new epoch the leader begins with it as with a new one.
            assert leader.seen[-2].forgotten == [1]
            leader.append(1, b"record")
            await eventually_async(
                lambda: node.replica(1).log.log_end_offset == 1, "it is followed"
            )

    run(test())


def test_what_another_node_leads_is_forgotten(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path, wait_ms=QUICK_MS) as (node, leader):
            await eventually_async(lambda: bool(leader.sessions), "there is a session")
            await node.change_partition(4, leader=3, leader_epoch=1)
            await eventually_async(
                lambda: any(seen.forgotten == [4] for seen in leader.seen), "it is forgotten"
            )
            await node.change_partition(2, leader=1, leader_epoch=1)
            await eventually_async(
                lambda: any(seen.forgotten == [2] for seen in leader.seen), "it is forgotten"
            )
            (kept,) = leader.sessions.values()
            assert sorted(index for _, index in kept.offsets) == [0, 1, 3]

    run(test())


def test_a_partition_with_an_error_is_left_out_for_a_while(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path, wait_ms=QUICK_MS) as (node, leader):
            await eventually_async(lambda: bool(leader.sessions), "there is a session")
            leader.logs[1].error = ErrorCode.not_leader_or_follower
            leader.stir()
            await eventually_async(
                lambda: any(seen.forgotten == [1] for seen in leader.seen), "it is forgotten"
            )
            await eventually_async(lambda: leader.seen[-1].named == {1: 0}, "it is tried again")
            leader.logs[1].error = ErrorCode.none
            leader.append(1, b"record")
            await eventually_async(lambda: node.replica(1).log.log_end_offset == 1, "it goes on")
            assert leader.connection_count == 1

    run(test())


def test_a_log_in_trouble_is_left_out_and_told_of_everything_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its high watermark may be lower than before, and the leader must send its own again."""
    monkeypatch.setattr(fetcher, "TROUBLE_SECONDS", 0.2)

    async def test() -> None:
        async with following(tmp_path, wait_ms=QUICK_MS) as (node, leader):
            leader.append(0, b"record")
            replica = node.replica(0)
            await eventually_async(lambda: replica.log.high_watermark == 1, "it is committed")
            replica.log.take_offline()
            replica.note_failure(StorageError("the disk has failed"))
            await eventually_async(
                lambda: any(seen.forgotten == [0] for seen in leader.seen), "it is forgotten"
            )
            before = replica.log
            before.close()
            after = replica.reopen(None)
            replica.take(after)
            assert after.high_watermark == 0
            await eventually_async(lambda: after.high_watermark == 1, "it is told again")
            assert leader.connection_count == 1

    run(test())


def test_records_that_a_second_fetch_brings_again_are_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the partition would not be followed for seconds, and leave the ISR."""

    async def test() -> None:
        async with fetching(tmp_path) as (node, leader, fetchers):
            leader.append(0, b"record")
            replica = node.replica(0)
            await eventually_async(lambda: replica.log.log_end_offset == 1, "it is followed")
            await held(leader)
            # A fetch that was sent before the record came is answered after the next one was sent.
            key = (leader.topic_id, 0)
            (one,) = fetchers._fetchers.values()
            records = memoryview(bytearray(leader.logs[0].batches[0]))
            answer = FetchedPartition(leader.topic_id, 0, 0, 1, 0, None, records)
            asked = one._session.last_asked(key)
            assert asked is not None
            assert asked.offset == 1
            assert one.followed.take(PartitionAnswer(key, asked, answer), TurnRoom()) is None
            assert not [record for record in caplog.records if record.levelname == "ERROR"]
            leader.append(0, b"next")
            await eventually_async(lambda: replica.log.log_end_offset == 2, "it is followed on")

    run(test())


def test_a_start_that_is_not_found_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried five times a second, for every partition, while the bucket is away."""

    async def found() -> None:
        pass

    async def away() -> None:
        raise TierUnavailable("the bucket is away")

    async def test() -> None:
        async with fetching(tmp_path, partition_count=1) as (_, leader, fetchers):
            await held(leader)
            (one,) = fetchers._fetchers.values()
            (followed,) = one.followed._partitions.values()
            for begin, count in ((away, 1), (away, 1), (found, 1), (away, 2)):
                one.followed._start(followed, begin())
                assert followed.task is not None
                await asyncio.wait([followed.task])
                await asyncio.sleep(0)
                assert caplog.messages.count("no new start found, will retry") == count

    run(test())


def test_nothing_is_said_of_a_start_that_is_looked_for_while_the_topic_is_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with fetching(tmp_path, partition_count=1) as (node, leader, fetchers):
            await held(leader)
            (one,) = fetchers._fetchers.values()
            (followed,) = one.followed._partitions.values()

            async def delete() -> None:
                await node.store.commit([records.delete(node.view.image.topics["t"])])
                await node.view.refresh()
                raise UnknownTopicOrPartition("t-0 was deleted")

            one.followed._start(followed, delete())
            assert followed.task is not None
            await asyncio.wait([followed.task])
            await asyncio.sleep(0)
            assert not len(one.followed)
            assert "no new start found, will retry" not in caplog.messages

    run(test())


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    ],
)
def test_a_session_that_the_leader_does_not_know_is_begun_again(
    tmp_path: Path, error: ErrorCode
) -> None:
    async def test() -> None:
        async with following(tmp_path, wait_ms=QUICK_MS) as (node, leader):
            leader.append(3, b"record")
            await eventually_async(lambda: len(leader.seen) > 5, "it goes on")
            before = len(leader.seen)
            leader.slots, leader.next_error = 2, error
            await eventually_async(lambda: len(leader.seen) > before + 3, "it goes on")
            full = [seen for seen in leader.seen if seen.session_epoch == 0]
            assert len(full) == 2
            assert full[1].named == {0: 0, 1: 0, 2: 0, 3: 1, 4: 0}
            assert leader.connection_count == 1
            assert full[1].session_id == (0 if error is ErrorCode.fetch_session_id_not_found else 1)
            leader.append(3, b"another")
            await eventually_async(lambda: node.replica(3).log.log_end_offset == 2, "it goes on")

    run(test())


def test_sessions_that_are_lost_again_and_again_are_not_asked_for_without_rest(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with following(tmp_path) as (_, leader):
            begun, count = time.monotonic(), 30
            while len(leader.seen) < count:
                leader.sessions.clear()
                leader.stir()
                assert time.monotonic() < begun + SECONDS_MAX
                await asyncio.sleep(0)
            full = [seen for seen in leader.seen if seen.session_epoch == 0]
            assert time.monotonic() - begun > (len(full) / 2 - 2) * QUICK_MS / 1000

    run(test())


def test_after_a_lost_answer_everything_is_asked_for_again(tmp_path: Path) -> None:
    """The leader has counted the fetch whose answer is lost."""

    async def test() -> None:
        async with following(tmp_path) as (node, leader):
            await held(leader)
            leader.answers_to_lose = 1
            leader.append(2, b"record")
            log = node.replica(2).log
            await eventually_async(lambda: log.high_watermark == 1, "nothing is lost")
            assert leader.connection_count == 2
            assert list(leader.sessions) == [2]

    run(test())


def test_two_fetchers_that_use_one_session_both_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path, wait_ms=QUICK_MS) as (node, leader):
            log = node.replica(0).log
            for _ in range(3):
                await eventually_async(lambda: bool(leader.sessions), "there is a session")
                for kept in leader.sessions.values():
                    kept.epoch += 1  # someone else has fetched in it
                leader.append(0, b"record")
                await eventually_async(
                    lambda: log.high_watermark == leader.logs[0].high_watermark, "it goes on"
                )

    run(test())


def test_a_leader_that_restarts_is_followed_in_a_new_session(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path, wait_ms=QUICK_MS) as (node, leader):
            await eventually_async(lambda: bool(leader.sessions), "there is a session")
            leader.sessions.clear()
            leader.answers_to_lose = 1
            leader.append(0, b"record")
            log = node.replica(0).log
            await eventually_async(lambda: log.high_watermark == 1, "it goes on")

    run(test())


def test_a_leader_without_sessions_is_asked_for_everything_each_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path) as (node, leader):
            leader.slots = 0
            leader.sessions.clear()
            leader.stir()
            await held(leader)
            leader.append(1, b"record")
            await eventually_async(lambda: node.replica(1).log.high_watermark == 1, "it goes on")
            await held(leader)
            assert leader.seen[-1].named == {0: 0, 1: 1, 2: 0, 3: 0, 4: 0}
            assert leader.seen[-1].session_epoch == 0
            # What is new does not wait for the held fetch, which is given up.
            await node.change_partition(2, leader_epoch=1)
            await eventually_async(lambda: leader.connection_count > 1, "another fetch is sent")
            leader.append(2, b"record")
            await eventually_async(
                lambda: node.replica(2).log.high_watermark == 1, "it is followed"
            )

    run(test())


def test_many_partitions_come_into_the_session_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "NEW_MAX", 7)

    async def test() -> None:
        async with following(tmp_path, partition_count=40) as (node, leader):
            await held(leader)
            named = [sorted(seen.named) for seen in leader.seen]
            assert named == [list(range(start, min(start + 7, 40))) for start in range(0, 40, 7)]
            assert [seen.session_epoch for seen in leader.seen] == [0, 1, 2, 3, 4, 5]
            assert [seen.max_wait_ms for seen in leader.seen] == [0] * 5 + [LONG_MS]
            leader.append(39, b"record")
            await eventually_async(
                lambda: node.replica(39).log.high_watermark == 1, "it is followed"
            )

    run(test())


def test_records_of_many_hot_partitions_are_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "NEW_MAX", 7)
    count, rounds = 40, 4

    async def test() -> None:
        async with following(tmp_path, partition_count=count) as (node, leader):
            await held(leader)
            for end in range(1, rounds + 1):
                for index in range(count):
                    leader.append(index, b"record")
                logs = [node.replica(index).log for index in range(count)]
                await eventually_async(
                    lambda: all(log.log_end_offset == end for log in logs),  # noqa: B023
                    "all are there",
                )
            assert leader.sent_count == count * rounds

    run(test())


def test_a_fetch_of_more_bytes_is_told_of_every_partition(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path, wait_ms=QUICK_MS) as (node, leader):
            await eventually_async(lambda: len(leader.answered) > 2, "there is a session")
            node.config = NodeConfig(replica_fetch_wait_max_ms=QUICK_MS, replica_fetch_max_bytes=9)
            await eventually_async(lambda: list(leader.sessions) == [2], "there is another session")

    run(test())


HASTY = "leader answers at once without news, is asked after pauses"


@pytest.mark.parametrize("names_all", [False, True], ids=["empty", "all partitions"])
def test_a_leader_that_holds_no_fetch_is_asked_after_pauses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, names_all: bool
) -> None:
    """Otherwise both nodes would do nothing else."""

    async def test() -> None:
        async with following(tmp_path, backoff_ms=LONG_MS) as (node, leader):
            await held(leader)
            leader.is_hasty, leader.names_all = True, names_all
            leader.stir()
            await eventually_async(lambda: HASTY in caplog.messages, "it is said", 30.0)
            count = len(leader.seen)
            await asyncio.sleep(0.1)
            assert len(leader.seen) == count
            # What is new to follow ends a pause.
            await node.change_partition(1, leader_epoch=1)
            await eventually_async(
                lambda: any(seen.forgotten == [1] for seen in leader.seen), "it is asked for"
            )
            await eventually_async(
                lambda: any(seen.named == {1: 0} for seen in leader.seen), "it is asked for"
            )

    run(test())


def test_a_leader_that_holds_fetches_again_is_followed_without_pauses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with following(tmp_path) as (node, leader):
            await held(leader)
            leader.is_hasty = True
            leader.stir()
            await eventually_async(lambda: HASTY in caplog.messages, "it is said", 30.0)
            leader.is_hasty = False
            log = node.replica(3).log
            for count in range(1, 30):
                leader.append(3, b"record")
                await eventually_async(lambda: log.high_watermark == count, "it goes on")  # noqa: B023
            assert caplog.messages.count(HASTY) == 1

    run(test())


def test_a_session_that_is_empty_for_a_moment_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader closes it, while the next fetch of it is on its way."""

    async def test() -> None:
        async with fetching(tmp_path, partition_count=1) as (node, leader, fetchers):
            await held(leader)
            (one,) = fetchers._fetchers.values()
            leader.may_close.clear()
            await node.change_partition(0, leader_epoch=1)
            await eventually_async(lambda: leader.seen[-1].forgotten == [0], "it is forgotten")
            await eventually_async(lambda: under_way_count(one) == 1, "the held one is answered")
            await node.change_partition(0, leader_epoch=2)
            await eventually_async(lambda: under_way_count(one) == 2, "another one is sent")
            leader.may_close.set()
            leader.append(0, b"record")
            log = node.replica(0).log
            await eventually_async(lambda: log.high_watermark == 1, "it is followed")
            assert leader.connection_count == 1
        said = [one.message for one in caplog.records if one.levelname in ("WARNING", "ERROR")]
        assert said == []

    run(test())


def under_way_count(one: fetcher.LeaderFetcher) -> int:
    connection = one._connection
    return 0 if connection is None else connection.under_way_count

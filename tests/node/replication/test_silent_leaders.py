"""For how long a diskless replica serves consumers that has lost touch with its leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from tidelog_core.config import NodeConfig

from tests.node.replication.led_node import LedNode, led_node
from tests.node.replication.session_leader import LedLog, SessionLeader, session_leader
from tests.node.replication.test_leader_answers import fetchers_of
from tests.support.hand_chain import DISKLESS
from tests.support.waiting import eventually_async

SILENCE_MS = 30_000
QUICK = NodeConfig(
    replica_fetch_wait_max_ms=20,
    replica_fetch_backoff_ms=20,
    replica_lag_time_max_ms=SILENCE_MS,
)
HELD_MS = 5_000  # by the real clock
SECONDS_MAX = 60.0


@asynccontextmanager
async def following(folder: Path, **configs: str) -> AsyncIterator[tuple[LedNode, SessionLeader]]:
    """A node that follows a partition whose leader answers."""
    async with led_node(folder, QUICK) as node, session_leader(node) as leader:
        replica = await node.create_topic(leader=2, **configs)
        leader.topic_id, leader.logs = replica.topic_id.bytes, {0: LedLog()}
        fetchers = fetchers_of(node)
        fetchers.start()
        try:
            await until_answered(leader)
            yield node, leader
        finally:
            await fetchers.close()


async def until_answered(leader: SessionLeader, *, count: int = 3) -> None:
    """Return when the leader has answered some more fetches."""
    before = len(leader.answered)
    await eventually_async(
        lambda: len(leader.answered) >= before + count, "the leader has answered"
    )


def code(node: LedNode) -> ErrorCode:
    error: ErrorCode = node.read(0).error_code
    return error


async def held_read(node: LedNode) -> Any:
    """Return a consumer's fetch that waits for records."""
    held = node.read(0, max_wait_ms=HELD_MS)
    await asyncio.sleep(0)
    assert not held.done()
    return held


async def test_a_leader_that_answers_without_news_is_heard(tmp_path: Path) -> None:
    async with following(tmp_path, **DISKLESS) as (node, leader):
        for _ in range(3):
            node.now_ms += SILENCE_MS - 1
            assert code(node) is ErrorCode.none
            await until_answered(leader)
        node.may_serve = False  # The node has no lease: it does without.
        assert code(node) is ErrorCode.none


async def test_consumers_go_elsewhere_once_the_leader_has_been_silent(tmp_path: Path) -> None:
    async with following(tmp_path, **DISKLESS) as (node, leader):
        held = await held_read(node)
        leader.is_silent = True
        leader.stir()
        await eventually_async(lambda: leader.refused_count > 2, "the leader answers nothing")
        node.now_ms += SILENCE_MS + 1
        answer = await asyncio.wait_for(held, SECONDS_MAX)
        assert answer.error_code is ErrorCode.not_leader_or_follower
        assert code(node) is ErrorCode.not_leader_or_follower
        leader.is_silent = False
        await eventually_async(
            lambda: code(node) is ErrorCode.none, "it serves again what it knows"
        )


async def test_a_broker_that_leads_no_more_says_nothing_about_the_partition(
    tmp_path: Path,
) -> None:
    async with following(tmp_path, **DISKLESS) as (node, leader):
        held = await held_read(node)
        leader.logs[0].error = ErrorCode.not_leader_or_follower
        leader.stir()
        await until_answered(leader)
        node.now_ms += SILENCE_MS + 1
        answer = await asyncio.wait_for(held, SECONDS_MAX)
        assert answer.error_code is ErrorCode.not_leader_or_follower
        await until_answered(leader)
        assert code(node) is ErrorCode.not_leader_or_follower


async def test_another_leader_gets_its_time(tmp_path: Path) -> None:
    async with following(tmp_path, **DISKLESS) as (node, leader):
        leader.is_silent = True
        node.now_ms += SILENCE_MS - 1
        await node.change_partition(leader=3, leader_epoch=1)
        assert node.read(0, leader_epoch=1).error_code is ErrorCode.none
        node.now_ms += SILENCE_MS + 1
        refused = node.read(0, leader_epoch=1).error_code
        assert refused is ErrorCode.not_leader_or_follower


async def test_replicated_partitions_are_bounded_by_the_lease_as_before(tmp_path: Path) -> None:
    async with following(tmp_path) as (node, leader):
        leader.is_silent = True
        node.now_ms += SILENCE_MS + 1
        assert code(node) is ErrorCode.none
        node.may_serve = False
        assert code(node) is ErrorCode.not_leader_or_follower

"""Producers that are sent to coordinators of before, which have not heard of the next one.

A client asks one thing after the other, and again where that may help, but each time perhaps
another node: the leadership moves, answers of brokers about it are old, and the store loses
some of its own answers. Whatever happens, nobody is told anything of a transaction that is
not true of this one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.errors import NotCoordinator, OutcomeUnknown, StoreUnavailable, TidelogError
from tidelog_core.metadata.coordination.groups import CommittedOffset
from tidelog_core.metadata.store import Write
from tidelog_core.model import TopicPartition
from tidelog_node.groups.classic_messages import GroupCaller

from tests.node.transactions.world import (
    GROUP,
    PARTITIONS,
    TXN,
    Client,
    Node,
    TransactionWorld,
    play,
)
from tests.support.coordinator_node import create_topic, topic_id

TRANSACTIONS = 25
MOVES_PART = 0.15  # of the requests come after another move
STALE_PART = 0.5  # of the requests go to a node of before
LOST_PART = 0.1  # of the commits, half of them carried out


class Wanderer:
    """Has a client ask any of the nodes, and the world change in between."""

    def __init__(self, world: TransactionWorld, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        world.ask = self.ask  # type: ignore[method-assign]
        world.store.on_commit = self._on_commit

    async def ask(
        self, request: Callable[[Node], Awaitable[ErrorCode]], *, tries_again: bool = True
    ) -> ErrorCode:
        assert tries_again
        while True:
            if self._chance.random() < MOVES_PART and len(self._world.nodes) < 60:
                await self._retried(self._world.take_over)
            is_stale = self._chance.random() < STALE_PART
            node = self._chance.choice(self._world.nodes) if is_stale else self._world.node
            try:
                error = await request(node)
            except TidelogError:
                await asyncio.sleep(0.05)
                continue
            if error is not ErrorCode.concurrent_transactions and not error.retriable:
                return error
            await asyncio.sleep(0.05)

    def _on_commit(self, writes: Sequence[Write]) -> Exception | None:
        if writes[0].id.key != TXN or self._chance.random() >= LOST_PART:
            return None
        return self._chance.choice([OutcomeUnknown("no answer"), StoreUnavailable("away")])

    async def _retried(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            await act()
        except TidelogError:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_no_answer_is_about_another_transaction(tmp_path: Path, seed: int, version: int) -> None:
    async def scene(world: TransactionWorld) -> None:
        chance = random.Random(f"{seed} {version}")
        Wanderer(world, chance)
        client = await Client.begin(world, version=version)
        expected = {}
        for number in range(TRANSACTIONS):
            partitions = chance.sample(PARTITIONS, chance.randint(1, len(PARTITIONS)))
            is_commit = chance.random() < 0.7
            value = f"t{number}"
            assert await client.write(value, partitions) is ErrorCode.none
            assert await client.end(is_commit=is_commit) is ErrorCode.none, value
            expected[value] = {"committed" if is_commit else "aborted"}
        world.store.on_commit = lambda _: None
        await world.settle()
        await asyncio.sleep(5)
        assert world.outcomes() == expected

    play(tmp_path, scene)


@pytest.mark.parametrize("seed", range(4))
def test_no_node_tells_a_reader_offsets_of_before(tmp_path: Path, seed: int) -> None:
    """Whichever node is asked: offsets are committed last, or told to wait for an end."""

    async def scene(world: TransactionWorld) -> None:
        chance = random.Random(seed)
        Wanderer(world, chance)
        client = await Client.begin(world, version=2)
        answer_count, last = 0, None

        async def read(*, is_pending: bool) -> None:
            nonlocal answer_count
            for node in chance.choices(world.nodes, k=5):
                try:
                    unstable = await node.offsets.unstable(GROUP)
                    found = await node.groups.fetch_offsets(GROUP, {"t": [0]})
                except TidelogError:
                    continue  # Not its coordinator, as it has heard by now.
                answer_count += 1
                assert unstable or not is_pending, "what is pending is not told of"
                offsets = [offset.offset for offset in found.values()]
                assert unstable or offsets == ([] if last is None else [last])

        for number in range(TRANSACTIONS):
            assert await client.commit_offset(number) is ErrorCode.none
            await read(is_pending=True)
            is_commit = chance.random() < 0.7
            assert await client.end(is_commit=is_commit) is ErrorCode.none
            last = number if is_commit else last
            await read(is_pending=False)
        assert answer_count > TRANSACTIONS

    play(tmp_path, scene)


def test_a_node_that_does_not_know_a_topic_yet_does_not_say_that_nothing_is_committed_of_it(
    tmp_path: Path,
) -> None:
    """A reader would begin by its reset policy."""

    async def scene(world: TransactionWorld) -> None:
        before = world.node
        await world.take_over()
        await create_topic(world.store, "new", 1)
        await world.node.view.refresh()
        value = CommittedOffset(7, -1, "", world.now_ms())
        error = await world.node.groups.commit_offsets(
            GROUP,
            {("new", topic_id("new")): {0: value}},
            GroupCaller(),
        )
        assert error is ErrorCode.none
        for partitions in ({"new": [0]}, None):
            with pytest.raises(NotCoordinator):
                await before.groups.fetch_offsets(GROUP, partitions)
            found = await world.node.groups.fetch_offsets(GROUP, partitions)
            assert found[TopicPartition("new", 0)].offset == 7

    play(tmp_path, scene)

"""Schedules of share group members that join, stall, die and come back, on coordinators that
crash and move, in virtual time.

Requests and answers are delayed and lost, the store is slow, fails and loses outcomes, topics
come, grow and go, and the shards move to another coordinator, while the old one is still at
work and does not know. What always holds: a member's epoch never goes back while it is the
same member. When chaos ends, every partition that anyone subscribes to is read, nobody is
left with nothing to read, and moves of the shards are not noticed any more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.config import NodeConfig

from tests.node.coordinator.group_world import (
    INTERVAL_S,
    SEEDS_PER_TEST,
    SESSION_S,
    TIMEOUT_S,
    Client,
    GroupWorld,
    live,
)
from tests.node.coordinator.share_members import heartbeat
from tests.support.virtual_time import run


class ShareWorld(GroupWorld):
    """One share group: partitions may be with many."""

    first_clients_max = 8

    def new_client(self, name: str, topics: tuple[str, ...]) -> Client:
        return ShareClient(self, name, None, topics, member_id=f"{name}-first")

    def check_owners(self) -> None:
        """Whoever reads a partition says nothing of the others."""

    def check_shared_out(self) -> None:
        living = [client for client in self.clients if client.is_alive]
        there = self.partitions()
        wanted = {(t, p) for t, p in there if any(t in c.topics for c in living)}
        assert set().union(*(client.in_use for client in living)) == wanted
        for client in living:
            assert all(topic in client.topics for topic, _ in client.in_use)
            assert client.in_use or not any(topic in client.topics for topic, _ in there)


@dataclass
class ShareClient(Client):
    """A member, after Java's ``ShareMembershipManager``."""

    must_say_all: bool = True

    def subscribes_anew(self) -> None:
        self.must_say_all = True

    def lose(self) -> None:
        super().lose()
        self.must_say_all = True

    async def turn(self) -> float:
        world = self.world
        sent_at = world.now
        names = self.topics if self.must_say_all else None
        answer = await self.send(self.epoch, subscribed_topics=names)
        if answer is None or isinstance(answer, ErrorCode):
            self.must_say_all = True
            return 0.2
        if answer.error is not ErrorCode.none:
            return self.react(answer.error)
        assert answer.member_epoch >= self.epoch, "a member's epoch only grows"
        self.answered_at, self.epoch, self.must_say_all = sent_at, answer.member_epoch, False
        if answer.assigned is not None:
            ids = world.broker.view.image.topic_names
            self.use({(ids[p.topic_id], p.partition) for p in answer.assigned if p.topic_id in ids})
        return INTERVAL_S

    async def send(self, epoch: int, **fields: Any) -> Any:
        beat, broker = heartbeat(self.member_id, epoch, **fields), self.world.broker
        return await self.ask(lambda: broker.coordinator.share_heartbeat("g", beat), TIMEOUT_S)

    def react(self, error: ErrorCode) -> float:
        self.world.log(f"{self.name} is told {error.name}")
        match error:
            case (
                ErrorCode.fenced_member_epoch
                | ErrorCode.unknown_member_id
                | ErrorCode.group_id_not_found
            ):
                self.lose()
            case ErrorCode.coordinator_not_available | ErrorCode.not_coordinator:
                self.must_say_all = True
                return 0.2
            case _:
                raise AssertionError(f"{self.name} heard {error.name}")
        return 0.1

    async def leave(self) -> None:
        await self.send(-1)
        self.member_id = f"{self.name}-{self.world.random.getrandbits(32):08x}"
        self.lose()
        await asyncio.sleep(self.world.random.uniform(0, SESSION_S))


CONFIG = NodeConfig(
    group_share_session_timeout_ms=int(SESSION_S * 1000),
    group_share_heartbeat_interval_ms=int(INTERVAL_S * 1000),
)


def test_every_partition_is_read_by_someone_in_the_end() -> None:
    for seed in range(SEEDS_PER_TEST):
        run(live(seed, ShareWorld, CONFIG))


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(SEEDS_PER_TEST, 300, SEEDS_PER_TEST))
def test_the_same_holds_in_many_more_schedules(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        run(live(seed, ShareWorld, CONFIG))

"""Hundreds of schedules of consumers that join, stall, die and come back, on coordinators
that crash and move, in virtual time.

Consumers of KIP-848 and, in some worlds, classic ones share a group. Requests and answers
are delayed and lost, the store is slow, fails and loses outcomes, topics come, grow and
go, and the shards move to another coordinator, while the old one is still at work and
does not know. What always holds: no partition is used by two consumers at once, where a
consumer stops by itself when it has not been answered for a session. When chaos ends,
everything is shared out, and moves of the shards are not noticed any more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.coordination.consumer_groups import TopicIdPartition
from tidelog_core.model import TopicPartition
from tidelog_node.groups.classic_messages import GroupCaller, MemberIdentity
from tidelog_node.groups.consumer.heartbeat import ConsumerHeartbeat
from tidelog_node.groups.migration.consumer_protocol import decode_assignment, encode_assignment

from tests.node.coordinator.group_world import (
    INTERVAL_S,
    SEEDS_PER_TEST,
    SESSION_S,
    TIMEOUT_S,
    Client,
    GroupWorld,
    live,
)
from tests.support.group_requests import join, subscription_with_owned, sync
from tests.support.virtual_time import run

REBALANCE_S = 20.0


@dataclass
class ConsumerWorld(GroupWorld):
    """One group of consumers: no partition is with two of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds = self.random.choice(("new", "new", "eager", "cooperative"))

    def new_client(self, name: str, topics: tuple[str, ...]) -> Client:
        parts: dict[str, Any] = {"world": self, "name": name, "topics": topics}
        parts["instance"] = f"i-{name}" if self.random.random() < 0.25 else None
        if self.kinds == "new" or self.random.random() < 0.5:
            return NewClient(**parts, member_id=f"{name}-first")
        return ClassicClient(**parts, is_eager=self.kinds == "eager")

    def check_owners(self) -> None:
        owners: dict[tuple[UUID | None, int], str] = {}
        for client in self.clients:
            for topic, partition in client.in_use:
                other = owners.setdefault((client.topic_id(topic), partition), client.name)
                assert other == client.name, (
                    f"{topic}-{partition} is used by {other} and {client.name}"
                )

    def check_shared_out(self) -> None:
        living = [client for client in self.clients if client.is_alive]
        shares = [client.in_use for client in living]
        wanted = {(t, p) for t, p in self.partitions() if any(t in c.topics for c in living)}
        assert sorted(p for share in shares for p in share) == sorted(wanted)
        for client in living:
            assert all(topic in client.topics for topic, _ in client.in_use)
        if all(isinstance(c, NewClient) for c in living) and len({c.topics for c in living}) == 1:
            sizes = [len(share) for share in shares]
            assert max(sizes) - min(sizes) <= 1


@dataclass
class NewClient(Client):
    """A consumer of KIP-848, after Java's ``ConsumerMembershipManager``."""

    must_say_all: bool = True
    must_say_owned: bool = False
    topic_ids: dict[str, UUID] = field(default_factory=dict)  # of what it has been given

    def topic_id(self, topic: str) -> UUID | None:
        return self.topic_ids[topic]

    def subscribes_anew(self) -> None:
        self.must_say_all = True

    async def turn(self) -> float:
        world = self.world
        is_full = self.must_say_all or self.epoch == 0
        owned = frozenset(TopicIdPartition(self.topic_ids[name], p) for name, p in self.owned)
        sent_at = world.now
        answer = await self.send(
            self.epoch,
            rebalance_timeout_ms=int(REBALANCE_S * 1000) if is_full else None,
            subscribed_topics=self.topics if is_full else None,
            owned=owned if is_full or self.must_say_owned else None,
        )
        if answer is None or isinstance(answer, ErrorCode):
            self.must_say_all = True
            return 0.2
        if answer.error is not ErrorCode.none:
            return self.react(answer.error)
        assert answer.member_epoch >= self.epoch, "a member's epoch only grows"
        self.answered_at = sent_at
        self.epoch = answer.member_epoch
        self.must_say_all = self.must_say_owned = False
        if answer.assigned is None:
            return INTERVAL_S
        names = world.broker.view.image.topic_names
        assigned = {
            (names[p.topic_id], p.partition) for p in answer.assigned if p.topic_id in names
        }
        topic_ids = {names[p.topic_id]: p.topic_id for p in answer.assigned if p.topic_id in names}
        # A topic that is gone and has been made anew is another one.
        kept = {(t, p) for t, p in self.owned & assigned if topic_ids[t] == self.topic_ids[t]}
        if kept == assigned == self.owned:
            return INTERVAL_S
        if self.owned - kept:
            await asyncio.sleep(world.random.uniform(0, 3))  # its last records, and its commit
            if world.now >= self.answered_at + SESSION_S:
                return 0.0
            self.use(kept)
        self.topic_ids = topic_ids
        self.use(assigned)
        self.must_say_owned = True
        return 0.01

    async def send(self, epoch: int, **fields: Any) -> Any:
        heartbeat = ConsumerHeartbeat(
            **{
                "member_id": self.member_id,
                "member_epoch": epoch,
                "instance_id": self.instance,
                "rack_id": None,
                "rebalance_timeout_ms": None,
                "subscribed_topics": None,
                "subscribed_pattern": None,
                "assignor": None,
                "owned": None,
                "client_id": self.name,
                "client_host": "/127.0.0.1",
                **fields,
            }
        )
        broker = self.world.broker
        return await self.ask(
            lambda: broker.coordinator.consumer_heartbeat("g", heartbeat), TIMEOUT_S
        )

    def react(self, error: ErrorCode) -> float:
        self.world.log(f"{self.name} is told {error.name}")
        self.must_say_all = True
        match error:
            case (
                ErrorCode.fenced_member_epoch
                | ErrorCode.unknown_member_id
                | ErrorCode.group_id_not_found
            ):
                self.lose()
            case ErrorCode.unreleased_instance_id:
                return 1.0
            case ErrorCode.fenced_instance_id:
                self.is_alive = False
            case ErrorCode.coordinator_not_available | ErrorCode.not_coordinator:
                return 0.2
            case _:
                raise AssertionError(f"{self.name} heard {error.name}")
        return 0.1

    async def leave(self) -> None:
        await self.send(-1 if self.instance is None or self.world.chance(0.5) else -2)
        self.member_id = f"{self.name}-{self.world.random.getrandbits(32):08x}"
        self.lose()
        await asyncio.sleep(self.world.random.uniform(0, SESSION_S))


@dataclass
class ClassicClient(Client):
    """A consumer that joins by JoinGroup, and leads where it must."""

    is_eager: bool = True
    must_join: bool = True
    shared_out: set[tuple[str, int]] | None = None  # by this one, the leader

    def subscribes_anew(self) -> None:
        self.must_join = True

    def lose(self) -> None:
        super().lose()
        self.must_join = True

    async def turn(self) -> float:
        has_news = self.shared_out not in (None, self.world.partitions())
        if self.must_join or has_news:
            return await self.rejoin()
        sent_at, broker = self.world.now, self.world.broker
        error = await self.ask(
            lambda: broker.coordinator.heartbeat(
                "g", GroupCaller(self.member_id, self.instance, self.epoch)
            ),
            TIMEOUT_S,
        )
        if error is ErrorCode.none:
            self.answered_at = sent_at
        return INTERVAL_S if error is ErrorCode.none else self.react(error)

    async def rejoin(self) -> float:
        self.must_join = True  # until it has heard what it is to have
        if self.is_eager:
            self.use(set())
        said = set(self.owned)
        request = join(
            self.member_id,
            new=f"{self.name}-{self.world.random.getrandbits(32):08x}",
            instance=self.instance,
            protocols=(
                (
                    "range" if self.is_eager else "cooperative-sticky",
                    subscription_with_owned(self.topics, self.owned),
                ),
            ),
            session_timeout_ms=int(SESSION_S * 1000),
            rebalance_timeout_ms=int(REBALANCE_S * 1000),
        )
        broker, sent_at = self.world.broker, self.world.now
        answer = await self.ask(lambda: broker.coordinator.join("g", request), REBALANCE_S + 10)
        if self.world.now >= self.answered_at + SESSION_S:
            self.use(set())
        if answer is None or isinstance(answer, ErrorCode):
            return 0.2
        if answer.error is ErrorCode.member_id_required:
            self.member_id = answer.member_id
            return 0.0
        if answer.error is not ErrorCode.none:
            return self.react(answer.error)
        self.member_id, self.epoch = answer.member_id, answer.generation
        is_leader = answer.leader == answer.member_id and not answer.skip_assignment
        self.shared_out = self.world.partitions() if is_leader else None
        shares = self.assign(answer.members) if is_leader else None
        synced = sync(self.member_id, self.epoch, shares, instance=self.instance)
        broker, sent_at = self.world.broker, self.world.now
        told = await self.ask(lambda: broker.coordinator.sync("g", synced), REBALANCE_S + 10)
        if told is None or isinstance(told, ErrorCode):
            return 0.2
        if told.error is not ErrorCode.none:
            return self.react(told.error)
        self.answered_at = max(self.answered_at, sent_at)
        assigned = {tuple(p) for p in decode_assignment(told.assignment)}
        self.use(self.owned & assigned)
        self.use(assigned)
        # A cooperative member that gave something up joins again, for others to get it.
        self.must_join = bool(said - assigned)
        return 0.01

    def assign(self, members: Any) -> dict[str, bytes]:
        """Share everything out; what another member still has goes to nobody for now."""
        subscriptions = {m.member_id: decode(m.metadata) for m in members}
        owned = {m: set(s.owned) for m, s in subscriptions.items()}
        shares: dict[str, list[TopicPartition]] = {m: [] for m in subscriptions}
        for topic, number in sorted(self.world.partitions()):
            partition = TopicPartition(topic, number)
            some = [m for m, s in subscriptions.items() if topic in s.topics]
            if not some:
                continue
            chosen = min(some, key=lambda m: (len(shares[m]), m))
            if not any(partition in owned[m] for m in owned if m != chosen):
                shares[chosen].append(partition)
        return {m: encode_assignment(share, version=1) for m, share in shares.items()}

    def react(self, error: ErrorCode | None) -> float:
        match error:
            case ErrorCode.unknown_member_id | ErrorCode.illegal_generation:
                self.world.log(f"{self.name} is told {error.name}")
                if error is ErrorCode.unknown_member_id:
                    self.member_id = ""
                self.lose()
            case ErrorCode.rebalance_in_progress:
                self.must_join = True
            case ErrorCode.fenced_instance_id:
                self.is_alive = False
            case None | ErrorCode.coordinator_not_available | ErrorCode.not_coordinator:
                return 0.2
            case _:
                raise AssertionError(f"{self.name} heard {error}")
        return 0.05

    async def leave(self) -> None:
        broker = self.world.broker
        identity = MemberIdentity(self.member_id, self.instance)
        await self.ask(lambda: broker.coordinator.leave("g", [identity]), TIMEOUT_S)
        self.member_id = ""
        self.lose()
        await asyncio.sleep(self.world.random.uniform(0, SESSION_S))


def decode(metadata: bytes) -> Any:
    from tidelog_node.groups.migration.consumer_protocol import decode_subscription

    return decode_subscription(metadata)


CONFIG = NodeConfig(
    group_initial_rebalance_delay_ms=100,
    group_consumer_session_timeout_ms=int(SESSION_S * 1000),
    group_consumer_heartbeat_interval_ms=int(INTERVAL_S * 1000),
)


@pytest.mark.parametrize("first_seed", range(0, 45, SEEDS_PER_TEST))
def test_no_partition_is_used_twice_and_all_are_used_in_the_end(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        run(live(seed, ConsumerWorld, CONFIG))


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(45, 600, SEEDS_PER_TEST))
def test_the_same_holds_in_many_more_schedules(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        run(live(seed, ConsumerWorld, CONFIG))

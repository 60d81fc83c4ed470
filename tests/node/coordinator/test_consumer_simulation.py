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
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.config import NodeConfig
from tidelog_core.errors import OutcomeUnknown, StoreUnavailable, TidelogError
from tidelog_core.metadata.consumer_groups import TopicIdPartition
from tidelog_core.metadata.store import Write
from tidelog_core.model import TopicPartition
from tidelog_node.coordinator.consumer_events import ConsumerHeartbeat
from tidelog_node.coordinator.consumer_protocol import decode_assignment, encode_assignment
from tidelog_node.coordinator.events import MemberIdentity
from tidelog_node.coordinator.failures import error_code

from tests.node.coordinator.cluster import (
    Node,
    create_topic,
    delete_topic,
    grow_topic,
    lead_offsets,
    new_cluster,
    node,
)
from tests.node.coordinator.memory_store import MemoryMetadataStore
from tests.node.coordinator.requests import join, subscription_with_owned, sync
from tests.node.coordinator.virtual_time import run

T = TypeVar("T")

SEEDS_PER_TEST = 15
SESSION_S = 10.0
REBALANCE_S = 20.0
INTERVAL_S = 3.0
TIMEOUT_S = 2.0  # of a request, but for JoinGroup and SyncGroup
CALM_S = 150.0


@dataclass
class World:
    """One group, its consumers, and two places for its coordinator."""

    seed: int
    store: MemoryMetadataStore
    brokers: dict[int, Node]
    leader: int = 1
    is_chaotic: bool = True
    clients: list[Client] = field(default_factory=list)
    requests: set[asyncio.Task[Any]] = field(default_factory=set)
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.topics = ["t", "u"]

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def broker(self) -> Node:
        return self.brokers[self.leader]

    def log(self, event: str) -> None:
        self.trace.append(f"{self.now:10.3f} {event}")

    def chance(self, probability: float) -> bool:
        return self.is_chaotic and self.random.random() < probability

    def partitions(self) -> set[tuple[str, int]]:
        image = self.broker.view.image
        return {
            (t, p) for t in self.topics if image.topic(t) for p in range(len(image.partitions(t)))
        }

    def check_owners(self) -> None:
        owners: dict[tuple[str, int], str] = {}
        for client in self.clients:
            for partition in client.in_use:
                other = owners.setdefault(partition, client.name)
                assert other == client.name, f"{partition} is used by {other} and {client.name}"

    async def move(self) -> None:
        """Give the shards to the other broker; this one may go on with what it has begun."""
        old, new = self.leader, 3 - self.leader
        self.log(f"shards move from {old} to {new}")
        self.can_serve[old] = False
        await lead_offsets(self.store, self.brokers[new].view, new)
        self.can_serve[new] = True
        self.leader = new
        if self.random.random() < 0.5:
            await self.brokers[old].view.refresh()

    can_serve: dict[int, bool] = field(default_factory=lambda: {1: True, 2: False})


@dataclass
class Client:
    """A consumer: what it believes, and what it uses."""

    world: World
    name: str
    instance: str | None
    topics: tuple[str, ...]
    member_id: str = ""
    epoch: int = 0
    owned: set[tuple[str, int]] = field(default_factory=set)
    answered_at: float = 0.0  # when the last request that was answered well was sent
    is_alive: bool = True

    @property
    def in_use(self) -> set[tuple[str, int]]:
        """What it reads: nothing, once it must think itself removed."""
        is_current = self.is_alive and self.world.now < self.answered_at + SESSION_S
        return self.owned if is_current else set()

    def use(self, partitions: set[tuple[str, int]]) -> None:
        self.owned = partitions
        self.world.check_owners()

    async def ask(self, call: Callable[[], Awaitable[T]], timeout_s: float) -> T | ErrorCode | None:
        """Return the answer, the error, or ``None`` where none came back."""
        world = self.world
        await asyncio.sleep(world.random.uniform(0.001, 0.05))
        if world.chance(0.03):
            return None  # the request is lost
        task = asyncio.ensure_future(call())
        world.requests.add(task)
        task.add_done_callback(world.requests.discard)
        try:
            answer = await asyncio.wait_for(asyncio.shield(task), timeout_s)
        except TimeoutError:
            return None
        except TidelogError as error:
            return error_code(error)
        await asyncio.sleep(world.random.uniform(0.001, 0.05))
        return None if world.chance(0.03) else answer

    async def run(self) -> None:
        while self.is_alive:
            if self.world.now >= self.answered_at + SESSION_S:
                self.lose()
            if self.world.chance(0.03):
                await self.strike()
            else:
                await asyncio.sleep(await self.turn())

    async def turn(self) -> float:
        """Send a request; return how long to wait."""
        raise NotImplementedError

    async def strike(self) -> None:
        world = self.world
        match world.random.randrange(4):
            case 0:
                world.log(f"{self.name} dies")
                self.is_alive = False
            case 1:
                seconds = world.random.uniform(0, 2 * SESSION_S)
                world.log(f"{self.name} stalls for {seconds:.1f} s")
                await asyncio.sleep(seconds)
            case 2:
                self.topics = tuple(
                    sorted(
                        world.random.sample(
                            world.topics, world.random.randint(1, len(world.topics))
                        )
                    )
                )
                world.log(f"{self.name} subscribes to {self.topics}")
                self.subscribes_anew()
            case _:
                world.log(f"{self.name} leaves")
                self.use(set())
                await self.leave()

    def lose(self) -> None:
        """Begin anew, without partitions."""
        self.use(set())
        self.epoch = 0

    def subscribes_anew(self) -> None:
        raise NotImplementedError

    async def leave(self) -> None:
        raise NotImplementedError


@dataclass
class NewClient(Client):
    """A consumer of KIP-848, after Java's ``ConsumerMembershipManager``."""

    must_say_all: bool = True
    must_say_owned: bool = False

    def subscribes_anew(self) -> None:
        self.must_say_all = True

    async def turn(self) -> float:
        world = self.world
        is_full = self.must_say_all or self.epoch == 0
        image = world.broker.view.image
        owned = frozenset(
            TopicIdPartition(topic.topic_id, p)
            for name, p in self.owned
            if (topic := image.topic(name)) is not None
        )
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
        if assigned == self.owned:
            return INTERVAL_S
        if self.owned - assigned:
            await asyncio.sleep(world.random.uniform(0, 3))  # its last records, and its commit
            if world.now >= self.answered_at + SESSION_S:
                return 0.0
            self.use(self.owned & assigned)
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
            lambda: broker.coordinator.heartbeat("g", self.member_id, self.instance, self.epoch),
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
    from tidelog_node.coordinator.consumer_protocol import decode_subscription

    return decode_subscription(metadata)


async def play(world: World) -> None:
    kinds = world.random.choice(("new", "new", "eager", "cooperative"))
    tasks: list[asyncio.Task[None]] = []

    def add() -> None:
        name = f"c{len(world.clients)}"
        instance = f"i-{name}" if world.random.random() < 0.25 else None
        parts: dict[str, Any] = {"world": world, "name": name, "instance": instance}
        parts["topics"] = tuple(world.topics[: world.random.randint(1, 2)])
        client: Client
        if kinds == "new" or world.random.random() < 0.5:
            client = NewClient(**parts, member_id=f"{name}-first")
        else:
            client = ClassicClient(**parts, is_eager=kinds == "eager")
        world.clients.append(client)
        tasks.append(asyncio.create_task(client.run()))

    for _ in range(world.random.randint(1, 4)):
        add()
    world.store.on_commit = lambda writes: fail_writes(world, writes)
    end = world.now + world.random.uniform(30, 200)
    while world.now < end:
        await asyncio.sleep(world.random.uniform(0.5, 8))
        await strike(world, add)
    world.log("chaos ends")
    world.is_chaotic = False
    if not any(client.is_alive for client in world.clients):
        add()
    await asyncio.sleep(CALM_S)
    check_shared_out(world)
    before = {client.name: (client.epoch, set(client.owned)) for client in world.clients}
    for _ in range(3):
        await world.move()
        await asyncio.sleep(2 * INTERVAL_S)
    check_shared_out(world)
    after = {client.name: (client.epoch, set(client.owned)) for client in world.clients}
    assert after == before, "a move was noticed"
    for client in world.clients:
        client.is_alive = False
    await asyncio.gather(*tasks)
    await asyncio.gather(*world.requests, return_exceptions=True)


def fail_writes(world: World, writes: Sequence[Write]) -> Exception | None:
    """Return what becomes of a write of a group's record, if anything does."""
    if not any(write.id.collection.startswith("group:") for write in writes):
        return None
    if world.chance(0.02):
        return OutcomeUnknown("lost")
    return StoreUnavailable("away") if world.chance(0.02) else None


async def strike(world: World, add: Callable[[], None]) -> None:
    match world.random.randrange(6):
        case 0 | 1:
            await world.move()
        case 2:
            add()
        case 3 if len(world.topics) < 3:
            await create_topic(world.store, "v", 3, id=UUID(int=world.random.getrandbits(128)))
            world.topics.append("v")
            world.log("topic v is created")
        case 3:
            world.log("topic v is deleted")
            world.topics.remove("v")
            await delete_topic(world.store, world.broker.view, "v")
        case 4:
            await grow_topic(world.store, world.broker.view, "t")
            world.log("topic t grows")
        case _:
            world.store.latency = world.random.choice((0.001, 0.02, 0.3))
    await world.broker.view.refresh()


def check_shared_out(world: World) -> None:
    living = [client for client in world.clients if client.is_alive]
    shares = [client.in_use for client in living]
    wanted = {(t, p) for t, p in world.partitions() if any(t in c.topics for c in living)}
    assert sorted(p for share in shares for p in share) == sorted(wanted)
    for client in living:
        assert all(topic in client.topics for topic, _ in client.in_use)
    if all(isinstance(c, NewClient) for c in living) and len({c.topics for c in living}) == 1:
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1


async def live(seed: int) -> None:
    store = MemoryMetadataStore()
    await new_cluster(store)
    config = NodeConfig(
        group_initial_rebalance_delay_ms=100,
        group_consumer_session_timeout_ms=int(SESSION_S * 1000),
        group_consumer_heartbeat_interval_ms=int(INTERVAL_S * 1000),
    )
    can_serve = {1: True, 2: False}
    async with AsyncExitStack() as stack:
        brokers = {
            broker_id: await stack.enter_async_context(
                node(
                    store,
                    broker_id=broker_id,
                    config=config,
                    can_serve=lambda one=broker_id: can_serve[one],
                )
            )
            for broker_id in (1, 2)
        }
        world = World(seed, store, brokers, can_serve=can_serve)
        try:
            await play(world)
        except BaseException:
            print(f"seed {seed}", *world.trace[-100:], sep="\n")
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            raise


@pytest.mark.parametrize("first_seed", range(0, 60, SEEDS_PER_TEST))
def test_no_partition_is_used_twice_and_all_are_used_in_the_end(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        run(live(seed))


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(60, 600, SEEDS_PER_TEST))
def test_the_same_holds_in_many_more_schedules(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        run(live(seed))

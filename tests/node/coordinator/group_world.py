"""Members of a group that join, stall, die and come back, on coordinators that crash and move,
in virtual time: what the simulations of consumer groups and of share groups have in common.

Requests and answers are delayed and lost, the store is slow, fails and loses outcomes, topics
come, grow and go, and the shards move to another coordinator, while the old one is still at
work and does not know.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode
from tidelog_core.config import NodeConfig
from tidelog_core.errors import OutcomeUnknown, StoreUnavailable, TidelogError
from tidelog_core.metadata.store import Write
from tidelog_node.coordinator.failures import error_code
from tidelog_node.coordinator.group_items import DEFAULT_PAGE_LIMITS, PageLimits

from tests.support.coordinator_node import (
    Node,
    create_topic,
    delete_topic,
    grow_topic,
    lead_offsets,
    new_cluster,
    node,
)
from tests.support.memory_store import MemoryMetadataStore

T = TypeVar("T")

SEEDS_PER_TEST = 15
SESSION_S = 10.0
INTERVAL_S = 3.0
TIMEOUT_S = 2.0  # of a request, but for JoinGroup and SyncGroup
CALM_S = 150.0
# In most worlds a group of a few members already takes several transactions, and a slow store
# takes so long for each that all of them are carried out within a request's timeout.
PAGE_LIMITS = (
    (PageLimits(members_per_page=1, pages_per_commit=1), 0.05),
    (PageLimits(members_per_page=2, pages_per_commit=2), 0.1),
    (DEFAULT_PAGE_LIMITS, 0.3),
)


@dataclass
class GroupWorld:
    """One group, its members, and two places for its coordinator."""

    first_clients_max = 4

    seed: int
    store: MemoryMetadataStore
    brokers: dict[int, Node]
    can_serve: dict[int, bool]
    slow_write_s: float
    leader: int = 1
    is_chaotic: bool = True
    clients: list[Client] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)  # of the clients
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

    def new_client(self, name: str, topics: tuple[str, ...]) -> Client:
        """Return a member that is yet to join."""
        raise NotImplementedError

    def check_owners(self) -> None:
        """Check what always holds of who uses what."""
        raise NotImplementedError

    def check_shared_out(self) -> None:
        """Check what holds once chaos has ended."""
        raise NotImplementedError

    def add(self) -> None:
        """Have a member more."""
        name = f"c{len(self.clients)}"
        client = self.new_client(name, tuple(self.topics[: self.random.randint(1, 2)]))
        self.clients.append(client)
        self.tasks.append(asyncio.create_task(client.run()))

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


@dataclass
class Client:
    """A consumer: what it believes, and what it uses."""

    world: GroupWorld
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

    def topic_id(self, topic: str) -> UUID | None:
        """Return the id of a topic it uses: of today's topic where it only knows the name."""
        found = self.world.broker.view.image.topic(topic)
        return None if found is None else found.topic_id

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


async def live(seed: int, world_type: type[GroupWorld], config: NodeConfig) -> None:
    """Run one schedule; a failure prints what happened."""
    store = MemoryMetadataStore()
    await new_cluster(store)
    can_serve = {1: True, 2: False}
    page_limits, slow_write_s = PAGE_LIMITS[seed % len(PAGE_LIMITS)]
    async with AsyncExitStack() as stack:
        brokers = {
            broker_id: await stack.enter_async_context(
                node(
                    store,
                    broker_id=broker_id,
                    config=config,
                    can_serve=lambda one=broker_id: can_serve[one],
                    page_limits=page_limits,
                    # In every other world targets are computed once an interval.
                    assigned_at_once_members_max=100 * (seed % 2),
                )
            )
            for broker_id in (1, 2)
        }
        world = world_type(seed, store, brokers, can_serve, slow_write_s)
        try:
            await play(world)
        except BaseException:
            print(f"seed {seed}", *world.trace[-100:], sep="\n")
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            raise


async def play(world: GroupWorld) -> None:
    for _ in range(world.random.randint(1, world.first_clients_max)):
        world.add()
    world.store.on_commit = lambda writes: fail_writes(world, writes)
    end = world.now + world.random.uniform(30, 200)
    while world.now < end:
        await asyncio.sleep(world.random.uniform(0.5, 8))
        await strike(world)
    world.log("chaos ends")
    world.is_chaotic = False
    if not any(client.is_alive for client in world.clients):
        world.add()
    await asyncio.sleep(CALM_S)
    world.check_shared_out()
    before = {client.name: (client.epoch, set(client.owned)) for client in world.clients}
    for _ in range(3):
        await world.move()
        await asyncio.sleep(2 * INTERVAL_S)
    world.check_shared_out()
    after = {client.name: (client.epoch, set(client.owned)) for client in world.clients}
    assert after == before, "a move was noticed"
    for client in world.clients:
        client.is_alive = False
    await asyncio.gather(*world.tasks)
    await asyncio.gather(*world.requests, return_exceptions=True)


def fail_writes(world: GroupWorld, writes: Sequence[Write]) -> Exception | None:
    """Return what becomes of a write of a group's record or members, if anything does."""
    if not any(write.id.collection.startswith(("group:", "member:")) for write in writes):
        return None
    if world.chance(0.02):
        return OutcomeUnknown("lost")
    return StoreUnavailable("away") if world.chance(0.02) else None


async def strike(world: GroupWorld) -> None:
    match world.random.randrange(6):
        case 0 | 1:
            await world.move()
        case 2:
            world.add()
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
            world.store.latency = world.random.choice((0.001, 0.02, world.slow_write_s))
    await world.broker.view.refresh()

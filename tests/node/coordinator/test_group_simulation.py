"""Thousands of schedules of clients that join, leave, die and come back, on one group.

Each client behaves like a real one, as far as the protocol goes, until chaos strikes:
requests and answers are delayed and lost, clients die or leave, and the coordinator
crashes, before or after it has stored a step, and goes on from what was stored. Then
chaos ends, and the group must become stable with exactly the clients that live.

What holds in every state: a generation has one leader that assigns, generations only
grow, every member of a stable generation has what the leader assigned it, and nobody
but a member of the current generation can commit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.metadata.coordination.groups import GroupRecord
from tidelog_node.groups.classic import join_group, offset_commits, sync_group
from tidelog_node.groups.classic.classic_group import ClassicGroup, Phase
from tidelog_node.groups.classic_messages import (
    GroupCaller,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    RequestNumber,
    SyncAnswer,
)
from tidelog_node.groups.step import Step

from tests.support.group_requests import join, subscription, sync

SEEDS_PER_TEST = 100
SESSION_MS = 10_000
REBALANCE_MS = 15_000
REQUEST_TIMEOUT_MS = 40_000  # of a client that waits for a join or sync


@dataclass(slots=True)
class Client:
    """One consumer: what it believes, and which answer it waits for."""

    name: str
    instance: str | None
    version: int
    member_id: str = ""
    generation: int = -1
    is_alive: bool = True
    is_stable: bool = False
    awaits: RequestNumber | None = None
    awaits_until_ms: int = 0
    next_ms: int = 0  # when it does something again
    topics: tuple[str, ...] = ("t",)

    @property
    def key(self) -> str:
        """What the leader assigns by: static members keep their assignment."""
        return self.member_id if self.instance is None else self.instance


@dataclass
class ClassicGroupWorld:
    """One group, its clients and its store."""

    seed: int
    is_chaotic: bool = True
    now_ms: int = 0
    clients: list[Client] = field(default_factory=list)
    stored: GroupRecord | None = None
    leaders: dict[int, str] = field(default_factory=dict)  # who may assign, by generation
    newest_generation: int = 0  # ever told to anyone
    waiting: dict[RequestNumber, Client] = field(default_factory=dict)
    generation_of_sync: dict[RequestNumber, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.limits = GroupLimits(
            initial_rebalance_delay_ms=self.random.choice([0, 3000]),
            members_max=100,
        )
        self.group = ClassicGroup("g", now_ms=0)
        for index in range(self.random.randint(1, 6)):
            self.add_client(f"c{index}")

    def add_client(self, name: str) -> None:
        instance = f"i-{name}" if self.random.random() < 0.3 else None
        version = self.random.choice([2, 3, 5, 8, 9]) if instance is None else 9
        self.clients.append(Client(name, instance, version, next_ms=self.now_ms))

    # The coordinator's shell.

    def take(self, step: Step) -> None:
        """Store, then answer, unless the coordinator crashes on the way."""
        crash = self.random.random() if self.is_chaotic else 1.0
        if step.must_store:
            if crash < 0.03:
                self.restart("before storing")
                return
            self.stored = self.group.to_record(shard=0, clock_offset_ms=0, version=1)
            if crash < 0.06:
                self.restart("after storing")
                return
        self.check()
        for join_number, join_answer in step.joins:
            self.deliver(join_number, lambda c, a=join_answer: self.joined(c, a))
        for sync_number, sync_answer in step.syncs:
            self.deliver(sync_number, lambda c, n=sync_number, a=sync_answer: self.synced(c, n, a))

    def deliver(self, number: RequestNumber, answer: Callable[[Client], None]) -> None:
        client = self.waiting.pop(number, None)
        if client is None or not client.is_alive or client.awaits != number:
            return
        if self.is_chaotic and self.random.random() < 0.03:
            return  # The answer is lost: the client will time out.
        client.awaits = None
        answer(client)

    def restart(self, why: str) -> None:
        self.log(f"coordinator restarts {why}")
        if self.stored is None:
            self.group = ClassicGroup("g", now_ms=self.now_ms)
        else:
            self.group = ClassicGroup.restore(self.stored, now_ms=self.now_ms, clock_offset_ms=0)
        for client in self.waiting.values():
            client.awaits = None
            client.next_ms = self.now_ms + 100
        self.waiting.clear()
        self.check()

    # Clients.

    def act(self, client: Client) -> None:
        if not client.is_alive:
            return
        if client.awaits is not None:
            if self.now_ms < client.awaits_until_ms:
                return
            client.awaits = None
        if self.is_chaotic and self.random.random() < 0.02:
            self.strike(client)
            return
        if not client.is_stable:
            self.send_join(client)
            return
        self.log(f"{client.name} heartbeats in {client.generation}")
        error = self.group.heartbeat(
            GroupCaller(client.member_id, client.instance, client.generation),
            now_ms=self.now_ms,
        )
        client.next_ms = self.now_ms + 3000
        self.react(client, error)
        if error is ErrorCode.none:
            self.commit(client)

    def strike(self, client: Client) -> None:
        match self.random.randrange(4):
            case 0:
                self.log(f"{client.name} dies")
                client.is_alive = False
            case 1 if client.member_id:
                self.log(f"{client.name} leaves")
                _, step = self.group.leave(
                    [MemberIdentity(client.member_id, client.instance)], now_ms=self.now_ms
                )
                client.is_alive = False
                self.take(step)
            case 2:
                self.log(f"{client.name} starts anew")
                client.member_id, client.generation, client.is_stable = "", -1, False
                client.next_ms = self.now_ms + self.random.randint(0, 2 * SESSION_MS)
            case _:
                self.log(f"{client.name} subscribes anew and stalls")
                client.topics = (self.random.choice("tuv"),)
                client.is_stable = False
                client.next_ms = self.now_ms + self.random.randint(0, 3 * SESSION_MS)

    def send_join(self, client: Client) -> None:
        request: JoinRequest = join(
            client.member_id,
            new=f"{client.name}-{self.random.getrandbits(32):08x}",
            instance=client.instance,
            version=client.version,
            protocols=(("range", subscription(*client.topics)),),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        self.log(f"{client.name} joins as {client.member_id!r}")
        self.wait(client, request.number)
        self.take(join_group.join(self.group, request, now_ms=self.now_ms, limits=self.limits))

    def joined(self, client: Client, answer: JoinAnswer) -> None:
        self.log(f"{client.name} hears {answer.error.name} generation {answer.generation}")
        client.next_ms = self.now_ms + 50
        if answer.error is ErrorCode.member_id_required:
            client.member_id = answer.member_id
            return
        if answer.error is not ErrorCode.none:
            self.react(client, answer.error)
            return
        # Versions before 9 cannot tell a static leader to skip; they are given the old id.
        client.member_id, client.generation = answer.member_id, answer.generation
        assert answer.generation >= self.newest_generation, "generations only grow"
        self.newest_generation = answer.generation
        assignments: dict[str, bytes] = {}
        is_leader = answer.leader == answer.member_id
        if is_leader and not answer.skip_assignment:
            known = self.leaders.setdefault(answer.generation, answer.member_id)
            assert known == answer.member_id, "a generation has one leader"
            for member in answer.members:
                key = member.group_instance_id or member.member_id
                assignments[member.member_id] = f"{answer.generation}:{key}".encode()
        request = sync(client.member_id, client.generation, assignments, instance=client.instance)
        self.generation_of_sync[request.number] = client.generation
        self.wait(client, request.number)
        self.take(sync_group.sync(self.group, request, now_ms=self.now_ms))

    def synced(self, client: Client, number: RequestNumber, answer: SyncAnswer) -> None:
        self.log(f"{client.name} is told {answer.error.name} {answer.assignment!r}")
        client.next_ms = self.now_ms + 50
        if answer.error is not ErrorCode.none:
            self.react(client, answer.error)
            return
        generation = self.generation_of_sync[number]
        assert answer.assignment == f"{generation}:{client.key}".encode()
        client.is_stable = True

    def react(self, client: Client, error: ErrorCode) -> None:
        match error:
            case ErrorCode.none:
                pass
            case ErrorCode.unknown_member_id:
                client.member_id, client.generation, client.is_stable = "", -1, False
            case ErrorCode.fenced_instance_id:
                # Only its own past can fence it here; a real client would give up.
                client.member_id, client.generation, client.is_stable = "", -1, False
            case ErrorCode.rebalance_in_progress | ErrorCode.illegal_generation:
                client.is_stable = False
                client.next_ms = self.now_ms + 10
            case _:
                raise AssertionError(f"{client.name} heard {error.name}")

    def commit(self, client: Client) -> None:
        """Members commit in their generation, and in no other."""
        for generation in (client.generation, client.generation - 1, client.generation + 1):
            error = offset_commits.validate_commit(
                self.group,
                GroupCaller(client.member_id, client.instance, generation),
                now_ms=self.now_ms,
            )
            if error is ErrorCode.none:
                assert generation == self.group.generation
                assert client.member_id in self.group.roster
            else:
                assert generation != self.group.generation

    def wait(self, client: Client, number: RequestNumber) -> None:
        client.awaits = number
        client.awaits_until_ms = self.now_ms + REQUEST_TIMEOUT_MS
        client.next_ms = client.awaits_until_ms
        self.waiting[number] = client

    # Time.

    def run(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while True:
            at_ms = min(self.events(), default=end_ms)
            if at_ms >= end_ms:
                break
            self.now_ms = max(self.now_ms, at_ms)
            if self.group.wake_at_ms is not None and self.group.wake_at_ms <= self.now_ms:
                self.take(self.group.expire(self.now_ms))
            for client in list(self.clients):
                if client.is_alive and client.next_ms <= self.now_ms:
                    client.next_ms = self.now_ms + 100
                    self.act(client)
            if self.is_chaotic and self.random.random() < 0.01:
                self.add_client(f"n{len(self.clients)}")
            if self.is_chaotic and self.random.random() < 0.01:
                self.restart("at rest")
        self.now_ms = end_ms

    def events(self) -> Iterator[int]:
        if self.group.wake_at_ms is not None:
            yield self.group.wake_at_ms
        yield from (client.next_ms for client in self.clients if client.is_alive)

    # What must always hold.

    def check(self) -> None:
        group = self.group
        ids = [member.member_id for member in group.roster]
        assert (group.roster.leader in ids) == bool(ids)
        assert not set(ids) & group.pending_members.keys()
        instances = [m.group_instance_id for m in group.roster if m.group_instance_id]
        assert len(instances) == len(set(instances))
        if group.phase is Phase.EMPTY:
            assert not ids
        if group.phase in (Phase.STABLE, Phase.COMPLETING_REBALANCE):
            assert ids
            assert self.stored is not None
            assert self.stored.generation == group.generation
            assert all(member.awaited_join is None for member in group.roster)
        if group.phase is Phase.STABLE:
            for member in group.roster:
                key = member.group_instance_id or member.member_id
                assert member.assignment == f"{group.generation}:{key}".encode()
                assert member.awaited_sync is None
                assert member.session_deadline_ms is not None

    def log(self, event: str) -> None:
        self.trace.append(f"{self.now_ms:>8} {self.group.phase.value:<20} {event}")


@pytest.mark.parametrize("first_seed", range(0, 1200, SEEDS_PER_TEST))
def test_every_schedule_keeps_the_rules_and_ends_stable(first_seed: int) -> None:
    run_seeds(first_seed)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(1200, 12_000, SEEDS_PER_TEST))
def test_many_more_schedules_do(first_seed: int) -> None:
    run_seeds(first_seed)


def run_seeds(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        world = ClassicGroupWorld(seed)
        try:
            world.run(world.random.randint(5_000, 200_000))
            world.is_chaotic = False
            world.log("chaos ends")
            world.run(10 * REBALANCE_MS + 2 * REQUEST_TIMEOUT_MS)
            living = [client for client in world.clients if client.is_alive]
            if living:
                assert world.group.phase is Phase.STABLE
                assert {c.member_id for c in living} == {m.member_id for m in world.group.roster}
                assert {c.generation for c in living} == {world.group.generation}
            else:
                assert world.group.phase is Phase.EMPTY
            assert not world.group.pending_members
        except AssertionError:
            print(f"seed {seed}", *world.trace[-60:], sep="\n")
            raise

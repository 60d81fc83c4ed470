"""A simulated broker: the state machines of ``tidelog_core.replication`` in a thin shell.

The shell does what the node will do: it reads and writes the store, sends fetches, appends,
and keeps its clock and its lease in mind. Its rules:

- the lease is renewed by another thread than everything else: a node whose loop is stalled
  renews on, until the loop has stood still for too long;
- a new process registers first, then reads, then leaves the ISRs if its disk may have lost
  a tail, and only then renews its lease;
- whoever is answered is answered only while the lease allows it;
- every outcome of a write goes to the state machine that proposed it, and after an unknown
  one the item is read again;
- records of the partition are taken from any reading, newer versions only.

Fetches are served by the node's own handler (``leading``) and asked for through the fetcher's own
sessions (``following``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any
from uuid import UUID

from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.records import (
    Broker,
    BrokerLease,
    Partition,
    StepDownReason,
    broker_key,
)
from tidelog_core.metadata.store import ABSENT, ItemKey
from tidelog_core.replication.change import PartitionChange
from tidelog_core.replication.election import LeaderElector
from tidelog_core.replication.follower_state import (
    Append,
    AskOffsets,
    FetchAnswer,
    FollowerState,
    Ignore,
    ReplicaFetch,
    Truncate,
)
from tidelog_core.replication.lead_changes import leave_isr
from tidelog_core.replication.leader.leader_state import LeaderState
from tidelog_core.replication.leader.rules import ReplicationRules
from tidelog_core.replication.leases.election_coordinators import ElectionCoordinators
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_core.replication.leases.observed_time import ReadingPlan
from tidelog_core.replication.leases.own_lease import OwnLease
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.replication.partition_state import PartitionState, RoleChange
from tidelog_core.replication.tier_start import (
    TruncateFully,
    start_before_following,
    start_before_leading,
)
from tidelog_node.handlers.fetch.fetch_sessions import FetchSessions
from tidelog_node.handlers.fetch.handler import FetchHandler
from tidelog_node.wire.fetch import FetchRequest

from tests.simulation.checker import Checker
from tests.simulation.following import FETCH_RETRY_MS, FETCH_TIMEOUT_MS, SimFetcher
from tests.simulation.leading import FetchedAnswer, FetchSide
from tests.simulation.store import Outcome, Record, SimStore
from tests.simulation.world import Handler, Network, World
from tests.support.sim_log import Entry, OutOfOrder, Payload, SimLog, Tier

TIMES = LeaseTimes(lease_ms=900, renew_ms=300)
STEP_IN_DELAY_MS = 150
PREFERRED_STABLE_MS = 900
HAND_OVER_MS = 300
RETRY_MS = 60
TICK_MS = 60.0
POLL_MS = 110.0
READ_COUNT_MAX = 8
FLUSH_MS = 400.0
PLAN = ReadingPlan(POLL_MS, TIMES.renew_ms)


class Loss(Enum):
    """What the end of a process takes with it."""

    NOTHING = "crash"  # the page cache stays
    TAIL = "power-loss"  # some of what was not flushed
    DISK = "disk-loss"  # all of it


@dataclass(frozen=True, slots=True)
class Token:
    """Whom an acks=all answer goes to."""

    reply: Callable[..., None]
    payload: Payload
    offset: int
    epoch: int


@dataclass(slots=True)
class Machines:
    """The classes under test; a mutation replaces one of them."""

    own_lease: type[OwnLease] = OwnLease
    elector: type[LeaderElector] = LeaderElector
    leader: type[LeaderState[Token]] = LeaderState
    follower: type[FollowerState] = FollowerState
    handler: type[FetchHandler] = FetchHandler
    sessions: type[FetchSessions] = FetchSessions
    fetcher: type[SimFetcher] = SimFetcher
    leaves_isr_after_power_loss: bool = True


@dataclass(frozen=True, slots=True)
class Setup:
    """What every node of a run shares."""

    world: World
    network: Network
    store: SimStore
    checker: Checker
    tier: Tier
    machines: Machines
    key: ItemKey  # the partition's item
    rules: ReplicationRules
    is_unclean_allowed: bool
    fetch_count_max: int
    session_slots: int
    random: Random  # for what a power loss leaves


class SimPartitionState(PartitionState[Token]):
    """Makes the parts from the machines under test."""

    def __init__(self, broker_id: int, machines: Machines) -> None:
        super().__init__(broker_id)
        self._machines = machines

    def _make_leader(
        self, partition: Partition, log: Any, rules: ReplicationRules, now_ms: float
    ) -> LeaderState[Token]:
        return self._machines.leader(
            partition,
            log_end_offset=log.log_end_offset,
            high_watermark=log.high_watermark,
            rules=rules,
            now_ms=now_ms,
        )

    def _make_follower(self, partition: Partition) -> FollowerState:
        return self._machines.follower(partition, self.broker_id)


class _LeaseThread:
    """Takes what concerns the renewals, also while the node's loop is stalled."""

    def __init__(self, node: SimNode) -> None:
        self.broker_id = node.broker_id
        self._node = node

    def deliver(self, handler: Handler, args: tuple[Any, ...]) -> None:
        """Take an answer or a timer."""
        self._node.deliver_to_thread(handler, args)


class SimNode:
    """One broker over all its lives."""

    def __init__(self, broker_id: int, setup: Setup, *, rate: float, skew_ms: float) -> None:
        self.broker_id = broker_id
        self._s = setup
        self._rate, self._skew_ms = rate, skew_ms
        self.log = SimLog(setup.tier)
        self.incarnation = 0  # which life this is; 0 before the first
        self.is_up = False
        self.is_ready = False  # registered and, where needed, out of the ISRs
        self.is_draining = False
        self._is_tainted = False  # the disk may have lost a tail
        # What waits until the process goes on, and until its loop does.
        self._paused: list[tuple[Handler, tuple[Any, ...]]] | None = None
        self._stalled: list[tuple[Handler, tuple[Any, ...]]] | None = None
        self._thread = _LeaseThread(self)
        self.peers: dict[int, SimNode] = {}

    # -- lives --

    def start(self) -> None:
        """Begin a new life with what the disk has."""
        self.incarnation += 1
        self.is_up, self.is_ready, self.is_draining = True, False, False
        self._uuid = UUID(int=(self.broker_id << 32) + self.incarnation)
        self.state = SimPartitionState(self.broker_id, self._s.machines)
        self.elector = self._s.machines.elector(
            self.broker_id,
            step_in_delay_ms=STEP_IN_DELAY_MS,
            preferred_stable_ms=PREFERRED_STABLE_MS,
        )
        self.peer_leases = PeerLeases(TIMES, own=self.broker_id)
        self.lease: OwnLease | None = None
        self.brokers: dict[int, Broker] = {}
        self.replica_epoch = -1
        self._partition_busy = False  # a takeover or departure is on its way
        self._renewal_busy = False
        self._poll_busy = False
        self._reading_again = False
        self.is_log_broken = False  # offline, and what was not flushed may be lost
        self._has_registered_again = False  # since the log broke
        self._fetchers: dict[int, SimFetcher] = {}  # by leader
        self._next_poll_ms = 0.0
        self._next_flush_ms = 0.0
        self._turned_ms = self.now()
        self.fetches = FetchSide(
            self,
            world=self._s.world,
            random=self._s.random,
            slots_max=self._s.session_slots,
            handler=self._s.machines.handler,
            sessions=self._s.machines.sessions,
        )
        self._register()
        self._tick(self.incarnation)
        self._tick_of_thread(self.incarnation)

    def crash(self, loss: Loss) -> None:
        """End this life without a word."""
        if not self.is_up:
            return
        self.is_up = self.is_ready = False
        self._paused = self._stalled = None
        low, high = self.log.flushed_offset, self.log.log_end_offset
        match loss:
            case Loss.NOTHING:
                self.log.reopen(end_offset=high)
                return
            case Loss.TAIL:
                self.log.reopen(end_offset=self._s.random.randint(min(low, high), high))
            case Loss.DISK:
                self.log = SimLog(self._s.tier)
        self._is_tainted = True

    def pause(self) -> None:
        """Stop the process (SIGSTOP)."""
        if self.is_up and self._paused is None:
            self._paused = []

    def resume(self) -> None:
        """Let the process go on; what has come meanwhile comes all at once."""
        waiting, self._paused = self._paused, None
        self._hand_out(waiting)

    def stall(self) -> None:
        """Keep the loop busy with something that does not end."""
        if self.is_up and self._stalled is None:
            self._stalled = []

    def end_stall(self) -> None:
        """Let the loop go on; what has come meanwhile comes all at once."""
        waiting, self._stalled = self._stalled, None
        self._hand_out([(self.deliver, entry) for entry in waiting or ()])

    def deliver(self, handler: Handler, args: tuple[Any, ...]) -> None:
        """Take a message, an answer or a timer."""
        if not self.is_up:
            return
        if self._paused is not None:
            self._paused.append((self.deliver, (handler, args)))
        elif self._stalled is not None:
            self._stalled.append((handler, args))
        else:
            handler(*args)

    def deliver_to_thread(self, handler: Handler, args: tuple[Any, ...]) -> None:
        """Take what concerns the renewals."""
        if not self.is_up:
            return
        if self._paused is not None:
            self._paused.append((self.deliver_to_thread, (handler, args)))
        else:
            handler(*args)

    def _hand_out(self, waiting: list[tuple[Handler, tuple[Any, ...]]] | None) -> None:
        if waiting:
            self._s.random.shuffle(waiting)  # Sockets and timers have no common order.
        for handler, args in waiting or ():
            handler(*args)

    @property
    def checker(self) -> Checker:
        """Who sees everything."""
        return self._s.checker

    def now(self) -> float:
        """Return the time on this broker's clock."""
        return self._s.world.now_ms * self._rate + self._skew_ms

    def may_act(self) -> bool:
        """Whether the lease allows this broker to act at this moment."""
        return self.lease is not None and self.lease.may_act(self.now())

    # -- starting --

    def _register(self) -> None:
        found = self._s.store.items.get(broker_key(self.broker_id))
        broker = Broker(
            broker_id=self.broker_id,
            incarnation=self._uuid,
            endpoints=plaintext_endpoints("", 0),
            version=ABSENT if found is None else found.version,
        )
        self._s.store.commit(self, [broker], (), self._on_registered, self.incarnation)

    def _on_registered(self, outcome: Outcome, _: None, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        if outcome == "ok":
            self._s.store.read(self, self._on_start_read, incarnation)
        else:
            self._register()

    def _on_start_read(self, outcome: Outcome, found: list[Record], incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        if outcome != "ok":
            self._s.store.read(self, self._on_start_read, incarnation)
            return
        partition, own = self._take_records(found)
        if self.replica_epoch < 0:
            self._register()  # An earlier, unknown write of ours has come in between.
            return
        if self._is_tainted and self._s.machines.leaves_isr_after_power_loss:
            change = leave_isr(partition, self.broker_id)
            if change is not None:
                self._s.store.commit(
                    self, [change.after], change.checks, self._on_left_isr, incarnation
                )
                return
            if partition.isr == (self.broker_id,):
                self._s.checker.forgive(self.broker_id)
        self._is_tainted = False
        self.elector.start([partition])
        self.lease = self._s.machines.own_lease(self.broker_id, self._uuid, times=TIMES, found=own)
        self.is_ready = True
        self._take_partition(partition)

    def _on_left_isr(self, _: Outcome, __: None, incarnation: int) -> None:
        if incarnation == self.incarnation:
            self._s.store.read(self, self._on_start_read, incarnation)

    def _take_records(self, found: list[Record]) -> tuple[Partition, BrokerLease | None]:
        partition, own = None, None
        for record in found:
            if isinstance(record, Partition):
                partition = record
            elif isinstance(record, Broker):
                known = self.brokers.get(record.broker_id)
                if known is None or record.version > known.version:
                    self.brokers[record.broker_id] = record
            elif record.broker_id == self.broker_id:
                own = record
        registered = self.brokers[self.broker_id]
        if registered.incarnation == self._uuid:
            self.replica_epoch = registered.version
        assert partition is not None
        return partition, own

    # -- the thread's tick: renew --

    def _tick_of_thread(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        self._s.world.after(TICK_MS, self._thread.deliver, self._tick_of_thread, (incarnation,))
        now_ms = self.now()
        if self.lease is None or self._renewal_busy or not self.lease.is_renewal_due(now_ms):
            return
        if not TIMES.can_renew(turned_ms=self._turned_ms, now_ms=now_ms):
            return
        self._renewal_busy = True
        if self.lease.needs_read:
            self._s.store.read(self._thread, self._on_lease_read, incarnation)
            return
        record = self.lease.begin_renewal(now_ms)
        self._s.store.commit(
            self._thread, [record], (), self._on_renewed, record, now_ms, incarnation
        )

    def _on_lease_read(self, outcome: Outcome, found: list[Record], incarnation: int) -> None:
        if incarnation != self.incarnation or self.lease is None:
            return
        self._renewal_busy = False
        if outcome != "ok":
            self.lease.on_unknown(self.now())
            return
        leases = [record for record in found if isinstance(record, BrokerLease)]
        self.lease.on_read(next((r for r in leases if r.broker_id == self.broker_id), None))

    def _on_renewed(
        self, outcome: Outcome, _: None, record: BrokerLease, started_ms: float, incarnation: int
    ) -> None:
        if incarnation != self.incarnation or self.lease is None:
            return
        self._renewal_busy = False
        now_ms = self.now()
        if outcome == "ok":
            if self.lease.on_renewed(record, started_ms=started_ms, now_ms=now_ms):
                self._s.world.after(0, self.deliver, self._poll_at_once, (incarnation,))
        elif outcome == "refused":
            self.lease.on_refused(now_ms)
        else:
            self.lease.on_unknown(now_ms)

    def _poll_at_once(self, incarnation: int) -> None:
        if incarnation == self.incarnation:
            self._next_poll_ms = 0.0

    # -- the loop's tick: poll, decide, fetch --

    def _tick(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        self._s.world.after(TICK_MS, self.deliver, self._tick, (incarnation,))
        now_ms = self._turned_ms = self.now()
        if not self.is_ready or self.lease is None:
            return
        if not self._poll_busy and now_ms >= self._next_poll_ms:
            self._poll(now_ms)
        if now_ms >= self._next_flush_ms and not self.is_log_broken:
            self._next_flush_ms = now_ms + FLUSH_MS
            self.log.flushed_offset = self.log.log_end_offset
        if self.may_act():
            self._decide(now_ms)
        self._fetch(now_ms)

    def _poll(self, now_ms: float) -> None:
        self._poll_busy = True
        self._next_poll_ms = now_ms + POLL_MS
        self._s.store.read(self, self._on_polled, now_ms, self.incarnation)

    def _on_polled(
        self,
        outcome: Outcome,
        found: list[Record],
        started_ms: float,
        incarnation: int,
    ) -> None:
        if incarnation != self.incarnation or self.lease is None:
            return
        self._poll_busy = False
        if outcome != "ok":
            return
        now_ms = self.now()
        partition, _ = self._take_records(found)
        leases = [record for record in found if isinstance(record, BrokerLease)]
        self.peer_leases.observe(leases, started_ms=started_ms, now_ms=now_ms, plan=PLAN)
        was_fenced = not self.lease.may_act(now_ms)
        self._take_partition(partition)
        self.lease.on_cluster_read(started_ms)
        if was_fenced and self.may_act() and self.state.leader is not None:
            self.state.leader.resume(now_ms)
        self.after_change()

    def _take_partition(self, partition: Partition) -> None:
        before = self.state.partition
        if before is not None and before.version < partition.version:
            self.peer_leases.note_written(before, partition, self.now())
        leads = self.elector.leads(partition)
        if leads and self.state.leader is None:
            self._reach_tier()
        change = self.state.on_partition(
            partition,
            leads=leads,
            log=self.log,
            rules=self._s.rules,
            now_ms=self.now(),
        )
        if change is RoleChange.BECAME_LEADER:
            self._begin_to_lead()
        elif change is RoleChange.BECAME_FOLLOWER:
            self._begin_to_follow()
        elif change is RoleChange.NO_REPLICA:
            self.log = SimLog(self._s.tier)
        if change is RoleChange.NONE:
            self.fetches.replica.notify_waiters()  # Of another ISR, for example.
        else:
            self.fetches.replica.wake()

    def _reach_tier(self) -> None:
        """Have at least what the tier has before leading."""
        start = start_before_leading(self.log, self._s.tier.end, log_start_offset=0)
        if start is not None:
            self._s.checker.on_tier_ahead(self.broker_id, self.log, start)
            self.log.truncate_fully(start.offset, start.log_start_offset)

    def _begin_to_lead(self) -> None:
        leader = self.state.leader
        assert leader is not None
        self._s.checker.on_lead(
            self.broker_id,
            self.incarnation,
            leader.leader_epoch,
            self.log,
        )
        self.log.assign_leader_epoch(leader.leader_epoch)
        self.after_change()

    # -- deciding --

    def _decide(self, now_ms: float) -> None:
        partition = self.state.partition
        if partition is None or self._partition_busy or self.is_log_broken:
            return
        coordinators = ElectionCoordinators(
            self.brokers, self._is_live, self.peer_leases.is_stepping_down
        )
        coordinated = self._find_coordinated(partition, coordinators, now_ms)
        change = self.elector.shrink_isr(partition, self.peer_leases, coordinated, now_ms=now_ms)
        if change is not None and not self.is_draining:
            self._commit_decided(change)
            return
        leader = self.state.leader
        if leader is not None:
            self._lead(leader, now_ms)
            return
        if self.is_draining:
            change = leave_isr(partition, self.broker_id)
        else:
            writers = coordinators.of(partition.leader)
            change = None
            if partition.leader in coordinated:
                change = self.elector.elect(partition, self.peer_leases, now_ms=now_ms)
            if change is None:
                change = self.elector.takeover(
                    partition,
                    self.peer_leases,
                    is_unclean_allowed=self._s.is_unclean_allowed,
                    now_ms=now_ms,
                    is_coordinated=any(b != self.broker_id for b in writers[:1]),
                )
        if change is not None:
            self._commit_decided(change)

    def _find_coordinated(
        self, partition: Partition, coordinators: ElectionCoordinators, now_ms: float
    ) -> set[int]:
        """Return the dead that this broker writes for by now."""
        coordinated = set()
        for broker_id in partition.replicas:
            unattended_ms = self.peer_leases.unattended_ms(broker_id, now_ms)
            if unattended_ms is not None:
                wait_ms = coordinators.wait_ms(
                    self.broker_id, broker_id, unattended_ms, step_in_delay_ms=STEP_IN_DELAY_MS
                )
                coordinated |= {broker_id} if wait_ms == 0 else set()
        return coordinated

    def _commit_decided(self, change: PartitionChange) -> None:
        self._partition_busy = True
        self._s.store.commit(
            self, [change.after], change.checks, self._on_decided, self.incarnation
        )

    def _is_live(self, broker_id: int) -> bool:
        return broker_id == self.broker_id or self.peer_leases.is_live(broker_id)

    def _on_decided(self, _: Outcome, __: None, incarnation: int) -> None:
        """Whatever became of it is in the next reading."""
        if incarnation == self.incarnation:
            self._read_again(self._after_decision)

    def _after_decision(self) -> None:
        self._partition_busy = False

    def _lead(self, leader: LeaderState[Token], now_ms: float) -> None:
        if leader.needs_read:
            self._read_again(None)
            return
        if not leader.is_moving:
            successor = self.elector.preferred_successor(
                leader.partition, self.peer_leases, now_ms=now_ms
            )
            if self.is_draining:
                successor = self.elector.drain_successor(leader.partition, self.peer_leases)
            if successor is not None:
                leader.begin_hand_over(successor, is_leaving=self.is_draining, now_ms=now_ms)
        change = leader.propose(self.brokers, self.peer_leases, now_ms)
        if change is not None:
            self._s.store.commit(
                self,
                [change.after],
                change.checks,
                self._on_proposed,
                leader,
                change,
                self.incarnation,
            )
        self.after_change()

    def _on_proposed(
        self,
        outcome: Outcome,
        _: None,
        leader: LeaderState[Token],
        change: PartitionChange,
        incarnation: int,
    ) -> None:
        if incarnation != self.incarnation:
            return
        now_ms = self.now()
        if outcome == "ok":
            leader.on_written(change, now_ms)
        elif outcome == "conflict":
            leader.on_conflict()
        elif outcome == "unknown":
            leader.on_unknown(now_ms)
        else:
            leader.on_refused(change, now_ms)
        if leader.needs_read:
            self._read_again(None)
        self.after_change()

    def _read_again(self, then: Callable[[], None] | None) -> None:
        if then is None:
            if self._reading_again:
                return
            self._reading_again = True
        self._s.store.read(self, self._on_read_again, then, self.incarnation)

    def _on_read_again(
        self,
        outcome: Outcome,
        found: list[Record],
        then: Callable[[], None] | None,
        incarnation: int,
    ) -> None:
        if incarnation != self.incarnation:
            return
        if then is None:
            self._reading_again = False
        if outcome != "ok":
            self._read_again(then)
            return
        partition, _ = self._take_records(found)
        leader = self.state.leader
        if leader is not None and leader.needs_read:
            leader.on_read(partition, self.now())
        self._take_partition(partition)
        if then is not None:
            then()
        self.after_change()

    # -- leading --

    def on_produce(self, payload: Payload, is_all: bool, reply: Callable[..., None]) -> None:
        """Serve a produce request of one record."""
        leader, now_ms = self.state.leader if self.is_ready else None, self.now()
        if leader is None or not self.may_act():
            reply(ErrorCode.not_leader_or_follower)
            return
        if self.is_log_broken:
            reply(ErrorCode.kafka_storage_error)
            return
        try:
            leader.require_appendable(needs_all=is_all)
            offset, is_duplicate = self.log.append_as_leader(payload, leader.leader_epoch)
        except TidelogError as error:
            reply(error.code)
            return
        except OutOfOrder:
            self._s.checker.on_out_of_order(payload)
            reply(ErrorCode.out_of_order_sequence_number)
            return
        if not is_duplicate:
            leader.on_append(self.log.log_end_offset, now_ms)
        if is_all:
            leader.add_pending_ack(offset + 1, Token(reply, payload, offset, leader.leader_epoch))
        else:
            self._s.checker.on_ack(
                self.broker_id, leader.leader_epoch, payload, offset, is_all=False
            )
            reply(ErrorCode.none)
        self.after_change()
        if not is_duplicate:
            self.fetches.on_append()

    def on_consume(self, offset: int, reply: Callable[..., None]) -> None:
        """Serve a consumer, also from a follower."""
        leader = self.state.leader if self.is_ready else None
        if not self.is_ready or not self.may_act() or (leader and not leader.is_serving):
            reply(ErrorCode.not_leader_or_follower, [])
            return
        log = self.log
        if leader is not None and offset > log.log_end_offset:
            self._s.checker.on_consumer_cut_off(self.broker_id, offset, log.log_end_offset)
            reply(ErrorCode.offset_out_of_range, [])
            return
        if offset < log.local_log_start_offset:
            entries = self._s.tier.entries[
                offset : min(offset + READ_COUNT_MAX, log.high_watermark)
            ]
        else:
            entries = log.read(offset, log.high_watermark, READ_COUNT_MAX)
        epoch = None
        if leader is not None:
            epoch = leader.leader_epoch
            if leader.is_high_watermark_settled:
                self._s.checker.on_settled(self.broker_id, log.high_watermark)
        self._s.checker.on_read(self.broker_id, epoch, offset, entries)
        reply(ErrorCode.none, entries)

    def on_fetch(
        self, follower: SimNode, incarnation: int, number: int, request: FetchRequest
    ) -> None:
        """Serve a follower's fetch; nobody listens before this node is ready."""
        if not self.is_ready:
            return

        def answer(found: FetchedAnswer) -> None:
            self._s.network.send(
                self.broker_id,
                follower,
                follower.on_fetched,
                incarnation,
                self.broker_id,
                number,
                found,
            )

        self.fetches.serve(request, answer)

    def on_offsets(self, follower: SimNode, incarnation: int, fetch: ReplicaFetch) -> None:
        """Say where the log starts and ends, as ListOffsets does."""
        leader = self.state.leader if self.is_ready else None
        if leader is None or leader.leader_epoch != fetch.leader_epoch or not self.may_act():
            return
        log = self.log
        self._s.network.send(
            self.broker_id,
            follower,
            follower.on_leader_offsets,
            incarnation,
            fetch,
            (log.log_start_offset, log.local_log_start_offset, log.log_end_offset),
        )

    def after_change(self) -> None:
        """Carry over what the leader's state decided: high watermark and acks."""
        leader = self.state.leader
        if leader is not None:
            before = self.log.high_watermark
            if leader.high_watermark < before:
                self._s.checker.on_high_watermark_regressed(f"{before}→{leader.high_watermark}")
            if self.log.advance_high_watermark(leader.high_watermark):
                self._s.checker.on_high_watermark(self.log, before, is_leader=True)
                self.fetches.replica.wake_readers(1)
            if not leader.is_deposed and not self.may_act():
                return
        for ack in self.state.take_released():
            token = ack.token
            if ack.error is None:
                self._s.checker.on_ack(
                    self.broker_id, token.epoch, token.payload, token.offset, is_all=True
                )
                token.reply(ErrorCode.none)
            else:
                token.reply(ack.error.code)

    def tier(self, *, evicts: bool) -> None:
        """Copy what is committed to the tier; evict what it has."""
        leader = self.state.leader if self.is_up and self.is_ready else None
        if leader is None or not self.may_act() or not leader.is_serving:
            return
        entries, start = self._s.tier.entries, self.log.local_log_start_offset
        if len(entries) >= start:
            entries += self.log.entries[len(entries) - start : self.log.high_watermark - start]
        if evicts:
            self.log.evict(len(entries))

    # -- following --

    def _begin_to_follow(self) -> None:
        follower = self.state.follower
        assert follower is not None
        leader_id = follower.leader_id
        if leader_id >= 0:
            if leader_id not in self._fetchers:
                self._fetchers[leader_id] = self._s.machines.fetcher(
                    self, leader_id, fetch_count_max=self._s.fetch_count_max
                )
            self._fetchers[leader_id].follow(follower)
        if self.is_draining:
            follower.stop()

    def _fetch(self, now_ms: float) -> None:
        for fetcher in tuple(self._fetchers.values()):
            fetcher.step(now_ms)

    def next_fetch(self, follower: FollowerState) -> ReplicaFetch | None:
        """Return what to ask for, ``None`` where nothing can be."""
        if self.is_log_broken:
            return None
        fetch = follower.next_fetch(self.log)
        if fetch is None:
            return None
        is_in_sync = self.broker_id in follower.partition.isr
        start = start_before_following(self.log, self._s.tier.end, is_in_sync=is_in_sync)
        if start is None:
            return fetch
        self.log.truncate_fully(start.offset, start.log_start_offset)
        return follower.next_fetch(self.log)

    def send_fetch(self, leader_id: int, number: int, request: FetchRequest) -> None:
        """Send a fetch to its leader."""
        leader = self.peers[leader_id]
        self._s.network.send(
            self.broker_id, leader, leader.on_fetch, self, self.incarnation, number, request
        )

    def on_fetched(
        self, incarnation: int, leader_id: int, number: int, answer: FetchedAnswer
    ) -> None:
        """Take the answer to a fetch, the first time or once more."""
        if incarnation == self.incarnation:
            self._fetchers[leader_id].on_answer(number, answer)

    def take_fetched(
        self,
        follower: FollowerState,
        fetch: ReplicaFetch,
        answer: FetchAnswer,
        entries: Sequence[Entry],
    ) -> float:
        """Do what the partition's answer asks for; return how long to ask for nothing, in ms."""
        action = follower.on_answer(fetch, answer, self.log)
        match action:
            case Append():
                self.log.append_as_follower(entries)
                self._take_high_watermark(action.high_watermark)
                self.log.advance_log_start(action.log_start_offset)
            case Truncate():
                self.log.truncate_to(action.offset)
            case AskOffsets():
                leader = self.peers[fetch.leader_id]
                self._s.network.send(
                    self.broker_id, leader, leader.on_offsets, self, self.incarnation, fetch
                )
                return FETCH_TIMEOUT_MS
            case Ignore():
                return FETCH_RETRY_MS if action.must_wait else 0.0
            case TruncateFully():
                raise AssertionError("not an answer to a fetch")
        return 0.0

    def on_leader_offsets(
        self, incarnation: int, fetch: ReplicaFetch, offsets: tuple[int, int, int]
    ) -> None:
        """Take where the leader's log starts and ends."""
        follower = self.state.follower
        if incarnation != self.incarnation or follower is None:
            return
        start, local_start, end = offsets
        action = follower.on_offsets(
            fetch,
            self.log,
            leader_start=start,
            leader_local_start=local_start,
            leader_end=end,
            tier_end=self._s.tier.end,
        )
        if isinstance(action, TruncateFully):
            self.log.truncate_fully(action.offset, action.log_start_offset)
        elif isinstance(action, Truncate):
            self.log.truncate_to(action.offset)
        else:
            return
        self._fetchers[fetch.leader_id].resume()

    def _take_high_watermark(self, offset: int) -> None:
        before = self.log.high_watermark
        if self.log.advance_high_watermark(offset):
            self._s.checker.on_high_watermark(self.log, before, is_leader=False)

    # -- a log that breaks --

    def break_log(self) -> None:
        """Let the disk fail under a follower's log, and come back with a part of it.

        As the node's ``LogReopener``: the replica leaves the ISR; then the node registers again,
        and a reading begun after that shows whether anyone has taken it in again before.
        """
        follows = self.is_up and self.is_ready and self.state.follower is not None
        if follows and not self.is_log_broken:
            self.is_log_broken, self._has_registered_again = True, False
            for fetcher in self._fetchers.values():
                fetcher.on_trouble()
            self._s.store.read(self, self._on_broken_read, self.incarnation)

    def _on_broken_read(self, outcome: Outcome, found: list[Record], incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        if outcome != "ok":
            self._s.store.read(self, self._on_broken_read, incarnation)
            return
        partition, _ = self._take_records(found)
        self._take_partition(partition)
        change = leave_isr(partition, self.broker_id)
        if change is not None:
            self._has_registered_again = False
            self._s.store.commit(
                self, [change.after], change.checks, self._on_broken_step, incarnation
            )
        elif self.broker_id in partition.isr:
            self._end_trouble()  # Nobody else has its records: it must not come back with fewer.
        elif not self._has_registered_again:
            known = self.brokers[self.broker_id]
            self._s.store.commit(self, [known], (), self._on_registered_again, incarnation)
        else:
            low, high = self.log.flushed_offset, self.log.log_end_offset
            self.log.reopen(end_offset=self._s.random.randint(min(low, high), high))
            self._end_trouble()

    def _on_broken_step(self, _: Outcome, __: None, incarnation: int) -> None:
        if incarnation == self.incarnation:
            self._s.store.read(self, self._on_broken_read, incarnation)

    def _on_registered_again(self, outcome: Outcome, _: None, incarnation: int) -> None:
        if incarnation == self.incarnation:
            self._has_registered_again = outcome == "ok"
            self._s.store.read(self, self._on_broken_read, incarnation)

    def _end_trouble(self) -> None:
        self.is_log_broken = False
        for fetcher in self._fetchers.values():
            fetcher.on_exchanged()

    def evict_sessions(self) -> None:
        """End some of the sessions that followers have here."""
        if self.is_up:
            self.fetches.evict()

    # -- draining --

    def drain(self) -> None:
        """Hand over, leave the ISR and stop being a replica that counts."""
        if self.is_up and self.is_ready:
            self.is_draining = True
            if self.lease is not None:
                self.lease.step_down_reason = StepDownReason.DRAINING
            if self.state.follower is not None:
                self.state.follower.stop()

    def leave(self) -> None:
        """End this life in order: release the lease, with whatever of it arrives."""
        if self.lease is not None and self.is_ready and self._paused is None:
            record = self.lease.release()
            self._s.store.commit(self, [record], (), lambda *_: None)
        self.crash(Loss.NOTHING)

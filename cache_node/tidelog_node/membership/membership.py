"""Tracks which brokers are alive, this node included. No I/O.

``LeaseKeeper`` renews this node's lease, ``PeerWatch`` reads those of all brokers; both update
``Membership``. Its users call

- ``can_serve`` before each answer that promises something: an ack, records, a position;
- ``leads`` before this node acts as a partition's leader;
- ``live_brokers`` for the brokers that clients are sent to. This node is one of them without its
  lease too while it leads diskless partitions: their chains prove that no other node leads.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from tidelog_core.clock import SteadyClock, steady_clock_ms
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Broker, BrokerLease, Partition, StepDownReason
from tidelog_core.metadata.store import Check
from tidelog_core.replication.election import LeaderElector
from tidelog_core.replication.leases.lease_times import LeaseTimes, lease_times
from tidelog_core.replication.leases.observed_lease import WrongSuspicion
from tidelog_core.replication.leases.observed_time import ReadingPlan
from tidelog_core.replication.leases.own_lease import OwnLease
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.subscribers import Subscribers

from tidelog_node.membership.peer_clocks import PeerClocks

# After this node has found out that it cannot store, until it gives leads away. In an outage of the
# store the others read its lease, probe the store, and publish the same within this time.
STORE_GRACE_MS = 12_000
STORE_FAILED_MS_MAX = 9_000  # it is reported more often; brokers that can store wait for longer


class Membership:
    """One process's view of itself and of its peers. For the tasks of one event loop.

    ``can_serve`` and ``now_ms`` are for any thread.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        times: LeaseTimes,
        elector: LeaderElector,
        clock: SteadyClock = steady_clock_ms,
    ) -> None:
        self.broker_id = broker_id
        self.times = times
        self.elector = elector
        self.peers = PeerLeases(times, own=broker_id)
        self.peer_clocks = PeerClocks(broker_id)
        self.now_ms = clock
        self._own: OwnLease | None = None
        self._is_disk_fit = True
        self._store_lost_ms: float | None = None  # since when it cannot be written
        self._store_failed_ms = 0.0  # when that was reported last
        self._is_leaving = False
        self._is_started = False
        self._subscribers = Subscribers[[]]()
        self.refused = Subscribers[[]]()  # another broker's port refuses connections
        self.doubts = Subscribers[[]]()  # ``doubted`` has changed
        self._known: set[int] = set()
        self._dead: frozenset[int] = frozenset()
        self._suspected: frozenset[int] = frozenset()
        self.doubted: frozenset[int] = frozenset()  # the suspected, and who may soon be so
        # Clients are not sent to them for diskless partitions, see ``PeerLeases.has_vanished``.
        self.vanished: frozenset[int] = frozenset()
        # They have published a reason to lead no diskless partitions, or this node is to.
        self.unfit: frozenset[int] = frozenset()
        self._reading = 0  # increases whenever the known or dead brokers change
        # Whether this node leads any partition so. For any thread.
        self.leads_by_chain: Callable[[], bool] = lambda: False
        self._live: tuple[Mapping[int, Broker], int, bool, Mapping[int, Broker]] | None
        self._live = None

    def can_serve(self) -> bool:
        """Whether this node may answer and decide at this moment: its lease is valid."""
        own = self._own
        return own is not None and own.may_act(self.now_ms())

    def leads(self, partition: Partition) -> bool:
        """Whether this process leads the partition according to the record.

        It may answer only if ``can_serve`` is true too.
        """
        return self._is_started and self.elector.leads(partition)

    def led(self, image: ClusterImage) -> Iterator[tuple[str, Partition]]:
        """Yield the partitions that this process leads, each with its topic's name."""
        for topic_id, partitions in image.partitions_by_topic.items():
            name = image.topic_names.get(topic_id)
            if name is None:
                continue
            for partition in partitions:
                if partition.leader == self.broker_id and self.leads(partition):
                    yield name, partition

    def is_live(self, broker_id: int) -> bool:
        """Whether the broker can serve as far as this node knows."""
        if broker_id == self.broker_id:
            return self.can_serve()
        return self.peers.is_live(broker_id)

    def live_brokers(self, image: ClusterImage) -> Mapping[int, Broker]:
        """Return the registered brokers that can serve: the same object until they change."""
        is_here = self.can_serve() or self.leads_by_chain()
        if (
            self._live is None
            or self._live[0] is not image.brokers
            or self._live[1] != self._reading
            or self._live[2] != is_here
        ):
            live = {
                b: broker
                for b, broker in image.brokers.items()
                if (is_here if b == self.broker_id else self.peers.is_live(b))
            }
            self._live = (image.brokers, self._reading, is_here, live)
        return self._live[3]

    @property
    def dead(self) -> frozenset[int]:
        """The other brokers that have been known and are dead now."""
        return self._dead

    @property
    def suspected(self) -> frozenset[int]:
        """The dead, and the brokers that have been silent long enough to lead nothing diskless."""
        return self._suspected

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when a peer dies or comes back, or this node serves again.

        Also when its disk, or its way to the object store, changes, or ``unfit`` does.

        Returns a function that unsubscribes.
        """
        return self._subscribers.subscribe(callback)

    @property
    def is_disk_fit(self) -> bool:
        """Whether this node's disk takes records; if not, others should lead."""
        return self._is_disk_fit

    def report_disk(self, *, is_fit: bool) -> None:
        """Set whether the disk takes records; the next renewal of the lease publishes it."""
        self._is_disk_fit = is_fit
        self.elector.is_stepping_down = not is_fit
        self._set_step_down_reason()
        self._subscribers.notify()

    @property
    def can_store(self) -> bool:
        """Whether this node can write the object store; if not, others lead diskless partitions."""
        return self._store_lost_ms is None

    def report_store(self, *, can_store: bool) -> None:
        """Set whether the object store can be written; the next renewal publishes it.

        That it cannot be is reported again for as long as that lasts.
        """
        if not can_store:
            self._store_failed_ms = self.now_ms()
        if can_store != self.can_store:
            self._store_lost_ms = None if can_store else self.now_ms()
            self.elector.can_store = can_store
            self._set_step_down_reason()
            self._subscribers.notify()

    def gives_up_diskless(self) -> bool:
        """Whether this node cannot store, and all others have had time to say the same.

        After an outage of the store some say sooner than others that they can store again.
        """
        lost_ms, now_ms = self._store_lost_ms, self.now_ms()
        if lost_ms is None or now_ms - self._store_failed_ms >= STORE_FAILED_MS_MAX:
            return False
        return now_ms - lost_ms >= STORE_GRACE_MS

    def report_leaving(self) -> None:
        """Publish with the next renewal of the lease that others should lead and write.

        For a node that is stopping: it may keep its lease for some time.
        """
        self._is_leaving = True
        self._set_step_down_reason()

    # -- for the tasks that do the I/O --

    def start(self, partitions: Iterable[Partition]) -> None:
        """Use the first reading of the cluster after this process has registered."""
        self.elector.start(partitions)
        self._is_started = True

    def hold(self, own: OwnLease) -> None:
        """Set the lease that ``LeaseKeeper`` renews."""
        self._own = own
        self._set_step_down_reason()

    def observe(
        self, leases: Iterable[BrokerLease], *, started_ms: float, reading_ms: float | None = None
    ) -> list[WrongSuspicion]:
        """Add a reading of all leases that was begun at ``started_ms`` and has just returned.

        ``reading_ms`` was to pass since the reading before, ``None`` if there was no plan. Returns
        the suspicions that were wrong.
        """
        leases, plan = tuple(leases), None
        if reading_ms is not None:
            plan = ReadingPlan(reading_ms, self.times.renewal_ms(is_brisk=self.leads_by_chain()))
        before = self._known
        self._known = before | {lease.broker_id for lease in leases} - {self.broker_id}
        wrong = self.peers.observe(leases, started_ms=started_ms, now_ms=self.now_ms(), plan=plan)
        # A lease that has moved since the last reading was written after that reading began.
        self.peer_clocks.observe(leases, started_ms=started_ms)
        self._settle(has_grown=self._known != before)
        return wrong

    def note_unread(self) -> None:
        """Note that the leases could not be read."""
        self.peers.note_unread()
        self._settle_doubts()

    def note_registered(self, broker_ids: Iterable[int]) -> None:
        """Note brokers that have registered: they hold their leases."""
        registered = set(broker_ids) - {self.broker_id}
        before = self._known
        self._known = before | registered
        self.peers.note_registered(registered, self.now_ms())
        self._settle(has_grown=self._known != before)

    def note_lost(self, broker_id: int, since_ms: float) -> None:
        """Note that connections to the broker end since then: it may have died."""
        self.peers.note_lost(broker_id, since_ms)
        self._settle_doubts()

    def note_unanswered(self, broker_id: int) -> None:
        """Note that there is no new connection to the broker, for a reason that says nothing."""
        self.peers.note_unanswered(broker_id)
        self._settle_doubts()

    def note_refused(self, broker_id: int) -> None:
        """Note that the broker's port has refused a connection: it may have died."""
        if self.peers.note_refused(broker_id, self.now_ms()):
            self.refused.notify()
        self._settle()

    def note_reached(self, broker_id: int) -> None:
        """Note that the broker's port takes connections."""
        self.peers.note_reached(broker_id, self.now_ms())
        self._settle()

    def note_open_way(self, broker_id: int) -> None:
        """Note that something at the broker's address takes connections: the way out is open."""
        self.peers.note_open_way(broker_id, self.now_ms())

    def note_moved(self, checks: Container[Check]) -> None:
        """Note lease checks that a commit has lost: those brokers count as alive."""
        self.peers.note_moved(checks)
        self._settle()

    def _settle(self, *, has_grown: bool = False) -> None:
        dead = frozenset(b for b in self._known if self.peers.is_dead(b))
        suspected = frozenset(b for b in self._known if self.peers.is_suspected(b))
        if dead != self._dead or suspected != self._suspected or has_grown:
            self._dead, self._suspected = dead, suspected
            self._reading += 1
            self._subscribers.notify()
        self._settle_doubts()

    def _settle_doubts(self) -> None:
        now_ms = self.now_ms()
        self.vanished = frozenset(b for b in self._known if self.peers.has_vanished(b, now_ms))
        unfit = frozenset(b for b in self._known if not self.peers.may_lead_diskless(b))
        if self._own is not None and self._own.step_down_reason is not None:
            unfit |= {self.broker_id}
        if unfit != self.unfit:
            self.unfit = unfit
            self._subscribers.notify()
        doubted = frozenset(b for b in self._known if self.peers.is_doubted(b))
        if doubted != self.doubted:
            self.doubted = doubted
            self.doubts.notify()

    def on_cluster_read(self, started_ms: float) -> None:
        """Note that the cluster was read by a reading begun at ``started_ms``.

        Notifies the subscribers if this node may serve again after it was fenced.
        """
        own = self._own
        assert own is not None, "nobody reads the cluster for a lease before there is one"
        could_serve = self.can_serve()
        own.on_cluster_read(started_ms)
        if self.can_serve() and not could_serve:
            self._subscribers.notify()

    def _set_step_down_reason(self) -> None:
        if self._own is None:
            return
        if not self._is_disk_fit:
            self._own.step_down_reason = StepDownReason.DISK
        elif self._is_leaving:
            self._own.step_down_reason = StepDownReason.DRAINING
        else:
            self._own.step_down_reason = None if self.can_store else StepDownReason.STORE
        self._settle_doubts()


def new_membership(
    broker_id: int, config: NodeConfig, *, clock: SteadyClock = steady_clock_ms
) -> Membership:
    """Return the membership of a process that has just started."""
    stable_ms = config.leader_imbalance_check_interval_seconds * 1000
    return Membership(
        broker_id,
        times=lease_times(config),
        elector=LeaderElector(broker_id, preferred_stable_ms=stable_ms),
        clock=clock,
    )

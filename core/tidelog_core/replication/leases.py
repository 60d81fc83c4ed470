"""Decides who is alive: a broker's own lease, and the leases of the others.

Theory of operation. A broker renews its lease by writing its item with the counter one
higher; another broker takes it for dead when a reading, begun a whole lease after the
counter was first seen, still shows the same item version. Clocks are not compared: each
side measures on its own monotonic clock, and only the rates have to agree (see
``LeaseTimes.margin_ms``).

- The holder counts its lease from *before* it sent the renewal, and a margin less; the
  observer counts from *after* its reading came back. So the holder stops acting before
  any observer's lease is over, at any delay of network and store.
- A takeover is committed together with a check on the dead leader's lease item
  (``PeerLeases.check``). A renewal and a takeover therefore cannot both win: once a
  renewal is in, no takeover that was decided before can land any more.
- The holder calls ``may_act`` before every answer, so a process that was stopped (SIGSTOP,
  a suspended machine) learns from its clock that it is late before it acts on anything.
  A renewal after that does not count until the process has read the cluster again: others may
  have taken over. Because of the check above, a reading begun after the renewal shows every
  takeover that is still possible.
- A renewal whose outcome is unknown extends nothing, although others may see it: that
  only makes them wait longer.
- An observer that was stopped itself, or that could not read, counts no broker as dead until
  it has read again.
- A broker that leads *diskless* partitions is suspected before its lease is over: chains are safe
  whoever is alive, so that is a guess, and a wrong one costs a new chain. One of three is enough:
  (1) This observer had a connection to its process, which has ended, and the port has refused
  connections again and again for ``ended_ms``: the kernel does that when a process has died.
  (2) The port refuses, and the broker misses a renewal. It renews every ``brisk_renew_ms``, so this
  takes ``refusal_ms``. (3) It has been silent for ``suspicion_ms``. A host that is down refuses
  nothing, so its leads wait for that.
- A filter between two nodes, or a proxy that has ended, refuses as well. So (1) may be wrong, but
  once for each process: a renewal that was written after the first refusal shows that it lives
  behind a closed port, and so does the port if it takes connections again before another process
  has registered. From then on its refusals count for nothing by themselves. Those of a process that
  was never reached do not either: it may not listen yet. A takeover that was decided before such a
  renewal, and is written after it, is lost by its check.
- Renewals stop once the event loop that answers clients has not turned for
  ``LeaseTimes.stall_ms`` (``can_renew``). So a process that hangs loses its lease at most
  ``stall_ms`` later than one that died.

Two threads use an ``OwnLease``: one renews it, the other acts on it. The renewing thread
calls everything except ``may_act`` and ``on_cluster_read``; the acting thread calls those two,
and sets ``step_down_reason``. Each attribute has one writer, and a single assignment publishes a
change to the other thread, so no lock is needed:

- ``may_act`` reads the grant once. A grant never changes, and is valid until its time on the
  clock. A thread that is delayed between reading the clock and the grant decides as if it
  had been delayed after the decision; the margin covers both.
- A renewal after a lapse makes a grant with a new fence. Only ``on_cluster_read`` takes a
  fence away, on the thread that acts, after that thread has read the cluster. If a
  further lapse puts up another fence just then, the number that it notes is that of the
  fence before, and the new one stays.
- ``begin_renewal`` reads ``step_down_reason`` once. If it is set just after that, the next renewal
  publishes it: other brokers see one interval later that another broker should lead.
- A lapse is detected by the clock when a renewal returns. If the renewing thread was delayed
  there, the new grant may already have expired: its time is counted from the sending.

The clock must continue while the process or the machine is suspended (``CLOCK_BOOTTIME``).
A broker whose lease item was written by another process of the same id must see that
incarnation dead first, unless it knows that process to be gone (it holds the lock of the
data directory that the incarnation used).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.config import NodeConfig
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.records import (
    BrokerLease,
    Partition,
    StepDownReason,
    broker_lease_key,
    check,
)
from tidelog_core.metadata.store import ABSENT, UNREADABLE_VERSION, Check, Item
from tidelog_core.replication.election_coordinators import ISR_SHRINK_DELAY_MS, STEP_IN_DELAY_MS

NOBODY = UUID(int=0)  # the incarnation in a lease that cannot be read
RELEASED = 0  # the counter of a broker that was shut down in order; it starts again at 1
LEASE_MS = 9_000
RENEW_MS = 3_000
RENEWALS_RETRIED_PER_INTERVAL = 6
LATE_MS = 1_500  # a renewal that is later than this is suspicious
BRISK_RENEW_MS = 1_000  # between two renewals of a broker that leads diskless partitions
BRISK_LATE_MS = 500  # a renewal that is later than this is suspicious if the port refuses
ENDED_MS = 300  # for so long the port of a process that was reached refuses until it is suspected
REFUSALS_MIN = 3  # in that time
RENEWALS_PER_LEASE_MIN = 3
MARGIN_PARTS = 9  # the margin is this part of the lease: 1 s of 9 s
STALL_NUMERATOR, STALL_DENOMINATOR = 2, 3  # of the lease: 6 s of 9 s


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The duration and the renewal interval of a lease, milliseconds."""

    lease_ms: int = LEASE_MS
    renew_ms: int = RENEW_MS

    def __post_init__(self) -> None:
        if not 0 < self.renew_ms * 2 <= self.lease_ms:
            raise ValueError(
                f"a lease of {self.lease_ms} ms must last at least two renewals,"
                f" and renewing every {self.renew_ms} ms does not leave that"
            )

    @property
    def margin_ms(self) -> int:
        """The time by which the holder stops before observers see its lease expire.

        Covers clocks whose rates differ by up to a tenth, and the time from the check of
        ``may_act`` until the answer has left the process.
        """
        return self.lease_ms // MARGIN_PARTS

    @property
    def silent_ms_max(self) -> int:
        """The longest time since the last renewal of a broker that has outlived a dead one.

        A broker that died at the same time renewed at most ``renew_ms`` later, and has been
        silent for the rest of the lease. The margin allows for a late renewal.
        """
        return self.lease_ms - self.renew_ms - self.margin_ms

    @property
    def suspicion_ms(self) -> int:
        """The time without a renewal after which others take a broker's diskless partitions.

        A chain is safe whoever is alive, so this is a guess: a wrong one costs a new chain.
        """
        return min(self.lease_ms, self.renew_ms + LATE_MS)

    @property
    def brisk_renew_ms(self) -> int:
        """The time between two renewals of a broker that leads diskless partitions."""
        return min(self.renew_ms, BRISK_RENEW_MS)

    @property
    def refusal_ms(self) -> int:
        """The time without a renewal, while the port refuses connections, until suspicion.

        A process that starts again takes longer than that only if it misses a renewal too.
        """
        return min(self.suspicion_ms, self.brisk_renew_ms + BRISK_LATE_MS)

    @property
    def ended_ms(self) -> int:
        """The time for which the port of a process that was reached refuses, until suspicion.

        The kernel closes the connections and the port of a process when it dies. A process that
        starts again, and registers within this time, keeps its partitions.
        """
        return min(self.refusal_ms, ENDED_MS)

    @property
    def retry_ms(self) -> int:
        """The pause after a failed renewal."""
        return max(1, self.renew_ms // RENEWALS_RETRIED_PER_INTERVAL)

    @property
    def stall_ms(self) -> int:
        """The longest time that the event loop may be blocked while the lease is renewed."""
        return self.lease_ms * STALL_NUMERATOR // STALL_DENOMINATOR

    def can_renew(self, *, turned_ms: float, now_ms: float) -> bool:
        """Whether the event loop, last seen running at ``turned_ms``, is not blocked too long."""
        return now_ms - turned_ms < self.stall_ms


def lease_times(config: NodeConfig) -> LeaseTimes:
    """Return the times for these settings.

    The renewal interval is reduced for a short lease, so that only the lease needs to be set.
    """
    lease_ms = config.broker_session_timeout_ms
    renew_ms = min(config.broker_heartbeat_interval_ms, lease_ms // RENEWALS_PER_LEASE_MIN)
    return LeaseTimes(lease_ms, renew_ms)


@dataclass(frozen=True, slots=True)
class _Grant:
    """The effects of a renewal in one value: another thread sees all of them or none."""

    valid_until_ms: float
    fence: int  # the number of the fence that a reading of the cluster must have ended
    reread_from_ms: float  # a reading begun then or later ends it


class OwnLease:
    """This process's lease. One renewal at a time; the caller does the I/O.

    Fenced from the start: it acts after its first renewal and a reading after that.
    ``may_act``, ``on_cluster_read`` and setting ``step_down_reason`` are for the thread that
    acts, all else is for the one that renews.
    """

    def __init__(
        self, broker_id: int, incarnation: UUID, *, times: LeaseTimes, found: BrokerLease | None
    ) -> None:
        self._times = times
        self._record = BrokerLease(
            broker_id=broker_id,
            incarnation=incarnation,
            counter=RELEASED if found is None else found.counter,
            version=ABSENT if found is None else found.version,
        )
        self._grant: _Grant | None = None  # None: never renewed, or given up
        self._fence_count = 0  # one for each renewal that found no grant that still held
        self._ended_fence = 0  # the last that a reading has ended; set by the thread that acts
        self._has_renewed = False
        self._next_renewal_ms: float | None = None  # None: immediately
        self.is_superseded = False  # another process has this broker id: never renew again
        self.needs_read = False  # the item must be read before the next renewal
        self.step_down_reason: StepDownReason | None = None  # published by the next renewal

    def may_act(self, now_ms: float) -> bool:
        """Whether this broker may acknowledge, serve and decide at this moment."""
        grant = self._grant  # Read once: a renewal may replace it at any time.
        return (
            grant is not None and grant.fence == self._ended_fence and now_ms < grant.valid_until_ms
        )

    def is_renewal_due(self, now_ms: float) -> bool:
        """Whether to begin a renewal now."""
        if self.is_superseded:
            return False
        return self._next_renewal_ms is None or now_ms >= self._next_renewal_ms

    @property
    def next_renewal_ms(self) -> float | None:
        """The due time of the next renewal, on the own clock; ``None``: immediately."""
        return self._next_renewal_ms

    def begin_renewal(self, now_ms: float, *, is_brisk: bool = False) -> BrokerLease:
        """Return the record to put. Report its outcome to one of the ``on_`` methods.

        ``is_brisk``: this broker leads diskless partitions, and renews again sooner.
        """
        assert not self.needs_read, "read the lease item first"
        times = self._times
        self._next_renewal_ms = now_ms + (times.brisk_renew_ms if is_brisk else times.renew_ms)
        return BrokerLease(
            broker_id=self._record.broker_id,
            incarnation=self._record.incarnation,
            counter=self._record.counter + 1,
            step_down_reason=self.step_down_reason,
            version=self._record.version,
        )

    def release(self) -> BrokerLease:
        """Return the record that releases the lease."""
        self._grant = None
        return BrokerLease(
            broker_id=self._record.broker_id,
            incarnation=self._record.incarnation,
            counter=RELEASED,
            version=self._record.version,
        )

    def on_renewed(self, record: BrokerLease, *, started_ms: float, now_ms: float) -> bool:
        """Note that the renewal begun at ``started_ms`` is in.

        Returns whether the cluster must be read before this broker acts again.
        """
        before = self._grant
        reread_from_ms = now_ms
        if before is None or now_ms >= before.valid_until_ms:
            self._fence_count += 1
        else:
            reread_from_ms = before.reread_from_ms
        self._record = _at_version(record, record.version + 1)
        self._has_renewed = True
        valid_until_ms = started_ms + self._times.lease_ms - self._times.margin_ms
        self._grant = _Grant(valid_until_ms, self._fence_count, reread_from_ms)
        return self._fence_count != self._ended_fence

    def withdraw(self) -> None:
        """Stop acting until after the next renewal and a reading of the cluster after it."""
        self._grant = None

    def put_off(self, now_ms: float) -> None:
        """Note that no renewal was begun although one was due."""
        self._retry(now_ms)

    def on_refused(self, now_ms: float) -> None:
        """Note that the store wrote nothing (``StoreUnavailable``)."""
        self._retry(now_ms)

    def on_unknown(self, now_ms: float) -> None:
        """Note that the write may or may not have landed, or that it conflicted."""
        self.needs_read = True
        self._retry(now_ms)

    def on_read(self, found: BrokerLease | None) -> None:
        """Take the current item."""
        self.needs_read = False
        if found is None:
            self._record = _at_version(self._record, ABSENT)
        elif found.incarnation == self._record.incarnation or not self._has_renewed:
            # Our own lost renewal, or before the first one the record of an earlier process.
            self._record = BrokerLease(
                broker_id=found.broker_id,
                incarnation=self._record.incarnation,
                counter=found.counter,
                version=found.version,
            )
        else:
            self._grant = None
            self.is_superseded = True

    def on_cluster_read(self, started_ms: float) -> None:
        """Note that the cluster was read by a reading begun at ``started_ms``."""
        grant = self._grant  # Read once: a lapse after this sets a fence of its own.
        if grant is not None and started_ms >= grant.reread_from_ms:
            self._ended_fence = grant.fence

    def _retry(self, now_ms: float) -> None:
        self._next_renewal_ms = now_ms + self._times.retry_ms


def _at_version(record: BrokerLease, version: int) -> BrokerLease:
    return BrokerLease(
        broker_id=record.broker_id,
        incarnation=record.incarnation,
        counter=record.counter,
        version=version,
    )


def read_leases(items: Iterable[Item]) -> list[BrokerLease]:
    """Return the brokers' leases, including those of unreadable items.

    An unreadable item becomes a lease of ``NOBODY``. Its version still moves while the broker
    is alive, and the broker's next renewal repairs the item.
    """
    leases = []
    for item in items:
        try:
            leases.append(BrokerLease.from_item(item))
        except CorruptItem:
            if item.id.key.isdecimal():
                broker_id = int(item.id.key)
                leases.append(
                    BrokerLease(
                        broker_id=broker_id,
                        incarnation=NOBODY,
                        counter=RELEASED + 1,
                        version=item.version,
                    )
                )
    return leases


@dataclass(slots=True)
class _Observation:
    record: BrokerLease
    after_ms: float  # it was written after this: a reading begun then showed an earlier one
    first_seen_ms: float
    confirmed_ms: float  # when the last reading that showed it was begun
    # When it was found dead, or when a change after its death was last written; None if alive.
    attended_ms: float | None = None
    has_moved: bool = False  # a commit's check has failed on it, and it was not read since

    @property
    def is_confirmed(self) -> bool:
        """Whether a later reading than the first one has shown the same."""
        return self.confirmed_ms > self.first_seen_ms


@dataclass(slots=True)
class _Refusal:
    """Connections to a broker's port that were refused, one after the other."""

    since_ms: float
    count: int = 0


class PeerLeases:
    """The leases as this broker has seen them, timed on its own clock."""

    def __init__(self, times: LeaseTimes) -> None:
        self._times = times
        self._observations: dict[int, _Observation] = {}
        self._registered: dict[int, float] = {}  # when it was noted; until a later reading
        self._refused: dict[int, _Refusal] = {}  # by broker, while its port refuses connections
        self._lost: dict[int, float] = {}  # since when a connection has ended, until the next one
        self._reached: set[int] = set()  # there was a connection to the registered process
        self._refuted: set[int] = set()  # the registered process has lived behind a closed port
        self._read_ms = -math.inf  # when the last reading was begun
        self._has_read = False

    def observe(self, leases: Iterable[BrokerLease], *, started_ms: float, now_ms: float) -> None:
        """Take a reading of all leases, begun at ``started_ms`` and back at ``now_ms``."""
        self._has_read = True
        self._read_ms = max(self._read_ms, started_ms)
        self._registered = {b: ms for b, ms in self._registered.items() if ms > started_ms}
        for lease in leases:
            known = self._observations.get(lease.broker_id)
            if known is None or lease.version > known.record.version:
                after_ms = -math.inf if known is None else known.confirmed_ms
                self._observations[lease.broker_id] = _Observation(
                    lease, after_ms, now_ms, started_ms
                )
            elif lease.version == known.record.version:
                known.confirmed_ms = max(known.confirmed_ms, started_ms)
                known.has_moved = False  # A reading counts more than a lost check.
            seen = self._observations[lease.broker_id]
            refusal = self._refused.get(lease.broker_id)
            if refusal is not None and seen.after_ms >= refusal.since_ms:
                self._refuted.add(lease.broker_id)
            if seen.attended_ms is None and self.is_dead(lease.broker_id):
                seen.attended_ms = now_ms

    def is_dead(self, broker_id: int) -> bool:
        """Whether the broker can no longer act: it has released its lease, or the lease is over.

        False until that is certain.
        """
        if broker_id in self._registered:
            return False
        known = self._observations.get(broker_id)
        if known is None:
            return self._has_read
        if known.record.version == UNREADABLE_VERSION or known.has_moved:
            return False
        if known.record.counter == RELEASED:
            return True
        return known.confirmed_ms - known.first_seen_ms >= self._times.lease_ms

    def is_suspected(self, broker_id: int) -> bool:
        """Whether the broker is dead, or probably is: others may take its diskless partitions.

        See the module for the three reasons.
        """
        if self.is_dead(broker_id):
            return True
        known = self._observations.get(broker_id)
        if known is None or broker_id in self._registered or known.has_moved:
            return False
        if known.record.version == UNREADABLE_VERSION:
            return False
        silent_ms = known.confirmed_ms - known.first_seen_ms
        return silent_ms >= self._times.suspicion_ms or self._is_refused_long(broker_id, known)

    def _is_refused_long(self, broker_id: int, known: _Observation) -> bool:
        """Whether the broker's port has refused connections for long enough to suspect it."""
        refusal, times = self._refused.get(broker_id), self._times
        if refusal is None:
            return False
        if self._seems_ended(broker_id, known, refusal):
            return True
        since_ms = max(known.first_seen_ms, refusal.since_ms)
        return known.confirmed_ms - since_ms >= times.refusal_ms

    def _seems_ended(self, broker_id: int, known: _Observation, refusal: _Refusal) -> bool:
        """Whether the refusals alone say that the broker's process has ended."""
        if not self.shows_end(broker_id) or refusal.count < REFUSALS_MIN:
            return False
        refused_ms = known.confirmed_ms - refusal.since_ms
        return known.is_confirmed and refused_ms >= self._times.ended_ms

    def shows_end(self, broker_id: int) -> bool:
        """Whether refusals of the broker's port are a reason to suspect it by themselves."""
        return broker_id in self._reached and broker_id not in self._refuted

    def has_vanished(self, broker_id: int) -> bool:
        """Whether clients should not be sent to the broker for diskless partitions.

        It is suspected; or it is out of this observer's reach, and has shown no life since. That
        lasts for a moment only: either a renewal is seen, or the broker is suspected. Of a process
        that has lived behind a closed port it says nothing.
        """
        if self.is_suspected(broker_id):
            return True
        if broker_id in self._refuted:
            return False
        known, refusal = self._observations.get(broker_id), self._refused.get(broker_id)
        since_ms = self._lost.get(broker_id) if refusal is None else refusal.since_ms
        if since_ms is None or known is None or known.has_moved or broker_id in self._registered:
            return False
        return known.after_ms < since_ms

    def is_doubted(self, broker_id: int) -> bool:
        """Whether the broker may be suspected within ``refusal_ms``: a reason to get ready.

        Its port refuses connections, or it has been silent for all but that of ``suspicion_ms``.
        """
        known, times = self._observations.get(broker_id), self._times
        if known is None or broker_id in self._registered:
            return False
        if broker_id in self._refused or self.is_suspected(broker_id):
            return True
        silent_ms = known.confirmed_ms - known.first_seen_ms
        return not known.has_moved and silent_ms >= times.suspicion_ms - times.refusal_ms > 0

    def note_lost(self, broker_id: int, since_ms: float) -> None:
        """Note that connections to the broker end since then: it may have died."""
        self._lost.setdefault(broker_id, since_ms)

    def note_refused(self, broker_id: int, now_ms: float) -> bool:
        """Note that the broker's port has refused a connection; return whether it did not before.

        ``observe`` is due then.
        """
        refusal = self._refused.setdefault(broker_id, _Refusal(now_ms))
        refusal.count += 1
        return refusal.count == 1

    def note_reached(self, broker_id: int) -> bool:
        """Note a connection to the broker's process; return whether there was none just before."""
        known, refusal = self._observations.get(broker_id), self._refused.get(broker_id)
        # Another process would have registered: this one seemed to have ended, and lives.
        if known and refusal and self._seems_ended(broker_id, known, refusal):
            self._refuted.add(broker_id)
        self._reached.add(broker_id)
        was_lost = self._lost.pop(broker_id, None) is not None
        return self._refused.pop(broker_id, None) is not None or was_lost

    def note_unanswered(self, broker_id: int) -> None:
        """Note that there is no new connection to the broker, for a reason that says nothing."""
        self._lost.pop(broker_id, None)

    def refuses(self, broker_id: int) -> bool:
        """Whether the broker's port has refused the last connection."""
        return broker_id in self._refused

    def next_look_ms(self) -> float | None:
        """Return when a reading may show that a broker whose port refuses does not renew its lease.

        The first one is due at once: later ones show whether it was renewed since. ``None`` if
        no broker's port refuses, or those brokers are suspected already. Where a reading in time
        has shown nothing, because the lease's item is gone or damaged, the next is as long after.
        """
        times, due = self._times, []
        for broker_id, refusal in self._refused.items():
            known = self._observations.get(broker_id)
            if known is None or self.is_suspected(broker_id):
                continue
            wait_ms, since_ms = times.refusal_ms, max(known.first_seen_ms, refusal.since_ms)
            ended_ms = refusal.since_ms + times.ended_ms
            if self.shows_end(broker_id) and not (
                known.is_confirmed and known.confirmed_ms >= ended_ms
            ):
                wait_ms, since_ms = times.ended_ms, refusal.since_ms
            is_begun = known.confirmed_ms >= refusal.since_ms
            due_ms = since_ms + wait_ms if is_begun else refusal.since_ms
            due.append(due_ms if due_ms > self._read_ms else self._read_ms + wait_ms)
        return min(due, default=None)

    def has_died(self, broker_id: int) -> bool:
        """Whether the broker's lease was seen, and it can no longer act.

        A broker that was never seen may have started since the last reading.
        """
        return broker_id in self._observations and self.is_dead(broker_id)

    def note_written(self, before: Partition, after: Partition, now_ms: float) -> None:
        """Note from a newer record that changes after a broker's death are being written."""
        gone = set(before.isr).difference(after.isr)
        if before.leader != after.leader:
            gone.add(before.leader)
        for broker_id in gone:
            known = self._observations.get(broker_id)
            if known is not None and known.attended_ms is not None:
                known.attended_ms = now_ms

    def unattended_ms(self, broker_id: int, now_ms: float) -> float | None:
        """Return the time since a change after the broker's death was last written.

        Returns ``None`` if it is not dead.
        """
        known = self._observations.get(broker_id)
        return None if known is None or known.attended_ms is None else now_ms - known.attended_ms

    def is_left_to_leaders(self, broker_id: int, now_ms: float) -> bool:
        """Whether leaders remove the dead broker from their ISRs: no coordinator did in time."""
        waited_ms = self.unattended_ms(broker_id, now_ms)
        if waited_ms is None:
            return False
        has_left = self._observations[broker_id].record.counter == RELEASED
        return waited_ms >= (STEP_IN_DELAY_MS if has_left else ISR_SHRINK_DELAY_MS)

    def note_moved(self, checks: Container[Check]) -> None:
        """Take checks that a commit has lost: their brokers are alive until they are read again."""
        for broker_id, known in self._observations.items():
            if self.check(broker_id) in checks:
                known.has_moved = True
                known.attended_ms = None

    def note_registered(self, broker_ids: Iterable[int], now_ms: float) -> None:
        """Note registrations: those brokers are alive until a reading shows otherwise.

        A broker registers while it holds its lease, so the lease need not be read for it.
        """
        for broker_id in broker_ids:
            self._registered[broker_id] = now_ms
            # It has another process now, which may not listen yet.
            self._refused.pop(broker_id, None)
            self._lost.pop(broker_id, None)
            self._reached.discard(broker_id)
            self._refuted.discard(broker_id)
            known = self._observations.get(broker_id)
            if known is not None:
                known.attended_ms = None

    def is_live(self, broker_id: int) -> bool:
        """Whether the broker has been seen and not been found dead."""
        is_seen = broker_id in self._observations or broker_id in self._registered
        return is_seen and not self.is_dead(broker_id)

    def is_fresh(self, broker_id: int, now_ms: float) -> bool:
        """Whether the broker has renewed late enough to have outlived all brokers dead by now."""
        known = self._observations.get(broker_id)
        return (
            known is not None
            and not self.is_dead(broker_id)
            and now_ms - known.after_ms <= self._times.silent_ms_max
        )

    def step_down_reason(self, broker_id: int) -> StepDownReason | None:
        """Return the reason that the broker has published, ``None`` if it has not."""
        known = self._observations.get(broker_id)
        if known is None or broker_id in self._registered:
            return None  # The reason is of an earlier process.
        return known.record.step_down_reason

    def is_stepping_down(self, broker_id: int) -> bool:
        """Whether the broker has published a reason to lead nothing.

        One that cannot write the object store leads replicated partitions as before.
        """
        return self.step_down_reason(broker_id) not in (None, StepDownReason.STORE)

    def may_lead_diskless(self, broker_id: int) -> bool:
        """Whether the broker has published no reason not to lead diskless partitions."""
        return self.step_down_reason(broker_id) is None

    def cut_from_store(self) -> frozenset[int]:
        """Return the live brokers that say that they cannot write the object store."""
        return frozenset(
            b
            for b in self._observations
            if self.step_down_reason(b) is StepDownReason.STORE and not self.is_dead(b)
        )

    def check(self, broker_id: int) -> Check:
        """Return the condition that the broker has not renewed since it was last seen."""
        known = self._observations.get(broker_id)
        if known is None:
            return Check(broker_lease_key(broker_id), ABSENT)
        return check(known.record)

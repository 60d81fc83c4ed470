"""Decides from readings of the leases, and from ports, which other brokers are alive.

``lease_times`` says how a lease works. The rules of an observer:

- An observer that was stopped itself, or that could not read, counts no broker as dead until
  it has read again.
- A broker that leads *diskless* partitions is suspected before its lease is over: chains are safe
  even if it is alive, so that is a guess, and a wrong one costs a new chain. One of three is
  enough: (1) This observer had a connection to its process, which has ended, and the port has
  refused connections again and again for ``ended_ms``, while another broker took one
  (``peer_ports``). (2) The port refuses, and the broker misses a renewal. It renews every
  ``brisk_renew_ms``, so this takes ``refusal_ms``. (3) It has been silent for ``suspicion_ms``. A
  host that is down refuses nothing, so its leads wait for that.
- ``peer_ports`` says when (1) may be wrong, and how often. A takeover that was decided before a
  renewal, and is written after it, is lost by its check.
- All three need a reading that was begun since. An observer that cannot reach the metadata store
  suspects nobody new.
- Timeouts adapt. Time in which the observer did not run, or in which it could not use the store
  itself, counts for little (``observed_time``). A broker that was suspected wrongly gets more time
  (``adaptive_timeouts``). Both only ever make a suspicion, or a death, later than the times above.
  (1) does not depend on time, and stays as fast as it is.

**A takeover is safe even if its suspicion was wrong**, so none of this is needed for safety. Leader
epochs and the check of the lease in the takeover's write fence the leader of a replicated
partition, the seal of its chain that of a diskless one. And a leader whose own lease is over stops
acting by its own clock (``own_lease``), even if others still count on it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator

from tidelog_core.metadata.records import (
    BrokerLease,
    Partition,
    StepDownReason,
    broker_lease_key,
    check,
)
from tidelog_core.metadata.store import ABSENT, UNREADABLE_VERSION, Check
from tidelog_core.replication.leases.adaptive_timeouts import AdaptiveTimeouts
from tidelog_core.replication.leases.election_coordinators import (
    ISR_SHRINK_DELAY_MS,
    STEP_IN_DELAY_MS,
)
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_core.replication.leases.observed_lease import ObservedLease, WrongSuspicion
from tidelog_core.replication.leases.observed_time import ObservedTime, ReadingPlan
from tidelog_core.replication.leases.own_lease import RELEASED
from tidelog_core.replication.leases.peer_ports import REFUSALS_MIN, PeerPorts, Refusal


class PeerLeases:
    """The leases as this broker has seen them, timed on its own clock."""

    def __init__(
        self,
        times: LeaseTimes,
        *,
        own: int | None = None,
        timeouts: AdaptiveTimeouts | None = None,
    ) -> None:
        """``own`` is the observer's id, if it is a broker."""
        self._times = times
        self._own = own
        self._timeouts = timeouts or AdaptiveTimeouts(times)
        self._observed = ObservedTime()
        self._observations: dict[int, ObservedLease] = {}
        self._registered: dict[int, float] = {}  # when it was noted; until a later reading
        self._ports = PeerPorts()
        self._is_blind = False  # the last reading has failed
        self._read_ms = -math.inf  # when the last reading was begun
        self._has_read = False

    def observe(
        self,
        leases: Iterable[BrokerLease],
        *,
        started_ms: float,
        now_ms: float,
        plan: ReadingPlan | None = None,
    ) -> list[WrongSuspicion]:
        """Take a reading of all leases, begun at ``started_ms`` and back at ``now_ms``.

        ``plan`` is what the observer had planned; without one all of its time counts. Returns the
        suspicions that the reading has shown to be wrong.
        """
        leases, wrong = tuple(leases), list[WrongSuspicion]()
        counted_ms = self._observed.on_reading(
            started_ms, plan, has_renewed=self._has_own_renewed(leases)
        )
        self._timeouts.decay(now_ms)
        self._has_read, self._is_blind = True, False
        self._read_ms = max(self._read_ms, started_ms)
        self._registered = {b: ms for b, ms in self._registered.items() if ms > started_ms}
        for lease in leases:
            known = self._observations.get(lease.broker_id)
            if known is None or lease.version > known.record.version:
                if known is not None and self._was_wrongly_suspected(known, lease):
                    silent_ms = known.silent_ms + counted_ms
                    wrong.append(self._note_wrong(known, silent_ms=silent_ms, now_ms=now_ms))
                after_ms = -math.inf if known is None else known.confirmed_ms
                self._observations[lease.broker_id] = ObservedLease(
                    lease, after_ms, now_ms, started_ms
                )
            elif lease.version == known.record.version:
                known.confirm(started_ms, counted_ms=counted_ms)
            seen = self._observations[lease.broker_id]
            refusal = self._ports.refusal(lease.broker_id)
            is_alive = refusal is not None and seen.after_ms >= refusal.since_ms
            if refusal is not None and is_alive and self._is_about(lease.broker_id, refusal):
                self._ports.refute(lease.broker_id)
            if seen.attended_ms is None and self.is_dead(lease.broker_id):
                seen.attended_ms = now_ms
            self._note_suspicion(lease.broker_id)
        return wrong

    def _has_own_renewed(self, leases: Iterable[BrokerLease]) -> bool | None:
        """Whether the reading shows another renewal of the observer's, ``None`` without a lease."""
        for lease in leases:
            if lease.broker_id == self._own:
                known = self._observations.get(lease.broker_id)
                return known is None or lease.version > known.record.version
        return None

    def _note_suspicion(self, broker_id: int) -> None:
        """Keep that the broker is suspected, for when its lease is renewed."""
        known = self._observations.get(broker_id)
        if known is not None and self.is_suspected(broker_id):
            known.was_suspected = True
            known.was_late |= self._has_missed_renewals(broker_id, known)

    def _was_wrongly_suspected(self, known: ObservedLease, lease: BrokerLease) -> bool:
        """Whether the lease shows that the broker's process was suspected and is alive."""
        self._note_suspicion(lease.broker_id)  # Its port may have refused since the last reading.
        return known.was_suspected and known.is_renewed_by(lease) and lease.broker_id != self._own

    def _note_wrong(
        self, known: ObservedLease, *, silent_ms: float, now_ms: float
    ) -> WrongSuspicion:
        broker_id = known.record.broker_id
        if known.was_late:  # Else its port was closed: ``peer_ports`` keeps that.
            late_ms = silent_ms - self._times.suspicion_ms
            self._timeouts.note_wrong(broker_id, late_ms=late_ms, now_ms=now_ms)
        return WrongSuspicion(broker_id, silent_ms, self._timeouts.extra_ms(broker_id))

    def extra_ms(self, broker_id: int) -> float:
        """Return the time beyond its timeouts that the broker gets, because it was late before."""
        return self._timeouts.extra_ms(broker_id)

    def is_dead(self, broker_id: int) -> bool:
        """Whether the broker can no longer act: it has released its lease, or the lease is over.

        False until that is certain, and for longer where timeouts adapt.
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
        timeout_ms = self._times.suspicion_ms + self._timeouts.extra_ms(broker_id)
        return known.silent_ms >= max(self._times.lease_ms, timeout_ms)

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
        refusal = self._ports.refusal(broker_id)
        return self._has_missed_renewals(broker_id, known) or (
            refusal is not None and self._seems_ended(broker_id, known, refusal)
        )

    def _has_missed_renewals(self, broker_id: int, known: ObservedLease) -> bool:
        """Whether the broker has been silent for too long, less so if its port refuses."""
        extra_ms = self._timeouts.extra_ms(broker_id)
        if known.silent_ms >= self._times.suspicion_ms + extra_ms:
            return True
        refusal = self._ports.refusal(broker_id)
        if refusal is None:
            return False
        refused_ms = known.confirmed_ms - max(known.first_seen_ms, refusal.since_ms)
        return min(known.silent_ms, refused_ms) >= self._times.refusal_ms + extra_ms

    def _seems_ended(self, broker_id: int, known: ObservedLease, refusal: Refusal) -> bool:
        """Whether the refusals alone say that the broker's process has ended."""
        if not self.shows_end(broker_id) or refusal.count < REFUSALS_MIN:
            return False
        if known.after_ms >= refusal.since_ms or not self._is_about(broker_id, refusal):
            return False
        refused_ms = known.confirmed_ms - refusal.since_ms
        return known.is_confirmed and refused_ms >= self._times.ended_ms

    def _is_about(self, broker_id: int, refusal: Refusal) -> bool:
        """Whether the broker's process or its way refuses, and not this observer's own."""
        return refusal.is_witnessed or next(self._others_alive(broker_id), None) is None

    def _others_alive(self, broker_id: int) -> Iterator[int]:
        """Yield the brokers that should be within reach if this observer is not cut off."""
        for other, known in self._observations.items():
            if other in (broker_id, self._own) or self.is_dead(other):
                continue
            if not self._has_missed_renewals(other, known):
                yield other

    def witnesses(self, broker_id: int) -> list[int]:
        """Return the brokers to be dialed: a connection shows that this observer is not cut off.

        Empty if the port does not refuse, or one of them has been reached since it does.
        """
        refusal = self._ports.refusal(broker_id)
        if refusal is None or refusal.witnessed_count or not self.shows_end(broker_id):
            return []
        refusing = self._ports.refusing()
        return [other for other in self._others_alive(broker_id) if other not in refusing]

    def shows_end(self, broker_id: int) -> bool:
        """Whether refusals of the broker's port are a reason to suspect it by themselves."""
        return self._ports.shows_end(broker_id)

    def has_vanished(self, broker_id: int, now_ms: float) -> bool:
        """Whether clients should not be sent to the broker for diskless partitions.

        It is suspected; or it is out of this observer's reach, and has shown no life since. That
        lasts for a moment only: either a renewal is seen, or the broker is suspected. While the
        leases cannot be read neither is known, and it may be alive: then that ends after
        ``suspicion_ms``, and so does what an earlier reading has made suspected. Of a process that
        has lived behind a closed port it says nothing.
        """
        if self.is_dead(broker_id):
            return True
        if self.is_suspected(broker_id) and not self._is_blind:
            return True
        if self._ports.is_refuted(broker_id):
            return False
        known, since_ms = self._observations.get(broker_id), self._ports.out_of_reach_ms(broker_id)
        if since_ms is None or known is None or known.has_moved or broker_id in self._registered:
            return False
        return known.after_ms < since_ms and now_ms - since_ms < self._times.suspicion_ms

    def is_doubted(self, broker_id: int) -> bool:
        """Whether the broker may be suspected within ``refusal_ms``: a reason to get ready.

        Its port refuses connections, or it has been silent for all but that of ``suspicion_ms``.
        """
        known, times = self._observations.get(broker_id), self._times
        if known is None or broker_id in self._registered:
            return False
        if self.refuses(broker_id) or self.is_suspected(broker_id):
            return True
        if known.has_moved or times.suspicion_ms <= times.refusal_ms:
            return False
        timeout_ms = times.suspicion_ms + self._timeouts.extra_ms(broker_id)
        return known.silent_ms >= timeout_ms - times.refusal_ms

    def note_unread(self) -> None:
        """Note that the leases could not be read."""
        self._is_blind = True

    def note_lost(self, broker_id: int, since_ms: float) -> None:
        """Note that connections to the broker end since then: it may have died."""
        self._ports.note_lost(broker_id, since_ms)

    def note_refused(self, broker_id: int, now_ms: float) -> bool:
        """Note that the broker's port has refused a connection; return whether it did not before.

        ``observe`` is due then.
        """
        return self._ports.note_refused(broker_id, now_ms)

    def note_reached(self, broker_id: int, now_ms: float) -> None:
        """Note a new connection to the broker's process."""
        known, refusal = self._observations.get(broker_id), self._ports.refusal(broker_id)
        # Another process would have registered: this one seemed to have ended, and lives.
        if known and refusal and self._seems_ended(broker_id, known, refusal):
            self._ports.refute(broker_id)
        self._ports.note_reached(broker_id, now_ms)

    def note_open_way(self, broker_id: int, now_ms: float) -> None:
        """Note that something at the broker's address has taken a connection.

        It says that this observer is not cut off, and nothing about the broker.
        """
        self._ports.note_open_way(broker_id, now_ms)

    def note_unanswered(self, broker_id: int) -> None:
        """Note that there is no new connection to the broker, for a reason that says nothing."""
        self._ports.note_unanswered(broker_id)

    def refuses(self, broker_id: int) -> bool:
        """Whether the broker's port has refused the last connection."""
        return self._ports.refusal(broker_id) is not None

    def next_look_ms(self) -> float | None:
        """Return when a reading may show that a broker whose port refuses does not renew its lease.

        The first one is due at once: later ones show whether it was renewed since. ``None`` if
        no broker's port refuses, or those brokers are suspected already. Where a reading in time
        has shown nothing, because the lease's item is gone or damaged, the next is as long after.
        """
        times, due = self._times, []
        for broker_id in self._ports.refusing():
            known, refusal = self._observations.get(broker_id), self._ports.refusal(broker_id)
            if known is None or refusal is None or self.is_suspected(broker_id):
                continue
            wait_ms = times.refusal_ms + self._timeouts.extra_ms(broker_id)
            since_ms = max(known.first_seen_ms, refusal.since_ms)
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
            self._ports.note_registered(broker_id)
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

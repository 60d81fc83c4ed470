"""This process's lease: when it may act, and when it renews.

``lease_times`` says how a lease works. The rules of its holder:

- The holder calls ``may_act`` before every answer, so a process that was stopped (SIGSTOP,
  a suspended machine) learns from its clock that it is late before it acts on anything.
  A renewal after that does not count until the process has read the cluster again: others may
  have taken over. Because a takeover checks the lease item, a reading begun after the renewal
  shows every takeover that is still possible.
- A renewal whose outcome is unknown extends nothing, although others may see it: that
  only makes them wait longer.
- A broker whose lease item was written by another process of the same id must see that
  incarnation dead first, unless it knows that process to be gone (it holds the lock of the
  data directory that the incarnation used).

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
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidelog_core.metadata.records import BrokerLease, StepDownReason
from tidelog_core.metadata.store import ABSENT
from tidelog_core.replication.leases.lease_times import LeaseTimes

RELEASED = 0  # the counter of a broker that was shut down in order; it starts again at 1


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
        self._next_renewal_ms = now_ms + self._times.renewal_ms(is_brisk=is_brisk)
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

    def on_read(self, lease: BrokerLease | None) -> None:
        """Take the current item."""
        self.needs_read = False
        if lease is None:
            self._record = _at_version(self._record, ABSENT)
        elif lease.incarnation == self._record.incarnation or not self._has_renewed:
            # Our own lost renewal, or before the first one the record of an earlier process.
            self._record = BrokerLease(
                broker_id=lease.broker_id,
                incarnation=self._record.incarnation,
                counter=lease.counter,
                version=lease.version,
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

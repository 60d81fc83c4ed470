from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from uuid import UUID

from tidelog_core.metadata.records import BrokerLease
from tidelog_core.replication.leases.own_lease import OwnLease

from tests.support.replication_cluster import TIMES, make_lease

ME = UUID(int=1)


def begun(found: BrokerLease | None = None) -> OwnLease:
    return OwnLease(1, ME, times=TIMES, found=found)


def renew(lease: OwnLease, started_ms: float, now_ms: float) -> bool:
    record = lease.begin_renewal(started_ms)
    return lease.on_renewed(record, started_ms=started_ms, now_ms=now_ms)


def acting(now_ms: float = 0) -> OwnLease:
    lease = begun()
    renew(lease, now_ms, now_ms)
    lease.on_cluster_read(now_ms)
    return lease


def test_a_new_process_acts_after_a_renewal_and_a_reading_begun_after_it() -> None:
    lease = begun()
    assert lease.is_renewal_due(0)
    assert not lease.may_act(0)
    assert renew(lease, 0, 10)
    assert not lease.may_act(10)
    lease.on_cluster_read(5)
    assert not lease.may_act(10)
    lease.on_cluster_read(10)
    assert lease.may_act(10)


def test_it_fences_itself_a_margin_before_its_lease_ends_counted_from_the_sending() -> None:
    lease = begun()
    renew(lease, 0, 500)
    lease.on_cluster_read(500)
    assert lease.may_act(7_999)
    assert not lease.may_act(8_000)


def test_a_renewal_in_time_goes_on_without_a_reading() -> None:
    lease = acting()
    assert not lease.is_renewal_due(2_999)
    assert lease.is_renewal_due(3_000)
    assert not renew(lease, 3_000, 3_010)
    assert lease.may_act(10_900)


def test_a_process_that_was_stopped_acts_only_after_renewing_and_reading() -> None:
    lease = acting()
    assert not lease.may_act(60_000)
    assert renew(lease, 60_000, 60_010)
    assert not lease.may_act(60_010)
    lease.on_cluster_read(59_000)
    assert not lease.may_act(60_010)
    lease.on_cluster_read(60_020)
    assert lease.may_act(60_020)


def test_a_reading_ends_only_the_fence_that_was_up_when_it_began() -> None:
    """Whatever the thread that renews does between its steps."""
    lease = acting()
    renew(lease, 60_000, 60_010)
    # The reading has begun and the lease lapses once more before it is noted.
    renew(lease, 120_000, 120_010)
    lease.on_cluster_read(60_020)
    assert not lease.may_act(120_010)
    lease.on_cluster_read(120_020)
    assert lease.may_act(120_020)


def test_a_renewal_that_comes_between_looking_at_the_clock_and_asking_changes_nothing() -> None:
    lease = acting()
    renew(lease, 3_000, 3_010)
    assert lease.may_act(2_999)
    # It lapses in between: what the clock showed before does not help.
    renew(lease, 60_000, 60_010)
    assert not lease.may_act(2_999)


class Interrupted(OwnLease):
    """A lease whose acting thread is held up once, just after it has read the grant."""

    meanwhile: Callable[[], None] | None = None

    @property
    def _grant(self) -> Any:
        grant, meanwhile = self._stored, self.meanwhile
        self.meanwhile = None
        if meanwhile is not None:
            meanwhile()
        return grant

    @_grant.setter
    def _grant(self, grant: Any) -> None:
        self._stored = grant


def test_a_lapse_while_a_reading_is_noted_is_not_ended_by_it() -> None:
    lease = Interrupted(1, ME, times=TIMES, found=None)
    renew(lease, 0, 0)
    lease.meanwhile = lambda: assert_fenced(renew(lease, 60_000, 60_010))
    lease.on_cluster_read(10)
    assert not lease.may_act(60_010)
    lease.on_cluster_read(60_020)
    assert lease.may_act(60_020)


def test_a_lapse_while_the_grant_is_looked_at_is_decided_by_the_clock_of_before() -> None:
    """As if the thread had been held up after deciding, which is what the margin is for."""
    lease = Interrupted(1, ME, times=TIMES, found=None)
    renew(lease, 0, 0)
    lease.on_cluster_read(0)
    lease.meanwhile = lambda: assert_fenced(renew(lease, 60_000, 60_010))
    assert lease.may_act(7_999)
    assert not lease.may_act(7_999)


def test_another_process_that_took_the_id_while_a_reading_is_noted_stays_the_one() -> None:
    lease = Interrupted(1, ME, times=TIMES, found=None)
    renew(lease, 0, 0)
    other = dataclasses.replace(make_lease(1, counter=9, version=9), incarnation=UUID(int=99))
    lease.meanwhile = lambda: lease.on_read(other)
    lease.on_cluster_read(10)
    assert lease.is_superseded
    assert not lease.may_act(20)


def assert_fenced(must_read: bool) -> None:
    assert must_read


def test_an_answer_that_was_slept_over_extends_nothing() -> None:
    lease = acting()
    record = lease.begin_renewal(3_000)
    assert lease.on_renewed(record, started_ms=3_000, now_ms=60_000)
    lease.on_cluster_read(60_000)
    assert not lease.may_act(60_000)


def test_a_renewal_of_unknown_outcome_is_read_before_the_next_and_extends_nothing() -> None:
    lease = acting()
    record = lease.begin_renewal(3_000)
    lease.on_unknown(4_000)
    assert lease.needs_read
    stored = dataclasses.replace(record, version=record.version + 1)
    lease.on_read(stored)
    assert not lease.needs_read
    assert not lease.may_act(8_000)
    assert lease.begin_renewal(4_500).version == stored.version


def test_a_refused_renewal_is_tried_again_soon() -> None:
    lease = acting()
    lease.begin_renewal(3_000)
    lease.on_refused(3_100)
    assert not lease.is_renewal_due(3_500)
    assert lease.is_renewal_due(3_600)


def test_a_process_whose_broker_id_another_has_taken_never_acts_again() -> None:
    lease = acting()
    lease.begin_renewal(3_000)
    lease.on_unknown(3_010)
    lease.on_read(BrokerLease(broker_id=1, incarnation=UUID(int=9), counter=3, version=3))
    assert lease.is_superseded
    assert not lease.may_act(3_020)
    lease.on_cluster_read(3_030)
    assert not lease.may_act(3_030)
    assert not lease.is_renewal_due(9_000)


def test_a_new_process_goes_on_from_the_counter_of_the_last_one() -> None:
    lease = begun(BrokerLease(broker_id=1, incarnation=UUID(int=9), counter=40, version=41))
    record = lease.begin_renewal(0)
    assert (record.counter, record.version, record.incarnation) == (41, 41, ME)

from __future__ import annotations

import pytest
from tidelog_core.replication.leases.lease_times import LeaseTimes

from tests.support.replication_cluster import TIMES


def test_renewals_stop_when_the_loop_has_not_turned_for_most_of_a_lease() -> None:
    assert TIMES.stall_ms == 6_000
    assert TIMES.can_renew(turned_ms=1_000, now_ms=6_999)
    assert not TIMES.can_renew(turned_ms=1_000, now_ms=7_000)


def test_a_lease_shorter_than_two_renewals_is_refused() -> None:
    with pytest.raises(ValueError, match="must last at least two renewals"):
        LeaseTimes(lease_ms=5_000, renew_ms=3_000)

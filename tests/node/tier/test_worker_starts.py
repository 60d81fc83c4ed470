"""When a worker is started again, how long its start may take, and what is said about it."""

from __future__ import annotations

from tidelog_node.processes.worker_version import OTHER_VERSION_STATUS
from tidelog_node.tier.worker_starts import (
    CONNECT_S_FIRST,
    CONNECT_S_MAX,
    NOT_STARTING,
    OTHER_VERSION,
    OTHER_VERSION_DELAY_S,
    RESTART_DELAY_S_MAX,
    RESTART_DELAY_S_MIN,
    STABLE_AFTER_S,
    STARTS_MAX,
    WorkerStarts,
)


def end(
    starts: WorkerStarts, lived_s: float = 0.0, status: int = 1, *, served: bool = False
) -> float:
    return starts.ended(lived_s, was_connected=served, status=status)


def test_the_pause_doubles_until_a_worker_has_lived_for_long() -> None:
    starts = WorkerStarts()
    pauses = [end(starts) for _ in range(10)]
    assert pauses[:3] == [RESTART_DELAY_S_MIN, 2 * RESTART_DELAY_S_MIN, 4 * RESTART_DELAY_S_MIN]
    assert pauses[-1] == RESTART_DELAY_S_MAX
    assert end(starts, STABLE_AFTER_S + 1) == RESTART_DELAY_S_MIN


def test_a_start_that_was_cut_short_is_given_twice_the_time() -> None:
    starts, limits = WorkerStarts(), list[float]()
    for _ in range(8):
        limits.append(starts.connect_s_max)
        starts.timed_out()
        end(starts, starts.connect_s_max, -9)
    assert limits[:3] == [CONNECT_S_FIRST, 2 * CONNECT_S_FIRST, 4 * CONNECT_S_FIRST]
    assert limits[-1] == CONNECT_S_MAX
    starts.connected()
    assert starts.connect_s_max == CONNECT_S_FIRST


def test_some_starts_in_vain_are_a_fault_until_a_worker_serves() -> None:
    starts = WorkerStarts()
    for _ in range(STARTS_MAX - 1):
        end(starts)
        assert starts.fault is None
    end(starts, status=3)
    assert starts.fault is not None
    assert starts.fault.name == NOT_STARTING
    assert f"{STARTS_MAX} workers" in starts.fault.detail
    assert "status 3" in starts.fault.detail
    starts.connected()
    assert starts.fault is None
    for _ in range(2 * STARTS_MAX):  # It is killed again and again, and serves in between.
        starts.connected()
        end(starts, served=True)
    assert starts.fault is None


def test_a_worker_of_another_version_is_a_fault_at_once_and_is_seldom_tried() -> None:
    starts = WorkerStarts()
    for _ in range(STARTS_MAX + 1):
        assert end(starts, status=OTHER_VERSION_STATUS) == OTHER_VERSION_DELAY_S
        assert starts.fault is not None
        assert starts.fault.name == OTHER_VERSION
        assert "restart the node" in starts.fault.detail
    starts.connected()
    assert starts.fault is None

"""Decides when a worker is started again, and how long its start may take.

A worker that ends is started again after a pause, which doubles while workers do not live long. A
worker that has not connected within its limit is killed, for it may hang. The next one gets twice
the time: on a busy machine a start takes as long as it takes, and a worker that is always killed
before its end would never serve.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog_node.processes.worker_version import (
    OTHER_VERSION,
    OTHER_VERSION_DELAY_S,
    OTHER_VERSION_STATUS,
    OtherVersion,
)

RESTART_DELAY_S_MIN = 0.1
RESTART_DELAY_S_MAX = 10.0
STABLE_AFTER_S = 30.0  # a worker that lived this long is restarted without delay
CONNECT_S_FIRST = 60.0
CONNECT_S_MAX = 1_920.0
STARTS_MAX = 3  # in a row without a connection, until that is a fault of the node

NOT_STARTING = "worker-not-starting"  # a fault


class WorkerFault(NamedTuple):
    """The reason why the worker does not serve, for a person."""

    name: str
    detail: str


class WorkerStarts:
    """The starts of one client's workers, one after the other. Pure decisions."""

    def __init__(self) -> None:
        self.fault: WorkerFault | None = None
        self.connect_s_max = CONNECT_S_FIRST  # from its start until a worker must be connected
        self._delay_s = RESTART_DELAY_S_MIN
        self._vain_count = 0  # starts without a connection, in a row

    def connected(self) -> None:
        """Note that the worker is connected."""
        self.fault, self._vain_count = None, 0
        self.connect_s_max = CONNECT_S_FIRST

    def timed_out(self) -> None:
        """Note that the worker has not connected within ``connect_s_max``, and is killed."""
        self.connect_s_max = min(2 * self.connect_s_max, CONNECT_S_MAX)

    def ended(self, lived_s: float, *, was_connected: bool, status: int | None) -> float:
        """Return the seconds until the next start.

        ``status`` is the exit status of the worker that has ended, ``None`` if none ran.
        """
        if lived_s > STABLE_AFTER_S:
            self._delay_s = RESTART_DELAY_S_MIN
        if not was_connected:
            self._vain_count += 1
        if status == OTHER_VERSION_STATUS:
            self.fault = WorkerFault(OTHER_VERSION, str(OtherVersion("tier worker")))
            return OTHER_VERSION_DELAY_S
        if self._vain_count >= STARTS_MAX:
            self.fault = WorkerFault(
                NOT_STARTING,
                f"{self._vain_count} workers in a row ended before they served, the last with the"
                f" status {status}: see their lines in the log, and restart the node if its files"
                " were replaced while it ran",
            )
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, RESTART_DELAY_S_MAX)
        return delay_s

"""Markers in logs of partitions in chains that have not committed them.

A coordinator repeats a marker every few seconds until it is acknowledged. While the object store is
away each repetition would be one more record. So a repetition waits for the marker that is in the
log already.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from tidelog_core.errors import OutcomeUnknown
from tidelog_core.model import TopicPartition

from tidelog_node.replicas.replica import Replica

MARKERS_MAX = 100_000  # that wait; further transactions end once some are committed
SWEPT_MAX = 64  # for one marker that finds no room


class MarkerName(NamedTuple):
    """The transaction that a marker ends, and how."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int


class _Appended(NamedTuple):
    replica: Replica
    leader_epoch: int
    end_offset: int  # of the marker, exclusive

    @property
    def is_waiting(self) -> bool:
        """Whether this node still leads in that epoch, and the marker is not committed."""
        replica = self.replica
        if replica.is_dropped or not replica.is_leader or replica.leader_epoch != self.leader_epoch:
            return False
        log = replica.opened_log
        return log is not None and log.high_watermark < self.end_offset <= log.log_end_offset


class UncommittedMarkers:
    """The markers that wait for chains. For the node's event loop."""

    def __init__(self, *, count_max: int = MARKERS_MAX) -> None:
        self._appended: dict[tuple[TopicPartition, MarkerName], _Appended] = {}
        self._count_max = count_max
        self._sweep_at = 1_024  # markers at which committed ones are forgotten

    def __len__(self) -> int:
        return len(self._appended)

    def end_of(self, replica: Replica, name: MarkerName) -> int | None:
        """Return the end of the marker if it is in the log and waits, else ``None``."""
        key = replica.partition, name
        found = self._appended.get(key)
        if found is None:
            return None
        if found.replica is replica and found.is_waiting:
            return found.end_offset
        del self._appended[key]
        return None

    def require_room(self) -> None:
        """Raise ``OutcomeUnknown`` while as many markers wait as may: it is retriable."""
        if len(self._appended) < self._sweep_at:
            return
        if self._is_full:  # Every refused marker comes here, and all of them are many.
            self._sweep_some()
        else:
            for key in [key for key, one in self._appended.items() if not one.is_waiting]:
                del self._appended[key]
        if self._is_full:
            raise OutcomeUnknown(f"{len(self._appended)} markers wait for the object store")
        self._sweep_at = min(max(1_024, 2 * len(self._appended)), self._count_max)

    @property
    def _is_full(self) -> bool:
        return len(self._appended) >= self._count_max

    def _sweep_some(self) -> None:
        """Forget those of the first markers that are committed; the others of them come last."""
        for key in list(islice(self._appended, SWEPT_MAX)):
            one = self._appended.pop(key)
            if one.is_waiting:
                self._appended[key] = one

    def add(self, replica: Replica, name: MarkerName, end_offset: int) -> None:
        """Note a marker that was appended just now."""
        appended = _Appended(replica, replica.leader_epoch, end_offset)
        self._appended[replica.partition, name] = appended

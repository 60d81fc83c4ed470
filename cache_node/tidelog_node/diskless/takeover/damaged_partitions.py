"""Retries takeovers of partitions whose records are damaged or missing less and less often.

Only an operator can help, by restoring an object. Until then each try reads chains and logs an
error. Other failures pass by themselves, so their partitions are tried again soon.

After some tries another broker gets the partition. A lack of file descriptors or memory concerns
every partition of the node and often passes within seconds, so it has more tries.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog_core.back_off import back_off_seconds
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import is_out_of_resources

TRIES_MIN = 3  # failed ones: objects that were collected since are tiered by then
SCARCE_TRIES_MIN = 5  # failed ones, the last for a lack of resources: some 15 seconds


class DamagedPartitions:
    """The partitions that this node is to lead and that were damaged at their last try."""

    def __init__(self) -> None:
        self._tries: dict[PartitionName, int] = {}  # failed ones in a row
        self._found: set[PartitionName] = set()  # in the try that goes on
        self._scarce: dict[PartitionName, str] = {}  # why, if their last try lacked resources

    def __len__(self) -> int:
        return len(self._tries)

    @property
    def scarcity(self) -> str:
        """The resource that the last try of any of them lacked, empty if none lacked any."""
        return next(iter(self._scarce.values()), "")

    def note(self, name: PartitionName, error: Exception) -> None:
        """Note that the partition was found damaged in this try, or that its log failed."""
        self._found.add(name)
        if is_out_of_resources(error):
            self._scarce[name] = str(error)
        else:
            self._scarce.pop(name, None)

    def is_hopeless(self, name: PartitionName) -> bool:
        """Whether enough tries have failed: another broker may be able to lead the partition."""
        needed = SCARCE_TRIES_MIN if name in self._scarce else TRIES_MIN
        return self.tries(name) >= needed

    def tries(self, name: PartitionName) -> int:
        """Return how many attempts in a row have failed for the partition."""
        return self._tries.get(name, 0)

    def forget(self, names: Iterable[PartitionName]) -> None:
        """Note that the partitions are led, or that this node shall not lead them any more."""
        for name in names:
            self._tries.pop(name, None)
            self._scarce.pop(name, None)
            self._found.discard(name)

    def delays(
        self, names: Iterable[PartitionName], first: float, longest: float
    ) -> dict[float, list[PartitionName]]:
        """Note that a try failed; return the partitions by the seconds until their next try.

        These are ``first``; for damaged partitions they grow up to ``longest``.
        """
        after: dict[float, list[PartitionName]] = {}
        for name in names:
            seconds = first
            if name in self._found:
                self._found.discard(name)
                tries = self._tries[name] = self._tries.get(name, 0) + 1
                seconds = back_off_seconds(tries - 1, first=first, longest=longest)
            else:
                self._tries.pop(name, None)
                self._scarce.pop(name, None)
            after.setdefault(seconds, []).append(name)
        return after

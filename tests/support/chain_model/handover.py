"""A leader's part of a planned move: events in, decisions out."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog_core.diskless.takeover.takeover import (
    Finished,
    ReadItems,
    StoredChains,
    WriteEpochs,
    WriteOutcome,
)
from tidelog_core.diskless.wal.epoch_chains import PartitionName, current_chain
from tidelog_core.metadata.epoch_chains import end_epoch


class Handover:
    """A leader's part of a planned move, once it takes nothing more and has no PUT in flight.

    It never resumes: a write whose outcome is unknown may come late, so it is repeated until it
    is known that the item names another epoch. ``LeaderState`` decides the same on a node.
    """

    def __init__(
        self, partition: PartitionName, successor: int, *, stored: StoredChains, end_offset: int
    ) -> None:
        """``successor`` is the broker that shall lead; it need not have a chain yet."""
        self._partition = partition
        self._successor = successor
        self._stored = stored
        self._end_offset = end_offset

    def begin(self) -> WriteEpochs:
        """Return the write that ends the epoch."""
        epoch = self._stored.chains[-1].leader_epoch + 1
        planned = self._stored._replace(
            chains=end_epoch(self._stored.chains, self._end_offset, next_epoch=epoch),
            leader=self._successor,
            leader_epoch=epoch,
        )
        return WriteEpochs({self._partition: planned})

    def on_written(self, outcome: WriteOutcome) -> ReadItems | Finished:
        """The write was answered, or given up."""
        return Finished(None) if outcome is WriteOutcome.WRITTEN else ReadItems()

    def on_items(self, items: Mapping[PartitionName, StoredChains]) -> WriteEpochs | Finished:
        """The item as it is stored."""
        stored = items.get(self._partition)
        # Ours once more, in a later epoch, is not the one that ended here.
        if stored is None or current_chain(stored.chains) != current_chain(self._stored.chains):
            return Finished(None)
        self._stored = stored
        return self.begin()

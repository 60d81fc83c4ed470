"""The partitions' items in the simulated metadata store, which is that of replication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidelog_core.diskless.takeover.takeover import StoredChains, WriteOutcome
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.metadata.epoch_chains import EpochChains

from tests.simulation.store import SimStore
from tests.simulation.world import Endpoint


@dataclass(frozen=True)
class SimItem:
    """A partition's item."""

    item_id: PartitionName
    chains: EpochChains
    version: int = 0
    log_start_offset: int = 0
    leader: int = -1  # -1: the broker of the last chain
    leader_epoch: int = -1  # where it is not that of the last chain


class SimItems(SimStore):
    """Reads and writes them, with the faults of the store."""

    on_chains: Callable[[PartitionName, EpochChains, int], None]

    def _apply(self, records: Any, checks: Any) -> bool:
        if not super()._apply(records, checks):
            return False
        for record in records:
            self.on_chains(record.item_id, record.chains, record.log_start_offset)
        return True

    def write(
        self, caller: Endpoint, items: dict[PartitionName, StoredChains], handler: Any, *args: Any
    ) -> None:
        """Write the items, and answer with a ``WriteOutcome``."""
        records: Any = [
            SimItem(
                name, one.chains, one.version, one.log_start_offset, one.leader, one.leader_epoch
            )
            for name, one in items.items()
        ]

        def answer(outcome: str, _: object) -> None:
            by_name = {"ok": WriteOutcome.WRITTEN, "conflict": WriteOutcome.CONFLICT}
            handler(by_name.get(outcome, WriteOutcome.UNKNOWN), *args)

        self.commit(caller, records, (), answer)

    def read_chains(self, caller: Endpoint, handler: Any, *args: Any) -> None:
        """Answer with all items, ``None`` if they could not be read."""

        def answer(outcome: str, found: Any) -> None:
            if outcome == "ok":
                handler({one.item_id: _stored(one) for one in found}, *args)
            else:
                handler(None, *args)

        self.read(caller, answer)


def _stored(item: SimItem) -> StoredChains:
    return StoredChains(
        item.version, item.chains, item.leader_epoch, item.log_start_offset, item.leader
    )

"""What simulated nodes do around the product's decisions, and a mutation may change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidelog_core.diskless.chain.chain_writer import ChainWriter
from tidelog_core.diskless.collection.collection import UnneededEnds
from tidelog_core.diskless.takeover.takeover import StoredChains
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.keys import Heir
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.metadata.epoch_chains import ChainName

from tests.simulation.diskless.leader_log import LeaderLog
from tests.support.chain_model.checkpoint import CheckpointedPartition
from tests.support.chain_model.heir_replay import ReplayedPartition, ReplayStart
from tests.support.chain_model.stored_checkpoints import CheckpointedEnds, StoredCheckpoints

if TYPE_CHECKING:
    from tests.simulation.diskless.node import Incarnation


class Mutable:
    """What a mutation of the shell may change."""

    creates_conditionally = True  # an object is created only where none has its key
    reads_tier_first = False  # before the chain is listed
    reads_tier_first_ms = 80.0  # so long before
    reads_checkpoints = True
    waits_for_checkpoints = True  # a checkpoint counts once it is stored
    builds_again = True  # an object whose build has failed
    hands_over_committed = True  # a leader that leaves waits for its PUTs
    stops_before_handover = True  # and takes nothing from the moment on at which it decides to
    refill_ms: float | None = (
        None  # of each partition: they are led one after the other; or at once
    )

    def hedge(self, node: Incarnation, sequence: int) -> bytes:
        """Return the bytes of a repeated PUT."""
        return node.built[sequence].data

    def stable_end(self, log: LeaderLog) -> int:
        """Return up to where a leader serves read_committed."""
        return log.stable_end

    def replayed(self, state: ProducerState) -> ProducerState:
        """Return the producers with which an heir goes on."""
        return state

    def on_replayed(
        self,
        starts: Mapping[PartitionName, ReplayStart],
        tier_ends: Mapping[PartitionName, int],
        footers: Iterable[WalFooter],
        replayed: Mapping[PartitionName, ReplayedPartition] | None,
    ) -> None:
        """An heir has replayed partitions from the tier's ends on; ``None``: it found a gap."""

    def on_part(self, names: Iterable[PartitionName]) -> None:
        """An heir has refilled some of the partitions that it takes, and writes their epochs."""

    def on_noted(self, node: Incarnation, chain: ChainName, heir: Heir) -> None:
        """An heir has noted itself in the chain, has sealed it if it must, and reads items next."""

    def on_items(
        self, chain: ChainName, heir: Heir, items: Mapping[PartitionName, StoredChains]
    ) -> None:
        """It has read them, once more perhaps."""

    def checkpointed_end(self, writer: ChainWriter) -> int:
        """Return the sequence below which a checkpoint has the chain's objects."""
        return writer.committed_end

    def checkpointed(self, log: LeaderLog, tier_end: int) -> CheckpointedPartition:
        """Return what a checkpoint has of a partition."""
        return log.checkpointed(tier_end)

    def unneeded(self, node: Incarnation, checkpoints: StoredCheckpoints) -> UnneededEnds:
        """Return up to where nobody needs partitions in a chain with these checkpoints."""
        return CheckpointedEnds(node.tier_ends(), checkpoints)

    def unused_checkpoints(
        self, node: Incarnation, checkpoints: StoredCheckpoints, *, is_sealed: bool
    ) -> list[int]:
        """Return the checkpoints that may be deleted."""
        return checkpoints.collectable(node.tier_ends(), is_sealed=is_sealed)

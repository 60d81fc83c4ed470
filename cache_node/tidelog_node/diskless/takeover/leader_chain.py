"""The interface of this node's chain that takeovers and conversions use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.epoch_chains import ChainName, EpochChains

from tidelog_node.replicas.replica import Replica


class OwnChainEnded(StoreUnavailable):
    """This node's chain ended while partitions were about to enter it.

    They enter the next one at once: producers wait, and nothing is wrong with the store.
    """


class LeaderChain(Protocol):
    """The chain of this node that takes partitions; ``OwnedChain``."""

    @property
    def name(self) -> ChainName:
        """Its name."""

    @property
    def is_deposed(self) -> bool:
        """Whether another node has sealed it, so that it takes nothing more."""

    @property
    def next_sequence(self) -> int:
        """The sequence of its next object."""

    def has_uncommitted(self, replica: Replica) -> bool:
        """Whether records of the partition are not committed yet: then it cannot enter yet."""

    def enter(
        self,
        replica: Replica,
        stored: EpochChains,
        *,
        end_offset: int,
        previous_sequence: int,
        tail_count: int,
    ) -> None:
        """Add the partition to the chain; ``tail_count`` objects have records that are not tiered.

        Raises ``ValueError`` unless the last of ``stored`` names this chain.
        """


def require_committed(own: LeaderChain, group: Mapping[PartitionName, Replica]) -> None:
    """Raise ``StoreUnavailable`` if the chain has uncommitted records of any of the partitions."""
    if any(map(own.has_uncommitted, group.values())):
        raise StoreUnavailable("records of an earlier epoch are still pending in the own chain")


def require_chain(own: LeaderChain) -> None:
    """Raise ``OwnChainEnded`` if the chain was sealed by another node."""
    if own.is_deposed:
        raise OwnChainEnded(f"the chain {own.name} has ended")

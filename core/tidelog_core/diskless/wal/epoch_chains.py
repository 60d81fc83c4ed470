"""Changes to the list of a partition's leader epochs and their chains."""

from __future__ import annotations

from typing import NamedTuple, Protocol
from uuid import UUID

from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, EpochChains


class PartitionRow(Protocol):
    """A row of a WAL object that is about one partition."""

    @property
    def topic_id(self) -> bytes: ...

    @property
    def partition(self) -> int: ...


class PartitionName(NamedTuple):
    """A partition, by the topic's id."""

    topic_id: UUID
    partition: int

    @classmethod
    def of_row(cls, row: PartitionRow) -> PartitionName:
        """Return the partition that a row of a WAL object is about."""
        return cls(UUID(bytes=row.topic_id), row.partition)


def current_chain(chains: EpochChains) -> EpochChain | None:
    """Return the chain of the current leader epoch, ``None`` before there is one."""
    return chains[-1] if chains else None


def begin_epoch(
    chains: EpochChains, heir: ChainName, end_offset: int, *, after_epoch: int = -1
) -> EpochChains:
    """Return the list in which the heir leads the next epoch, from the end of the one before on.

    Its writer has sealed the current chain, or leads and has ended its own epoch.
    ``after_epoch`` is the partition's leader epoch, which may be in no chain: an election has begun
    it, and the elected leader writes this.
    """
    last = current_chain(chains)
    if last is not None and end_offset < last.first_offset:
        raise ValueError(f"epoch {last.leader_epoch} begins at {last.first_offset}, not before")
    last_epoch = after_epoch if last is None else max(after_epoch, last.leader_epoch)
    return (*chains, EpochChain(last_epoch + 1, heir, end_offset))

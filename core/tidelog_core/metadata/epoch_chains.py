"""The chains of a diskless partition by leader epoch: values, and their form in its item.

The item has a list ``[leader epoch, broker id, chain id, first offset]`` for each epoch, in order.
A row is added only where leadership changes, in the write that changes it. Rows that nobody needs
go there, too, or when the leader stores a log start. A leader epoch is in one chain. An epoch ends
at the first offset of the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from tidelog_core.metadata.fields import typed_rows
from tidelog_core.metadata.store import JsonValue
from tidelog_core.model import INT32_MAX, INT64_MAX


class ChainName(NamedTuple):
    """A chain: the sequence of WAL objects of one incarnation of a node."""

    broker_id: int
    chain_id: UUID

    def __str__(self) -> str:
        return f"{self.chain_id} of broker {self.broker_id}"


class EpochChain(NamedTuple):
    """A leader epoch, and the chain that has its records."""

    leader_epoch: int
    chain: ChainName
    first_offset: int


EpochChains = tuple[EpochChain, ...]  # in order of leader epoch; the last one is the current one

# That are kept although all of their records were deleted. Each of them ended with a leader, and
# producers repeat a batch for some minutes.
DELETED_EPOCHS_MAX = 8


def end_epoch(chains: EpochChains, end_offset: int, *, next_epoch: int) -> EpochChains:
    """Return the list in which the leader's epoch ends at this offset of its chain.

    The row of the successor's epoch names the same chain, which gets nothing of that epoch: its
    broker does not lead in it. So the end needs no seal. For a program that knows nothing of this,
    it is an epoch without records, and a seal finds the same end.
    """
    return (*chains, EpochChain(next_epoch, chains[-1].chain, end_offset))


def cut_tiered(chains: EpochChains, tiered_end: int) -> EpochChains:
    """Return the list without the epochs whose records are, or were, all in the tier.

    The last one stays.
    """
    ends = [*(chain.first_offset for chain in chains[1:]), None]
    return tuple(
        chain
        for chain, end_offset in zip(chains, ends, strict=False)
        if end_offset is None or end_offset > tiered_end
    )


def cut_history(chains: EpochChains, *, copied_end: int, log_start_offset: int) -> EpochChains:
    """Return the list that an heir stores: without epochs that are, or were, all in the tier.

    ``copied_end`` is the tier's end, -1 if it has had nothing. A log start beyond it means that
    records were deleted before they were tiered: then the chains alone know who has written them.
    If the heir dies soon, the next one needs the same epochs. So the last of them stay, but for
    those without records.
    """
    kept = cut_tiered(chains, copied_end)
    live = cut_tiered(kept, log_start_offset)
    deleted = kept[: len(kept) - len(live)]
    ends = [one.first_offset for one in kept[1:]]
    written = [
        one for one, end_offset in zip(deleted, ends, strict=False) if one.first_offset < end_offset
    ]
    return (*written[-DELETED_EPOCHS_MAX:], *live)


def is_handed_over(chains: EpochChains, *, leader: int, leader_epoch: int) -> bool:
    """Whether the leader before has ended its epoch for this leader, as ``end_epoch`` says.

    A later election has another leader epoch, and then nothing is said of the chain's end.
    """
    if len(chains) < 2 or leader < 0:
        return False
    last, before = chains[-1], chains[-2]
    return (
        last.leader_epoch == leader_epoch
        and last.chain == before.chain
        and last.chain.broker_id != leader
    )


def describe_epoch(chains: EpochChains) -> str:
    """Return the current epoch and its chain, for errors."""
    last = chains[-1] if chains else None
    return "none" if last is None else f"{last.leader_epoch} in the chain {last.chain}"


def write_epoch_chains(chains: EpochChains) -> JsonValue:
    """Return the stored form of the list."""
    return [
        [one.leader_epoch, one.chain.broker_id, str(one.chain.chain_id), one.first_offset]
        for one in chains
    ]


def read_epoch_chains(stored: Any, _: Mapping[str, Any]) -> EpochChains:
    """Return the list of the stored form. Raises ``ValueError``."""
    chains = tuple(
        EpochChain(epoch, ChainName(broker_id, UUID(chain_id)), first_offset)
        for epoch, broker_id, chain_id, first_offset in typed_rows(stored, int, int, str, int)
    )
    _check(chains)
    if write_epoch_chains(chains) != [list(row) for row in stored]:
        raise ValueError(f"{stored!r} has a value that no program writes so")
    return chains


def _check(chains: Iterable[EpochChain]) -> None:
    before = None
    for one in chains:
        for what, number, most in (
            ("leader epoch", one.leader_epoch, INT32_MAX),
            ("broker id", one.chain.broker_id, INT32_MAX),
            ("first offset", one.first_offset, INT64_MAX),
        ):
            if type(number) is not int or not 0 <= number <= most:
                raise ValueError(f"{what} {number!r} is outside [0, {most}]")
        if before is not None and (
            one.leader_epoch <= before.leader_epoch or one.first_offset < before.first_offset
        ):
            raise ValueError(f"{one} does not follow {before}")
        before = one

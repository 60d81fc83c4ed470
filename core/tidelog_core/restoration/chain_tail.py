"""Joins the slices of a diskless partition in chains to its tiered segments.

The log goes on in the chains where the tier ends: by leader epoch, then by offset. Nothing is
copied. The partition's item gets the list of its chains, and the next leader reads them as after
the death of another one. A log cannot have a gap, so with a gap it begins behind the last one.

Chains whose records were all deleted before they were tiered stay in the list, the last of them:
they alone say who has written these records, and producers may send them again.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog_core.diskless.bucket.chains import ChainedPartition, EpochRun
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, EpochChains, cut_history
from tidelog_core.restoration.selection import Remark


class ChainTail(NamedTuple):
    """The part of a partition that chains have."""

    wal: EpochChains
    end_offset: int
    # Behind a gap: the log begins here, and what is before it is left out. ``None``: no gap.
    starts_at: int | None
    problems: tuple[Remark, ...]


def join_tail(
    chained: ChainedPartition,
    *,
    tiered_end: int,
    log_start_offset: int,
    has_segments: bool,
    tiered_epoch: int = -1,
) -> ChainTail:
    """Return the tail that continues the tier.

    Below ``log_start_offset`` nothing is missed. Without segments ``tiered_end`` is the same.
    ``tiered_epoch`` is the leader epoch in which the tier ends: earlier ones do not go on there. A
    partition that was about to become diskless may have left such records in a chain.
    """
    end_offset, starts_at = tiered_end, None
    problems: list[Remark] = []
    used: list[EpochRun] = []
    chains: dict[int, ChainName] = {}  # by leader epoch
    for run in chained.runs:
        if run.leader_epoch < tiered_epoch:
            if run.end_offset > tiered_end:
                problems.append(_outdated(run, tiered_end, tiered_epoch))
            continue
        first = chains.setdefault(run.leader_epoch, run.chain)
        if run.chain != first:
            problems.append(_fork(run, run.base_offset, f"{first} has that epoch too"))
            continue
        before = used[-1] if used else run
        if before.leader_epoch < run.leader_epoch and run.base_offset < before.end_offset:
            again = f"epoch {run.leader_epoch} begins there"
            problems.append(_fork(before, max(before.base_offset, run.base_offset), again))
            end_offset = max(tiered_end, run.base_offset)
        if run.base_offset > max(end_offset, log_start_offset):
            text = f"offsets [{end_offset}, {run.base_offset}) are missing before it"
            if has_segments or used:
                text += ", and earlier records are left out"
            problems.append(Remark(run.key, text))
            used, starts_at = [], run.base_offset
        used.append(run)
        end_offset = max(end_offset, run.end_offset)
    wal = cut_history(
        _chains(used),
        # Of what was deleted the tier may have had nothing. Behind a gap no segment is kept.
        copied_end=tiered_end if has_segments and starts_at is None else -1,
        log_start_offset=max(log_start_offset, starts_at or 0),
    )
    return ChainTail(wal, end_offset, starts_at, tuple(problems))


def _outdated(run: EpochRun, tiered_end: int, tiered_epoch: int) -> Remark:
    text = (
        f"offsets [{max(run.base_offset, tiered_end)}, {run.end_offset}) of leader epoch"
        f" {run.leader_epoch} are left out, because the tier ends in epoch {tiered_epoch}"
    )
    return Remark(run.key, text)


def _fork(left_out: EpochRun, start_offset: int, reason: str) -> Remark:
    """Return the problem of acknowledged records that are in no log any more.

    An epoch begins where the chain before was sealed, and has one chain.
    """
    text = (
        f"offsets [{start_offset}, {left_out.end_offset}) of leader epoch {left_out.leader_epoch}"
        f" are left out, because {reason}: the cluster has run with metadata that was set back"
    )
    return Remark(left_out.key, text)


def _chains(runs: list[EpochRun]) -> EpochChains:
    """Return the epochs and their chains, except epochs whose records later ones replace."""
    chains: list[EpochChain] = []
    for run in runs:
        if chains and run.leader_epoch <= chains[-1].leader_epoch:
            continue
        while chains and chains[-1].first_offset >= run.base_offset:
            chains.pop()
        chains.append(EpochChain(run.leader_epoch, run.chain, run.base_offset))
    return tuple(chains)

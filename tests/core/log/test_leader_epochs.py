"""Where a leader epoch ends, as followers and readers are told it (KIP-101, KIP-320).

A reader whose last record is of an epoch that is said to be unknown begins again by its reset
policy, so no epoch that there ever was may be: it ends where the next one that is left begins.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.log.leader_epochs import EpochEntry, LeaderEpochs

from tests.support.batches import batch
from tests.support.log_building import append, open_log

UNKNOWN = (-1, -1)


def end_by_kafka(entries: list[EpochEntry], asked: int, log_end: int) -> EpochEntry:
    """Return what ``LeaderEpochFileCache.endOffsetFor`` of Kafka 4.1 does."""
    starts = dict(entries)
    if asked == -1 or not starts:
        return UNKNOWN
    if asked == max(starts):
        return asked, log_end
    higher = [epoch for epoch in starts if epoch > asked]
    if not higher:
        return UNKNOWN
    floors = [epoch for epoch in starts if epoch <= asked]
    return max(floors, default=asked), starts[min(higher)]


@given(
    st.sets(st.integers(0, 12)).flatmap(
        lambda epochs: st.lists(
            st.integers(0, 50), min_size=len(epochs), max_size=len(epochs), unique=True
        ).map(lambda starts: list(zip(sorted(epochs), sorted(starts), strict=True)))
    ),
    st.integers(-1, 14),
)
def test_an_epoch_ends_where_kafka_says(entries: list[EpochEntry], asked: int) -> None:
    assert LeaderEpochs(entries).end_offset_for(asked, 60) == end_by_kafka(entries, asked, 60)


@pytest.mark.parametrize("left", ["an epoch", "part of an epoch", "nothing"])
def test_an_epoch_that_a_power_cut_took_ends_where_the_next_leader_began(
    tmp_path: Path, left: str
) -> None:
    """Whole or in part; the next leader has appended nothing yet."""
    log = open_log(tmp_path / "t-0")
    for epoch in range(3):
        for _ in range(3):
            append(log, batch(), epoch=epoch)
    kept = {"an epoch": 3, "part of an epoch": 4, "nothing": 0}[left]
    read = log.read(kept, max_bytes=1 << 20, up_to=log.log_end_offset)
    assert read.slice is not None
    cut_at = read.slice.position
    # Nothing was flushed, and the process is gone.
    lost = tmp_path / "t-lost" / "t-0"
    lost.mkdir(parents=True)
    for path in (tmp_path / "t-0").iterdir():
        if path.suffix == ".log":
            (lost / path.name).write_bytes(path.read_bytes())
            os.truncate(lost / path.name, cut_at)
    log.close()
    again = open_log(lost)
    assert again.log_end_offset == kept
    again.assign_leader_epoch(7)
    for epoch in range(7):
        found, end_offset = again.offset_for_leader_epoch(epoch)
        assert 0 <= found <= epoch
        assert end_offset == min(kept, (epoch + 1) * 3)
    assert again.offset_for_leader_epoch(7) == (7, kept)
    again.close()

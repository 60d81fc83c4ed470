"""Partitions as an heir finds them in the footers of several chains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter, parse_object
from tidelog_core.log.producers.producer_snapshot import CorruptSnapshot, encode_snapshot
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, EpochChains

from tests.support.chain_model.checkpoint import (
    Checkpoint,
    CheckpointedPartition,
    pack_checkpoint,
    parse_checkpoint,
)
from tests.support.chain_model.heir_replay import (
    ReplayedPartition,
    ReplayGap,
    ReplayStart,
    footers_from,
    replay_partitions,
)
from tests.support.data_objects import build_data_object
from tests.support.wal_objects import (
    CHAIN,
    GATEWAY,
    HEIR,
    TOPIC_ID,
    batch,
    data_object,
    foreign_slice,
    name,
)

P0, P1 = PartitionName(TOPIC_ID, 0), PartitionName(TOPIC_ID, 1)
ALONE = (EpochChain(0, CHAIN, 0),)
TWICE = (EpochChain(0, CHAIN, 0), EpochChain(1, HEIR, 4), EpochChain(2, CHAIN, 6))


def wal(
    sequence: int, *slices: tuple[int, int, int], chain: ChainName = CHAIN, partition: int = 0
) -> WalFooter:
    """Return an object's footer; a slice is (leader epoch, base offset, count of batches)."""
    runs = [
        WalSlice(
            TOPIC_ID,
            partition,
            epoch,
            b"".join(
                batch(offset, 1, producer_id=9, producer_epoch=0, base_sequence=offset)
                for offset in range(base, base + count)
            ),
        )
        for epoch, base, count in slices
    ]
    built = build_data_object(name(sequence, chain=chain), runs)
    return parse_object(built.data, key="x")


def replay(
    footers: list[WalFooter],
    chains: EpochChains = ALONE,
    *,
    tier_end: int = 0,
    log_start: int = 0,
    ends: dict[ChainName, int] | None = None,
    checkpoints: list[Checkpoint] | None = None,
) -> ReplayedPartition:
    state = ProducerState(end_offset=tier_end, expiration_ms=10**15)
    starts = {P0: ReplayStart(chains, state, log_start)}
    found = replay_partitions(starts, footers, ends=ends or {}, checkpoints=checkpoints or ())
    return found[P0]


def checkpoint_of(
    sequence: int, replayed: ReplayedPartition, *, log_start: int = 0, chain: ChainName = CHAIN
) -> Checkpoint:
    """Return the checkpoint of the partition as it was replayed, by way of its bytes."""
    one = CheckpointedPartition(
        log_start,
        0,
        replayed.end_offset,
        encode_snapshot(replayed.state),
        tuple(one for one in replayed.slices if one.end_offset > log_start),
    )
    place = name(sequence, committed_end=sequence, chain=chain)
    built = pack_checkpoint(place, {P0: one})
    read = parse_checkpoint(built.data, key="x")
    assert read == Checkpoint(chain, sequence, {P0: one})
    return read


def spans(replayed: ReplayedPartition) -> list[tuple[ChainName, int, int, int]]:
    return [(one.chain, one.sequence, one.base_offset, one.end_offset) for one in replayed.slices]


def test_a_partition_ends_where_its_chain_does_and_its_slices_say_where_they_are() -> None:
    first, second = wal(0, (0, 0, 2)), wal(3, (0, 2, 1))
    replayed = replay([second, first])
    assert replayed.end_offset == 3
    assert spans(replayed) == [(CHAIN, 0, 0, 2), (CHAIN, 3, 2, 3)]
    (row,) = second.slices
    one = replayed.slices[1]
    assert (one.position, one.size_bytes, one.crc32c, one.batches) == (
        row.position,
        row.size_bytes,
        row.crc32c,
        (),
    )
    entry = replayed.state.entry(9)
    assert entry is not None
    assert entry.last_sequence == 2


def test_epochs_follow_each_other_through_their_chains_in_whatever_order_footers_come() -> None:
    footers = [
        wal(0, (0, 0, 4)),
        wal(9, (2, 6, 1)),
        wal(0, (1, 4, 2), chain=HEIR),
        wal(1, (1, 6, 5), chain=HEIR),  # above the seal of that chain
    ]
    for order in (footers, footers[::-1]):
        replayed = replay(order, TWICE)
        assert spans(replayed) == [(CHAIN, 0, 0, 4), (HEIR, 0, 4, 6), (CHAIN, 9, 6, 7)]


def test_above_the_seal_nothing_counts() -> None:
    footers = [wal(0, (0, 0, 2)), wal(1, (0, 2, 2)), wal(2, (0, 4, 2))]
    assert replay(footers, ends={CHAIN: 1}).end_offset == 2
    assert replay(footers, ends={HEIR: 1}).end_offset == 6


def test_what_the_tier_or_the_log_start_has_passed_is_not_fetched() -> None:
    footers = [wal(n, (0, 2 * n, 2)) for n in range(4)]
    assert spans(replay(footers[1:], tier_end=2)) == [
        (CHAIN, 1, 2, 4),
        (CHAIN, 2, 4, 6),
        (CHAIN, 3, 6, 8),
    ]
    assert spans(replay(footers, tier_end=3))[0] == (CHAIN, 1, 2, 4)  # begins below
    assert spans(replay(footers, log_start=6)) == [(CHAIN, 3, 6, 8)]
    assert spans(replay(footers, log_start=8)) == []
    assert replay([], tier_end=8).end_offset == 8
    assert replay([], TWICE, tier_end=20).end_offset == 20


@pytest.mark.parametrize(
    ("missing", "chains"), [(0, ALONE), (1, ALONE), (1, (*ALONE, EpochChain(1, HEIR, 6)))]
)
def test_nothing_above_the_tier_may_be_missing(missing: int, chains: EpochChains) -> None:
    footers = [wal(n, (0, 2 * n, 2)) for n in range(3)]
    del footers[missing]
    with pytest.raises(ReplayGap, match=r"\[\d, \d\) of|was found up to"):
        replay(footers, chains)
    assert replay(footers, chains, tier_end=2 * missing + 2).end_offset == 6


def test_an_epoch_begins_where_the_one_before_was_found_to_end() -> None:
    with pytest.raises(ReplayGap, match="begins at 4"):
        replay([wal(0, (0, 0, 2))], TWICE)


def test_a_log_start_above_the_end_is_a_gap() -> None:
    with pytest.raises(ReplayGap, match="ends at 2"):
        replay([wal(0, (0, 0, 2))], log_start=3)


def test_references_and_partitions_of_others_are_distinguished() -> None:
    footer = parse_object(data_object().data, key="x")
    starts = {
        P1: ReplayStart((EpochChain(7, CHAIN, 20),), ProducerState(end_offset=20, expiration_ms=1))
    }
    found = replay_partitions(starts, [footer], ends={})
    assert set(found) == {P1}
    reference = foreign_slice()
    assert spans(found[P1]) == [(GATEWAY, reference.sequence, 20, 24)]
    # Foreign slices in a gateway's own chain are of no partition until somebody refers to them.
    foreign = PartitionName(TOPIC_ID, 2)
    state = ProducerState(expiration_ms=1)
    found = replay_partitions({foreign: ReplayStart((), state)}, [footer], ends={})
    assert found[foreign] == ReplayedPartition(state, (), (), 0)


@pytest.mark.parametrize("log_start", [0, 3, 4])
def test_a_checkpoint_takes_the_place_of_the_objects_below(log_start: int) -> None:
    footers = [wal(n, (0, 2 * n, 2)) for n in range(4)]
    whole = replay(footers, log_start=log_start)
    known = checkpoint_of(3, replay(footers[:3]), log_start=log_start)
    older = checkpoint_of(1, replay(footers[:1]))
    starts = {P0: ReplayStart(ALONE, ProducerState(expiration_ms=1))}
    assert footers_from(starts, [older, known]) == {CHAIN: 3}
    for checkpoints in ([known], [known, older], [older, known]):
        # The item that was read may be older than the checkpoint.
        replayed = replay(footers[3:], checkpoints=checkpoints)
        assert spans(replayed) == spans(whole)
        assert retained(replayed.state) == retained(whole.state)
        assert replay(footers, checkpoints=checkpoints).slices == replayed.slices
    with pytest.raises(ReplayGap):
        replay(footers[2:] if log_start < 4 else footers[3:])


def test_a_checkpoint_that_the_tier_has_passed_is_not_used() -> None:
    footers = [wal(n, (0, 2 * n, 2)) for n in range(4)]
    known = checkpoint_of(2, replay(footers[:2]))
    state = ProducerState(end_offset=4, expiration_ms=1)
    assert footers_from({P0: ReplayStart(ALONE, state)}, [known]) == {CHAIN: 0}
    assert spans(replay(footers[2:], tier_end=4, checkpoints=[known])) == [
        (CHAIN, 2, 4, 6),
        (CHAIN, 3, 6, 8),
    ]


def test_footers_are_read_from_where_nothing_else_says_what_they_do() -> None:
    def needed(chains: EpochChains, tier_end: int, *checkpoints: Checkpoint) -> object:
        state = ProducerState(end_offset=tier_end, expiration_ms=1)
        return footers_from({P0: ReplayStart(chains, state)}, checkpoints)

    assert needed(TWICE, 0) == {CHAIN: 0, HEIR: 0}
    assert needed(TWICE, 4) == {CHAIN: 0, HEIR: 0}
    assert needed(TWICE, 6) == {CHAIN: 0}
    assert needed((), 0) == {}
    first = replay([wal(0, (0, 0, 4))])
    in_heir = checkpoint_of(9, first, chain=HEIR)
    assert needed(TWICE, 0, in_heir) == {CHAIN: 0, HEIR: 9}
    in_chain = checkpoint_of(9, first)
    assert needed(TWICE, 0, in_chain) == {CHAIN: 9, HEIR: 0}
    # The other partition of the chain has no checkpoint.
    state = ProducerState(expiration_ms=1)
    starts = {P0: ReplayStart(ALONE, state), P1: ReplayStart(ALONE, state)}
    assert footers_from(starts, [in_chain]) == {CHAIN: 0}


def test_a_checkpoint_whose_producers_are_of_another_offset_is_refused() -> None:
    known = checkpoint_of(1, replay([wal(0, (0, 0, 2))]))
    one = known.partitions[P0]._replace(end_offset=3)
    with pytest.raises(CorruptSnapshot, match="as of 2 instead of 3"):
        replay([], checkpoints=[known._replace(partitions={P0: one})])


@given(st.lists(st.integers(1, 3), max_size=12), st.data())
def test_wherever_the_tier_ends_the_end_and_the_producers_are_the_same(
    counts: list[int], data: st.DataObject
) -> None:
    """The tier's producers and a replay of the rest give what a replay of everything gives."""
    bases = [sum(counts[:n]) for n in range(len(counts))]
    footers = [wal(n, (0, base, counts[n])) for n, base in enumerate(bases)]
    whole = replay(footers)
    cut = data.draw(st.integers(0, len(counts)))
    tier = replay(footers[:cut]).state
    rest = replay_partitions({P0: ReplayStart(ALONE, tier)}, footers[cut:], ends={})[P0]
    assert rest.end_offset == whole.end_offset == sum(counts)
    assert spans(rest) == spans(whole)[cut:]
    assert retained(rest.state) == retained(whole.state)


def retained(state: ProducerState) -> list[tuple[int, ...]]:
    entry = state.entry(9)
    return [] if entry is None else [tuple(one) for one in entry.batches]

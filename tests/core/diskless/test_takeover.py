"""Takeovers, handovers, and what a heir replays."""

from __future__ import annotations

import pytest
from tidelog_core.diskless.chain.rules import ChainRules
from tidelog_core.diskless.chain.steady_time import SteadyTime
from tidelog_core.diskless.takeover.chain_sealer import ChainSealer
from tidelog_core.diskless.takeover.takeover import (
    Finished,
    Lead,
    ReadItems,
    Replay,
    StoredChains,
    Takeover,
    WriteEpochs,
    WriteOutcome,
)
from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.committed_slices import committed_slices
from tidelog_core.diskless.wal.epoch_chains import (
    PartitionName,
    begin_epoch,
    current_chain,
)
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.errors import CorruptObject
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.metadata.epoch_chains import (
    DELETED_EPOCHS_MAX,
    EpochChain,
    cut_history,
    cut_tiered,
)

from tests.core.diskless.test_chain_sealer import Bucket, data
from tests.support.chain_model.handover import Handover
from tests.support.chain_model.partition_replay import PartitionReplay
from tests.support.data_objects import build_data_object
from tests.support.wal_objects import (
    CHAIN,
    CREATED_MS,
    GATEWAY,
    HEIR,
    TOPIC_ID,
    batch,
    data_object,
    name,
)

P0, P1 = PartitionName(TOPIC_ID, 0), PartitionName(TOPIC_ID, 1)
MINE = StoredChains(3, (EpochChain(0, CHAIN, 0),))
OTHERS = StoredChains(5, (EpochChain(0, GATEWAY, 0),))
WRITTEN, CONFLICT, UNKNOWN = WriteOutcome.WRITTEN, WriteOutcome.CONFLICT, WriteOutcome.UNKNOWN


def sealed(rules: ChainRules | None = None) -> Takeover:
    """Return a takeover of a chain that was sealed at 1."""
    sealer = ChainSealer(CHAIN, now_ms=0.0)
    takeover = Takeover.of_sealed_chain(sealer, HEIR, rules=rules)
    assert not takeover.may_begin()
    Bucket().put(data(0, 0)).drive(sealer, sealer.start())
    assert takeover.may_begin()
    return takeover


def taken(first_offset: int = 40) -> StoredChains:
    chains = (*MINE.chains, EpochChain(1, HEIR, first_offset))
    return StoredChains(MINE.version, chains, leader=HEIR.broker_id)


def handed_over(successor: int = HEIR.broker_id) -> StoredChains:
    """Return the item once the leader has ended its epoch at 40 for the successor."""
    chains = (*MINE.chains, EpochChain(1, CHAIN, 40))
    return StoredChains(4, chains, leader_epoch=1, leader=successor)


def test_all_partitions_of_the_chain_are_taken_by_one_write() -> None:
    takeover = sealed()
    assert takeover.begin() == [ReadItems()]
    items = {P0: MINE, P1: OTHERS}
    (replay,) = takeover.on_items(items)
    assert replay == Replay({P0: MINE}, 1)
    (write,) = takeover.on_replayed({P0: MINE}, {P0: 40})
    assert write == WriteEpochs({P0: taken()})
    lead, finished = takeover.on_written(WRITTEN)
    assert lead == Lead(P0, taken()._replace(version=4), 40)
    assert finished == Finished(1)


@pytest.mark.parametrize("outcome", [CONFLICT, UNKNOWN])
def test_the_loser_of_a_race_reads_and_gives_up(outcome: WriteOutcome) -> None:
    takeover = sealed()
    takeover.on_items({P0: MINE})
    takeover.on_replayed({P0: MINE}, {P0: 40})
    assert takeover.on_written(outcome) == [ReadItems()]
    others = StoredChains(4, (*MINE.chains, EpochChain(1, GATEWAY, 40)))
    assert takeover.on_items({P0: others}) == [Finished(1)]


def test_a_write_of_unknown_outcome_that_was_made_leads() -> None:
    takeover = sealed()
    takeover.on_items({P0: MINE})
    takeover.on_replayed({P0: MINE}, {P0: 40})
    takeover.on_written(UNKNOWN)
    stored = taken()._replace(version=4)
    assert takeover.on_items({P0: stored}) == [Lead(P0, stored, 40), Finished(1)]


def test_a_write_that_was_not_made_is_repeated_without_another_replay() -> None:
    takeover = sealed()
    takeover.on_items({P0: MINE})
    takeover.on_replayed({P0: MINE}, {P0: 40})
    takeover.on_written(UNKNOWN)
    newer = MINE._replace(version=9)
    assert takeover.on_items({P0: newer}) == [WriteEpochs({P0: taken()._replace(version=9)})]


def test_nothing_is_left_to_take() -> None:
    takeover = sealed()
    assert takeover.on_items({P1: OTHERS}) == [Finished(1)]


def test_a_handover_never_resumes() -> None:
    handover = Handover(P0, HEIR.broker_id, stored=MINE, end_offset=40)
    assert handover.begin() == WriteEpochs({P0: handed_over()._replace(version=3)})
    assert handover.on_written(UNKNOWN) == ReadItems()
    newer = MINE._replace(version=7)
    assert handover.on_items({P0: newer}) == WriteEpochs({P0: handed_over()._replace(version=7)})
    assert handover.on_written(CONFLICT) == ReadItems()
    assert handover.on_items({P0: handed_over()._replace(version=8)}) == Finished(None)
    assert handover.on_items({P0: taken()._replace(version=8)}) == Finished(None)
    assert handover.on_items({}) == Finished(None)
    assert handover.on_written(WRITTEN) == Finished(None)


def test_a_handover_does_not_end_a_later_epoch_of_the_same_chain() -> None:
    """Its write was made although nobody said so, and the partition has come back since."""
    handover = Handover(P0, HEIR.broker_id, stored=MINE, end_offset=40)
    handover.on_written(UNKNOWN)
    back = StoredChains(6, (*taken().chains, EpochChain(2, CHAIN, 55)))
    assert handover.on_items({P0: back}) == Finished(None)


def test_a_takeover_replays_again_if_a_late_write_has_named_the_sealed_chain_again() -> None:
    takeover = sealed()
    takeover.on_items({P0: MINE})
    takeover.on_replayed({P0: MINE}, {P0: 40})
    takeover.on_written(CONFLICT)
    chains = (*MINE.chains, EpochChain(1, GATEWAY, 40), EpochChain(2, CHAIN, 55))
    again = StoredChains(6, chains)
    assert takeover.on_items({P0: again}) == [Replay({P0: again}, 1)]
    (write,) = takeover.on_replayed({P0: again}, {P0: 55})
    after = StoredChains(6, (*chains, EpochChain(3, HEIR, 55)), leader=HEIR.broker_id)
    assert write == WriteEpochs({P0: after})


# -- what was handed over --


def test_what_was_handed_over_is_taken_without_a_seal() -> None:
    takeover = Takeover.of_ended_epochs(CHAIN, HEIR)
    assert takeover.may_begin()
    assert takeover.begin() == [ReadItems()]
    stored = handed_over()
    assert stored.is_handed_over
    assert takeover.on_items({P0: stored, P1: OTHERS}) == [Replay({P0: stored}, None)]
    (write,) = takeover.on_replayed({P0: stored}, {P0: 40})
    chains = (*stored.chains, EpochChain(2, HEIR, 40))
    assert write == WriteEpochs({P0: stored._replace(chains=chains)})
    lead, finished = takeover.on_written(WRITTEN)
    assert lead == Lead(P0, stored._replace(chains=chains, version=5), 40)
    assert finished == Finished(None)


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(MINE._replace(leader=2, leader_epoch=1), id="a leader that says nothing"),
        pytest.param(handed_over()._replace(leader_epoch=2), id="another election"),
        pytest.param(handed_over(CHAIN.broker_id), id="the broker whose chain it is"),
        pytest.param(handed_over(-1), id="no leader"),
        pytest.param(taken()._replace(leader_epoch=1), id="entered"),
    ],
)
def test_nothing_else_is_taken_without_a_seal(stored: StoredChains) -> None:
    """The old leader may go on, or its chain may have more than the item says."""
    assert not stored.is_handed_over
    takeover = Takeover.of_ended_epochs(CHAIN, HEIR)
    assert takeover.on_items({P0: stored}) == [Finished(None)]


def test_what_the_heirs_own_chain_has_is_taken_back_without_a_seal() -> None:
    """Its successor never entered: nobody has led it elsewhere."""
    takeover = Takeover.of_ended_epochs(CHAIN, CHAIN)
    back = handed_over()._replace(leader_epoch=2, leader=CHAIN.broker_id)
    assert takeover.on_items({P0: back, P1: OTHERS}) == [Replay({P0: back}, None)]
    (write,) = takeover.on_replayed({P0: back}, {P0: 40})
    assert isinstance(write, WriteEpochs)
    chains = (*back.chains, EpochChain(3, CHAIN, 40))
    assert write.items[P0].chains == chains
    assert takeover.on_written(UNKNOWN) == [ReadItems()]
    stored = back._replace(chains=chains, version=5)  # It was written, once.
    assert takeover.on_items({P0: stored}) == [Lead(P0, stored, 40), Finished(None)]


def test_a_successor_that_died_leaves_an_epoch_without_records_to_the_next_heir() -> None:
    """Elected later, it seals the chain that the item names, and finds the same end."""
    takeover = sealed()
    again = handed_over()._replace(leader_epoch=3, leader=9)
    assert takeover.on_items({P0: again}) == [Replay({P0: again}, 1)]
    (write,) = takeover.on_replayed({P0: again}, {P0: 40})
    assert isinstance(write, WriteEpochs)
    assert write.items[P0].chains == (*again.chains, EpochChain(4, HEIR, 40))


def test_epochs_follow_each_other_and_end_where_the_next_begins() -> None:
    chains = begin_epoch((), CHAIN, 0)
    chains = begin_epoch(chains, HEIR, 40)
    chains = begin_epoch(chains, CHAIN, 40)
    assert [(one.leader_epoch, one.first_offset) for one in chains] == [(0, 0), (1, 40), (2, 40)]
    assert current_chain(chains) == EpochChain(2, CHAIN, 40)
    assert current_chain(()) is None
    with pytest.raises(ValueError, match="begins at 40"):
        begin_epoch(chains, HEIR, 39)
    assert cut_tiered(chains, 39) == chains
    assert cut_tiered(chains, 40) == chains[2:]
    assert cut_tiered(chains, 1_000) == chains[2:]
    assert cut_tiered((), 5) == ()
    assert begin_epoch((), CHAIN, 9, after_epoch=5) == (EpochChain(6, CHAIN, 9),)


@pytest.mark.parametrize(
    ("copied_end", "log_start_offset", "epochs"),
    [
        (-1, 0, [0, 1, 2, 3, 4]),
        (-1, 19, [0, 1, 2, 3, 4]),
        (-1, 20, [0, 2, 3, 4]),  # epoch 1 is empty
        (-1, 100, [0, 2, 3, 4]),
        (20, 20, [2, 3, 4]),
        (20, 40, [2, 3, 4]),  # epoch 2 was deleted, and never tiered
        (30, 60, [3, 4]),
        (50, 60, [4]),
    ],
)
def test_an_heir_keeps_epochs_whose_records_were_deleted_before_they_were_tiered(
    copied_end: int, log_start_offset: int, epochs: list[int]
) -> None:
    firsts = (0, 20, 20, 30, 50)
    chains = tuple(EpochChain(epoch, CHAIN, first) for epoch, first in enumerate(firsts))
    kept = cut_history(chains, copied_end=copied_end, log_start_offset=log_start_offset)
    assert [one.leader_epoch for one in kept] == epochs


def test_an_heir_keeps_the_last_ones_of_many_deleted_epochs() -> None:
    chains = tuple(EpochChain(epoch, CHAIN, epoch) for epoch in range(100))
    kept = cut_history(chains, copied_end=-1, log_start_offset=90)
    assert [one.leader_epoch for one in kept] == list(range(90 - DELETED_EPOCHS_MAX, 100))
    assert cut_history((), copied_end=-1, log_start_offset=90) == ()


def test_an_epoch_that_an_election_began_is_in_no_chain() -> None:
    chains = begin_epoch((), CHAIN, 0)
    assert begin_epoch(chains, HEIR, 4, after_epoch=7)[-1] == EpochChain(8, HEIR, 4)
    assert begin_epoch(chains, HEIR, 4, after_epoch=0)[-1] == EpochChain(1, HEIR, 4)


def test_new_partitions_are_taken_without_a_chain_before() -> None:
    takeover = Takeover.of_new_partitions(HEIR)
    assert takeover.begin() == [ReadItems()]
    new = StoredChains(1, (), leader_epoch=3)
    assert takeover.on_items({P0: new, P1: OTHERS}) == [Replay({P0: new}, None)]
    [write] = takeover.on_replayed({P0: new}, {P0: 0})
    chains = (EpochChain(4, HEIR, 0),)
    entered = StoredChains(1, chains, leader_epoch=3, leader=HEIR.broker_id)
    assert write == WriteEpochs({P0: entered})
    led = Lead(P0, entered._replace(version=2), 0)
    assert takeover.on_written(WriteOutcome.WRITTEN) == [led, Finished(None)]


def replayed(partition: int, start: int) -> PartitionReplay:
    state = ProducerState(end_offset=start, expiration_ms=10**9)
    replay = PartitionReplay(PartitionName(TOPIC_ID, partition), 7, state)
    for one in committed_slices(parse_object(data_object().data, key="x")):
        replay.apply(one, key="x")
    return replay


def test_a_replay_knows_the_end_and_the_producers_without_the_data() -> None:
    replay = replayed(0, 10)
    assert replay.end_offset == 13
    entry = replay.state.entry(9)
    assert entry is not None
    assert (entry.epoch, entry.last_sequence, entry.coordinator_epoch) == (1, 4, 6)
    assert entry.batches[-1].last_offset == 11
    assert replay.state.first_unstable_offset is None
    (aborted,) = replay.aborted
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (9, 10, 12)


def test_a_producer_of_old_records_is_known_as_long_as_any_other() -> None:
    """A backfill: its batches have the timestamps of long ago, and their object that of now."""
    old = batch(10, 2, producer_id=9, producer_epoch=1, base_sequence=3)
    written_ms = CREATED_MS + 10**12
    place = name(11)._replace(created_ms=written_ms)
    built = build_data_object(place, [WalSlice(TOPIC_ID, 0, 7, old)])
    replay = PartitionReplay(P0, 7, ProducerState(end_offset=10, expiration_ms=1_000))
    (one,) = committed_slices(parse_object(built.data, key="x"))
    replay.apply(one, key="x")
    assert replay.state.expire(written_ms + 999) == 0
    assert replay.state.expire(written_ms + 1_000) == 1


def test_a_replay_takes_references_with_the_offsets_that_they_give() -> None:
    replay = replayed(1, 20)
    assert replay.end_offset == 24
    assert [(one.chain, one.batches) for one in replay.slices] == [(GATEWAY, ())]
    entry = replay.state.entry(9)
    assert entry is not None
    assert (entry.last_sequence, entry.batches[-1].last_offset) == (7, 22)


def test_a_replay_skips_what_the_tier_has_and_other_epochs() -> None:
    assert replayed(0, 13).slices == []
    assert replayed(0, 12).end_offset == 13
    assert replayed(4, 5).slices == []  # epoch 8


def test_a_replay_refuses_a_gap() -> None:
    with pytest.raises(CorruptObject, match=r"\[9, 10\)"):
        replayed(0, 9)
    replay = replayed(0, 10)
    replay.begin_epoch(8, 13)
    with pytest.raises(ValueError, match="was found up to 13"):
        replay.begin_epoch(9, 14)


def test_steady_time_never_goes_back() -> None:
    steady = SteadyTime(1_000.0)
    assert steady.advance(1_010.0) == 10
    assert steady.advance(0.0) == 10
    assert steady.advance(5.0) == 15

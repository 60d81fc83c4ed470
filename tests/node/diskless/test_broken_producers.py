"""Which batches of a producer are refused once one of them is lost."""

from __future__ import annotations

from uuid import NAMESPACE_OID, uuid5

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.values import AppendOrigin
from tidelog_core.records.batch import parse_header
from tidelog_node.diskless.gateway.broken_producers import (
    BREAK_SECONDS,
    SEQUENCE_MASK,
    BrokenProducers,
    ProducerBatch,
    producer_batch,
)
from tidelog_node.diskless.gateway.missed_batches import (
    MISSED_SECONDS,
    PARTITIONS_MAX,
    MissedBatches,
)

from tests.support.batches import batch

NAME = PartitionName(uuid5(NAMESPACE_OID, "t"), 0)


def sent(sequence: int, *, epoch: int = 0, producer_id: int = 7) -> ProducerBatch:
    return ProducerBatch(NAME, producer_id, epoch, sequence)


def test_a_producer_that_is_not_idempotent_has_no_order() -> None:
    assert producer_batch(NAME, parse_header(batch(1))) is None
    known = producer_batch(NAME, parse_header(batch(2, producer_id=7, base_sequence=5)))
    assert known is not None
    assert known.sequence == 5


def test_later_batches_are_refused_until_the_lost_one_comes_again() -> None:
    broken = BrokenProducers(lambda: 0.0)
    broken.lose(sent(3), 1)
    assert not broken.blocks(sent(3), 2)
    assert broken.blocks(sent(4), 3)
    assert broken.blocks(sent(9), 4)
    assert not broken.blocks(sent(4, producer_id=8), 5)
    other = PartitionName(NAME.topic_id, 1)
    assert not broken.blocks(sent(4)._replace(partition=other), 6)
    broken.take(sent(4), 7)  # It is not the one that is missing.
    assert broken.blocks(sent(4), 7)
    broken.take(sent(3), 8)
    assert not broken.blocks(sent(4), 9)
    assert broken.blocks(sent(4), 4), "it was sent before, and may reach the log first"


def test_an_ack_says_that_the_log_has_what_came_before() -> None:
    for acknowledged, goes_on in (
        (sent(2), False),
        (sent(3), True),
        (sent(9), True),
        (sent(9, epoch=1), False),
        (sent(9, producer_id=8), False),
    ):
        broken = BrokenProducers(lambda: 0.0)
        broken.lose(sent(3), 1)
        broken.acknowledge(acknowledged)
        assert broken.blocks(sent(10), 5) != goes_on
        assert len(broken) == (0 if goes_on else 1)


def test_a_repetition_that_is_lost_breaks_the_producer_again() -> None:
    broken = BrokenProducers(lambda: 0.0)
    broken.lose(sent(3), 1)
    broken.lose(sent(4), 2)  # Behind it: the first one is still the one to wait for.
    broken.take(sent(3), 3)
    assert not broken.blocks(sent(4), 4)
    broken.lose(sent(3), 3)
    assert broken.blocks(sent(4), 4)
    broken.take(sent(2), 5)  # The producer begins even earlier.
    assert not broken.blocks(sent(3), 6)


def test_a_repetition_may_have_come_before_the_batch_is_lost() -> None:
    """Its request has timed out before anyone knows what became of it."""
    broken = BrokenProducers(lambda: 0.0)
    broken.lose(sent(3), 1, [(2, sent(4)), (5, sent(3)), (6, sent(4))])
    assert broken.blocks(sent(4), 2)
    assert not broken.blocks(sent(4), 6)


def test_a_producer_goes_on_behind_a_batch_that_its_log_has_in_the_end() -> None:
    """Another node has given it the answer: it does not repeat the batch."""
    state = ProducerState(expiration_ms=1_000)
    broken = BrokenProducers(lambda: 0.0)
    broken.lose(sent(3), 1)

    def is_taken(number: int, *, end_offset: int = 100) -> bool:
        broken.note_log(sent(9), number, state, end_offset)
        return not broken.blocks(sent(9), number)

    def append(sequence: int, offset: int, epoch: int = 0) -> None:
        draft = state.stage(AppendOrigin.REPLICATION, now_ms=0)
        content = batch(1, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        draft.add(parse_header(content), offset)
        state.commit(draft, end_offset=offset + 1)

    assert not is_taken(2)
    append(2, offset=10)
    assert not is_taken(3), "the lost one is the next one"
    append(3, offset=11)
    assert not is_taken(4, end_offset=11), "it may be cut again"
    assert is_taken(5, end_offset=12)
    assert broken.blocks(sent(4), 4), "it was sent before"
    broken.lose(sent(9), 6)
    append(0, offset=12, epoch=1)
    assert is_taken(7), "of an epoch that is over: the log refuses it"


def test_a_break_is_forgotten_after_a_time() -> None:
    """Its producer has given the batch up long ago, and would be refused for ever."""
    now_s = 0.0
    broken = BrokenProducers(lambda: now_s)
    broken.lose(sent(3), 1)
    now_s = 1.0
    broken.lose(sent(3, producer_id=8), 2)
    now_s = BREAK_SECONDS - 1
    assert broken.blocks(sent(4), 3)
    now_s = BREAK_SECONDS
    assert not broken.blocks(sent(4), 4)
    assert broken.blocks(sent(4, producer_id=8), 5)
    assert len(broken) == 1


def test_a_break_that_is_repeated_is_as_new() -> None:
    now_s = 0.0
    broken = BrokenProducers(lambda: now_s)
    broken.lose(sent(3), 1)
    now_s = BREAK_SECONDS - 1
    broken.lose(sent(4), 2)
    now_s = BREAK_SECONDS + 1
    assert broken.blocks(sent(4), 3)


def test_producers_of_one_topic_do_not_push_out_those_of_another() -> None:
    """Whoever may write to a topic can break as many producers there as he likes."""
    broken = BrokenProducers(lambda: 0.0, producers_max=10)
    other = PartitionName(uuid5(NAMESPACE_OID, "other"), 0)
    for producer_id in range(3):
        broken.lose(sent(3, producer_id=producer_id)._replace(partition=other), 1)
    for producer_id in range(100):
        broken.lose(sent(3, producer_id=producer_id), 2)
    assert len(broken) == 10
    for producer_id in range(3):
        assert broken.blocks(sent(4, producer_id=producer_id)._replace(partition=other), 3)
    for producer_id in range(3, 30):
        broken.lose(sent(3, producer_id=producer_id)._replace(partition=other), 4)
    assert len(broken) == 10
    kept = [
        producer_id
        for producer_id in range(100)
        if broken.blocks(sent(4, producer_id=producer_id), 5)
    ]
    assert kept == [95, 96, 97, 98, 99], "each has half of the room"


def test_the_topic_with_most_producers_loses_its_first_one_if_any_topic_needs_room() -> None:
    broken = BrokenProducers(lambda: 0.0, producers_max=10)
    names = [PartitionName(uuid5(NAMESPACE_OID, f"topic {number}"), 0) for number in range(20)]

    def lose(number: int, producer_id: int) -> None:
        broken.lose(sent(3, producer_id=producer_id)._replace(partition=names[number]), 1)

    def kept(number: int) -> list[int]:
        later = [sent(4, producer_id=one)._replace(partition=names[number]) for one in range(9)]
        return [one.producer_id for one in later if broken.blocks(one, 2)]

    for number in range(4):
        lose(number, 0)
    for producer_id in range(6):
        lose(4, producer_id)
    lose(4, 5)  # It is known already.
    for number in range(5, 8):
        lose(number, 0)
    assert [kept(number) for number in range(8)] == [[0]] * 4 + [[3, 4, 5]] + [[0]] * 3
    broken.has_come(sent(3, producer_id=3)._replace(partition=names[4]))
    broken.has_come(sent(3, producer_id=4)._replace(partition=names[4]))
    for number in range(8, 11):
        lose(number, 0)
    assert len(broken) == 10
    assert sum(map(len, map(kept, range(20)))) == 10


def test_the_next_epoch_is_another_sequence_and_the_former_one_is_over() -> None:
    broken = BrokenProducers(lambda: 0.0)
    broken.lose(sent(3), 1)
    broken.take(sent(0, epoch=1), 2)
    assert not broken.blocks(sent(0, epoch=1), 2)
    assert not broken.blocks(sent(4, epoch=1), 3)
    assert broken.blocks(sent(4), 1)
    broken.lose(sent(0, epoch=1), 2)
    assert broken.blocks(sent(3), 4), "of the former epoch"
    assert broken.blocks(sent(1, epoch=1), 5)


def test_sequences_begin_again_behind_the_last_one() -> None:
    broken = BrokenProducers(lambda: 0.0)
    broken.lose(sent(SEQUENCE_MASK), 1)
    assert broken.blocks(sent(0), 2)
    assert not broken.blocks(sent(SEQUENCE_MASK - 1), 3)


def test_a_producer_is_forgotten_when_its_lost_batch_has_come() -> None:
    """By a caller that gets the batches in the order in which they are sent."""
    broken = BrokenProducers(lambda: 0.0)
    broken.lose(sent(3), 0)
    broken.has_come(sent(4))
    assert len(broken) == 1
    broken.has_come(sent(3))
    assert not broken
    broken.lose(sent(3), 0)
    broken.has_come(sent(0, epoch=1))
    assert not broken


def test_a_bounded_number_of_producers_is_remembered() -> None:
    broken = BrokenProducers(lambda: 0.0, producers_max=3)
    for producer_id in range(5):
        broken.lose(sent(1, producer_id=producer_id), producer_id)
    assert len(broken) == 3
    blocked = [p for p in range(5) if broken.blocks(sent(2, producer_id=p), 9)]
    assert blocked == [2, 3, 4]


def test_a_leader_remembers_partitions_of_missed_batches_for_a_time() -> None:
    now_s = 0.0
    missed = MissedBatches(lambda: now_s)
    assert not missed.has(NAME)
    missed.note(NAME)
    assert missed.has(NAME)
    for index in range(1, PARTITIONS_MAX):
        missed.note(PartitionName(NAME.topic_id, index))
    assert missed.has(NAME)
    missed.note(PartitionName(NAME.topic_id, PARTITIONS_MAX))
    assert not missed.has(NAME)
    missed.note(NAME)
    now_s = MISSED_SECONDS
    assert not missed.has(NAME)
    assert not len(missed), "of partitions without later batches nothing stays"

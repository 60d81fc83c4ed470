"""Producers whose first batch a leader has not seen: they may be early, or have been forgotten."""

from __future__ import annotations

from uuid import NAMESPACE_OID, uuid5

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_node.diskless.gateway.broken_producers import SEQUENCE_MASK, ProducerBatch
from tidelog_node.diskless.gateway.strange_producers import (
    FORGOTTEN_SECONDS,
    STRANGE_SECONDS,
    StrangeProducers,
)

NAME = PartitionName(uuid5(NAMESPACE_OID, "t"), 0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def sent(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> ProducerBatch:
    return ProducerBatch(NAME, producer_id, epoch, sequence)


def test_a_later_batch_is_taken_once_no_gateway_can_have_an_earlier_one() -> None:
    clock = Clock()
    strange = StrangeProducers(clock)
    assert strange.may_take(sent(0))
    assert not strange.may_take(sent(3))
    clock.now_s += STRANGE_SECONDS - 1
    assert not strange.may_take(sent(4))
    assert not strange.may_take(sent(3, epoch=1)), "of another epoch nothing is known"
    clock.now_s += 1
    assert strange.may_take(sent(3))
    assert len(strange) == 1
    assert not strange.may_take(sent(3)), "it is remembered no longer"


def test_the_batches_that_were_refused_are_taken_in_their_order() -> None:
    """The time ends between two batches that are on their way together."""
    clock = Clock()
    strange = StrangeProducers(clock)
    assert not strange.may_take(sent(5))
    clock.now_s += 1
    assert not strange.may_take(sent(3)), "it comes from the former gateway"
    clock.now_s += STRANGE_SECONDS - 1
    assert not strange.may_take(sent(4))
    assert not strange.may_take(sent(5))
    assert strange.may_take(sent(3))


def test_a_producer_whose_sequences_begin_again_goes_on_in_its_order() -> None:
    clock = Clock()
    strange = StrangeProducers(clock)
    assert not strange.may_take(sent(SEQUENCE_MASK))
    clock.now_s += STRANGE_SECONDS
    assert not strange.may_take(sent(1))
    assert strange.may_take(sent(SEQUENCE_MASK))


def test_old_and_too_many_producers_are_forgotten() -> None:
    clock = Clock()
    strange = StrangeProducers(clock, producers_max=3)
    for producer_id in range(9):
        assert not strange.may_take(sent(1, producer_id=producer_id))
    assert len(strange) == 3
    clock.now_s += FORGOTTEN_SECONDS
    assert not strange.may_take(sent(1, producer_id=8))
    assert len(strange) == 1

"""Whose logs are compared with the chains after a run."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, end_epoch
from tidelog_core.metadata.records import AckedBy, Partition

from tests.chaos.aftermath import holders

LED = Partition(
    topic_id=UUID(int=1),
    partition=0,
    replicas=(1, 2, 3),
    leader=1,
    leader_epoch=4,
    isr=(1, 2),
    acked_by=AckedBy.CHAIN,
    wal=(EpochChain(4, ChainName(1, UUID(int=7)), 10),),
)


def test_copies_of_the_leader_and_of_those_that_follow_it_count() -> None:
    assert holders(LED) == (1, 2)


def test_one_that_is_only_asked_to_follow_does_not_count() -> None:
    asked = replace(LED, replicas=(4, 1, 2, 3), adding=(4,), removing=(3,))
    assert holders(asked) == (1, 2)


def test_a_broker_that_is_elected_counts_once_it_has_entered() -> None:
    elected = replace(LED, leader=3, leader_epoch=5, isr=(3, 2))
    assert holders(elected) == (2,)
    handed_over = replace(elected, wal=end_epoch(LED.wal, 20, next_epoch=5))
    assert holders(handed_over) == (2,)
    entered = EpochChain(6, ChainName(3, UUID(int=8)), 20)
    led = replace(handed_over, leader_epoch=6, wal=(*handed_over.wal, entered))
    assert holders(led) == (3, 2)


def test_all_in_sync_count_of_a_replicated_partition() -> None:
    assert holders(replace(LED, acked_by=None, wal=(), isr=(1, 2, 3))) == (1, 2, 3)

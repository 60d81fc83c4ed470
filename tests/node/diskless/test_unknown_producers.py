"""Producers whose first batch a leader has not seen: they may be early, or have been forgotten."""

from __future__ import annotations

from uuid import NAMESPACE_OID, uuid5

import pytest
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.model import Principal
from tidelog_node.diskless.gateway import unknown_producers
from tidelog_node.diskless.gateway.broken_producers import SEQUENCE_MASK, ProducerBatch
from tidelog_node.diskless.gateway.missed_batches import MISSED_SECONDS
from tidelog_node.diskless.gateway.unknown_producers import (
    FORGOTTEN_SECONDS,
    UNKNOWN_SECONDS,
    ClientSource,
    GatewaySource,
    Source,
    UnknownProducers,
    client_source,
)

from tests.support.request_contexts import a_session

NAME = PartitionName(uuid5(NAMESPACE_OID, "t"), 0)
ALICE = ClientSource(Principal("User", "alice"), "10.0.0.1")
MALLORY = ClientSource(Principal("User", "mallory"), "10.0.0.1")
OTHER_HOST = ClientSource(Principal("User", "alice"), "10.0.0.2")
GATEWAY = GatewaySource(3, NAME.topic_id)
OTHER_TOPIC = GatewaySource(3, uuid5(NAMESPACE_OID, "other"))


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Scene:
    """A table, and the time."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.table = UnknownProducers(self.clock)

    def pass_s(self, seconds: float) -> None:
        self.clock.now_s += seconds

    def takes(
        self,
        sequence: int,
        *,
        producer_id: int = 7,
        epoch: int = 0,
        source: Source = ALICE,
        is_behind_unknown: bool = False,
    ) -> bool:
        batch = ProducerBatch(NAME, producer_id, epoch, sequence)
        return self.table.may_take(batch, source, is_behind_unknown=is_behind_unknown)


def test_a_later_batch_is_taken_once_no_gateway_can_have_an_earlier_one() -> None:
    scene = Scene()
    assert scene.takes(0)
    assert not scene.takes(3)
    scene.pass_s(UNKNOWN_SECONDS - 1)
    assert not scene.takes(4)
    assert not scene.takes(3, epoch=1), "of another epoch nothing is known"
    scene.pass_s(1)
    assert scene.takes(3)
    assert len(scene.table) == 1
    assert not scene.takes(3), "it is remembered no longer"


def test_the_batches_that_were_refused_are_taken_in_their_order() -> None:
    """The time ends between two batches that are on their way together."""
    scene = Scene()
    assert not scene.takes(5)
    scene.pass_s(1)
    assert not scene.takes(3), "it comes from the former gateway"
    scene.pass_s(UNKNOWN_SECONDS - 1)
    assert not scene.takes(4)
    assert not scene.takes(5)
    assert scene.takes(3)


def test_a_producer_is_the_same_whichever_way_its_batches_come() -> None:
    scene = Scene()
    assert not scene.takes(5, source=GATEWAY)
    scene.pass_s(UNKNOWN_SECONDS)
    assert not scene.takes(6, source=ALICE)
    assert scene.takes(5, source=ALICE)


def test_a_producer_whose_sequences_begin_again_goes_on_in_its_order() -> None:
    scene = Scene()
    assert not scene.takes(SEQUENCE_MASK)
    scene.pass_s(UNKNOWN_SECONDS)
    assert not scene.takes(1)
    assert scene.takes(SEQUENCE_MASK)


def test_a_producer_behind_a_loss_waits_longer_and_not_for_later_losses() -> None:
    scene = Scene()
    seconds = 0
    while not scene.takes(5, is_behind_unknown=True):  # Others lose batches all the time.
        scene.pass_s(1)
        seconds += 1
        assert seconds <= MISSED_SECONDS, "it is kept out for ever"
    assert seconds == MISSED_SECONDS
    assert not scene.takes(5, producer_id=8, is_behind_unknown=True)
    scene.pass_s(UNKNOWN_SECONDS)
    assert scene.takes(5, producer_id=8), "the loss is forgotten"


def test_old_and_too_many_producers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_producers, "PRODUCERS_MAX", 3)
    scene = Scene()
    for producer_id in range(9):
        assert not scene.takes(1, producer_id=producer_id)
    assert len(scene.table) == 3
    scene.pass_s(FORGOTTEN_SECONDS)
    assert not scene.takes(1, producer_id=8)
    assert len(scene.table) == 1


@pytest.mark.parametrize(
    ("honest", "inventor"),
    [
        (ALICE, MALLORY),
        (ALICE, OTHER_HOST),
        (ALICE, GATEWAY),
        (GATEWAY, MALLORY),
        (GATEWAY, OTHER_TOPIC),
    ],
    ids=["principal", "host", "gateway", "client", "topic"],
)
def test_who_names_ever_new_producers_pushes_out_only_its_own(
    monkeypatch: pytest.MonkeyPatch, honest: Source, inventor: Source
) -> None:
    monkeypatch.setattr(unknown_producers, "PRODUCERS_MAX", 10)
    scene = Scene()
    for producer_id in range(4):
        assert not scene.takes(5, producer_id=producer_id, source=honest)
    for producer_id in range(1_000, 2_000):
        scene.pass_s(UNKNOWN_SECONDS / 1_000)
        assert not scene.takes(5, producer_id=producer_id, source=inventor)
    scene.pass_s(1)
    assert len(scene.table) == 10
    assert all(scene.takes(5, producer_id=producer_id, source=honest) for producer_id in range(4))


def test_who_names_a_producer_of_another_does_not_get_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the inventor's own room would push out what it has named last."""
    monkeypatch.setattr(unknown_producers, "PRODUCERS_MAX", 10)
    scene = Scene()
    assert not scene.takes(5)
    assert not scene.takes(6, source=MALLORY)
    for producer_id in range(1_000, 1_100):
        assert not scene.takes(5, producer_id=producer_id, source=MALLORY)
    scene.pass_s(UNKNOWN_SECONDS)
    assert scene.takes(5)


def test_the_source_of_a_client_is_its_principal_and_host() -> None:
    session = a_session()
    session.become(Principal("User", "alice"))
    assert client_source(session) == ClientSource(Principal("User", "alice"), session.client_host)

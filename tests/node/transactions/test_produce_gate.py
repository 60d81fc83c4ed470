"""What a transactional Produce request waits for, on a real log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.errors import InvalidProducerIdMapping, TidelogError
from tidelog_core.log.values import AppendOrigin
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import parse_header
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)
from tidelog_node.replicas.replica import Replica
from tidelog_node.transactions.produce_gate import ProduceGate
from tidelog_node.wire.produce import ProduceRequest

from tests.node.replication.led_node import TOPIC, LedNode, led_node
from tests.support.batches import batch_of

PRODUCER, EPOCH = 5, 3
ADDS, VERIFIES = 12, 11
PLACE = (TOPIC.encode(), 0)


class Coordinator:
    """Answers what it is told to, one answer a question, and does something before each."""

    def __init__(self, *answers: tuple[ErrorCode, Callable[[], object]]) -> None:
        self.answers = list(answers)
        self.questions: list[tuple[int, int, bool]] = []

    async def get(self) -> Any:
        return self

    async def ask(
        self,
        _: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        adds: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        self.questions.append((producer_id, producer_epoch, adds))
        code, act = self.answers.pop(0)
        act()
        return dict.fromkeys(partitions, code)


def nothing() -> None:
    pass


def data(*, epoch: int = EPOCH, producer_id: int = PRODUCER) -> bytes:
    return batch_of(b"v", producer=(producer_id, epoch, 0), is_transactional=True)


def request(*batches: bytes) -> ProduceRequest:
    views = [(index, memoryview(bytearray(batch))) for index, batch in enumerate(batches)]
    return ProduceRequest(b"txn", -1, 1000, [(TOPIC.encode(), [*views])])


def end_transaction(replica: Replica, *, epoch: int = EPOCH) -> None:
    """Write a marker, as the coordinator does with every end of a transaction."""
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlType.COMMIT, 0),
        producer_id=PRODUCER,
        producer_epoch=epoch,
        timestamp_ms=1,
    )
    replica.append(bytearray(marker), AppendOrigin.COORDINATOR)


@asynccontextmanager
async def led_partition(folder: Path) -> AsyncIterator[tuple[LedNode, Replica]]:
    async with led_node(folder) as node:
        yield node, await node.create_topic(replicas=(1,))


async def test_the_guard_is_taken_again_if_the_transaction_before_ends_meanwhile(
    tmp_path: Path,
) -> None:
    """Its producer was told of its next epoch as soon as the outcome was decided."""
    async with led_partition(tmp_path) as (node, replica):
        coordinator: Any = Coordinator(
            (ErrorCode.concurrent_transactions, lambda: end_transaction(replica)),
            (ErrorCode.none, nothing),
        )
        gate, asked = ProduceGate(coordinator.get), request(data())
        verified = await gate.verify(asked, node.replicas.led_by_name, version=ADDS)
        guard = verified.guard(*PLACE)
        replica.log.producers.require_verified(parse_header(data()), guard)
        assert len(coordinator.questions) == 2


@pytest.mark.parametrize("version", [ADDS, VERIFIES])
async def test_a_confirmation_that_a_marker_has_overtaken_is_asked_for_again(
    tmp_path: Path, version: int
) -> None:
    async with led_partition(tmp_path) as (node, replica):
        coordinator: Any = Coordinator(
            (ErrorCode.none, lambda: end_transaction(replica)),
            (ErrorCode.transaction_abortable, nothing),
        )
        gate, asked = ProduceGate(coordinator.get), request(data())
        verified = await gate.verify(asked, node.replicas.led_by_name, version=version)
        with pytest.raises(TidelogError) as raised:
            verified.guard(*PLACE)
        assert raised.value.code is ErrorCode.transaction_abortable


async def test_a_transaction_that_is_open_here_needs_no_question(tmp_path: Path) -> None:
    async with led_partition(tmp_path) as (node, replica):
        coordinator: Any = Coordinator((ErrorCode.none, nothing))
        gate, led = ProduceGate(coordinator.get), node.replicas.led_by_name
        assert not gate.is_free(request(data()), led, version=ADDS)
        await gate.verify(request(data()), led, version=ADDS)
        assert coordinator.questions == [(PRODUCER, EPOCH, True)]
        replica.append(bytearray(data()))
        assert gate.is_free(request(data()), led, version=ADDS)
        # But not past one that waits: its batches come first.
        _, turn = gate.take_turn(b"txn")
        assert not gate.is_free(request(data()), led, version=ADDS)
        turn.set_result(None)
        await asyncio.sleep(0)
        assert gate.is_free(request(data()), led, version=ADDS)


async def test_one_request_carries_one_producer(tmp_path: Path) -> None:
    async with led_partition(tmp_path) as (node, replica):
        del replica
        coordinator: Any = Coordinator()
        gate = ProduceGate(coordinator.get)
        asked = request(data())
        name, partitions = asked.topics[0]
        asked.topics.append((name, [(0, memoryview(bytearray(data(producer_id=6))))]))
        verified = await gate.verify(asked, node.replicas.led_by_name, version=ADDS)
        with pytest.raises(InvalidProducerIdMapping):
            verified.guard(*PLACE)
        assert (coordinator.questions, len(partitions)) == ([], 1)


CODES = {
    ErrorCode.transaction_abortable: (
        "invalid_txn_state",
        "transaction_abortable",
        "transaction_abortable",
    ),
    ErrorCode.concurrent_transactions: (*["not_enough_replicas"] * 2, "concurrent_transactions"),
    ErrorCode.not_coordinator: ("not_enough_replicas",) * 3,
    ErrorCode.request_timed_out: ("not_enough_replicas",) * 3,
    ErrorCode.invalid_producer_epoch: ("invalid_producer_epoch",) * 3,
}


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
async def test_producers_are_told_what_their_version_knows(tmp_path: Path, code: ErrorCode) -> None:
    async with led_partition(tmp_path) as (node, replica):
        del replica
        for version, expected in zip((10, VERIFIES, ADDS), CODES[code], strict=True):
            coordinator: Any = Coordinator(*[(code, nothing)] * 20)
            gate = ProduceGate(coordinator.get)
            verified = await gate.verify(
                request(data()), node.replicas.led_by_name, version=version
            )
            with pytest.raises(TidelogError) as raised:
                verified.guard(*PLACE)
            assert raised.value.code.name == expected

"""Holds a transactional Produce request until its transaction is verified.

A batch whose transaction is open in its partition's log passes at once. The first batch of
a transaction waits until the coordinator has verified the partition or added it to the
transaction. Requests of one transactional id pass in the order of arrival, so that the sequences
of its batches stay in order.
Source: KIP-890; ``ReplicaManager.handleProduceAppend`` of Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog_core.errors import (
    CorruptRecordBatch,
    ErrorCode,
    InvalidProducerIdMapping,
    InvalidTxnState,
    TidelogError,
    UnsupportedMagic,
)
from tidelog_core.log.producers.verification import VerificationGuard
from tidelog_core.records.batch import HEADER_SIZE, BatchHeader, parse_header

from tidelog_node.replicas.replica import Replica
from tidelog_node.transactions.retries import Retries
from tidelog_node.wire.produce import ProduceRequest

if TYPE_CHECKING:
    from tidelog_node.transactions.verifier import TransactionVerifier

ADDS_FROM = 12  # from this Produce version on the leader adds partitions
KNOWS_ABORTABLE_FROM = 11

Led = Mapping[bytes, Mapping[int, Replica]]
Turn = asyncio.Future[None]
Place = tuple[bytes, int]  # a partition, with the topic name's bytes of the request


class NotVerified(TidelogError):
    """The coordinator did not confirm that the batch belongs to an open transaction."""

    def __init__(self, code: ErrorCode, problem: str) -> None:
        super().__init__(problem)
        self.code = code  # type: ignore[misc]


@dataclass(slots=True)
class Verified:
    """The results of verifying a request's batches."""

    guards: dict[Place, VerificationGuard] = field(default_factory=dict)
    refusals: dict[Place, TidelogError] = field(default_factory=dict)
    # The producer's last transaction was being ended, or its marker came during the question: the
    # next attempt may have another result.
    is_overtaken: bool = False

    def guard(self, topic: bytes, partition: int) -> VerificationGuard | None:
        """Return the guard for the append of the partition's batch. Raises its refusal."""
        refusal = self.refusals.get((topic, partition))
        if refusal is not None:
            raise refusal
        return self.guards.get((topic, partition))


@dataclass(frozen=True, slots=True)
class _Question:
    place: Place
    replica: Replica
    header: BatchHeader
    guard: VerificationGuard

    def holds(self) -> bool:
        """Whether no marker has arrived since the guard was taken."""
        try:
            self.replica.log.producers.require_verified(self.header, self.guard)
        except InvalidTxnState:
            return False
        except (OSError, TidelogError):
            pass  # The append raises the same error, with a better message.
        return True


class ProduceGate:
    """Verifies the transactional requests of a node. For its event loop only."""

    def __init__(self, get_verifier: Callable[[], Awaitable[TransactionVerifier]]) -> None:
        self._get_verifier = get_verifier  # it may be made only when it is first needed
        self._turns: dict[bytes, Turn] = {}  # the last request in line, by id

    def is_free(self, request: ProduceRequest, led: Led, *, version: int) -> bool:
        """Whether the request can be appended at once, without a question or a turn to wait for."""
        transactional_id = request.transactional_id
        assert transactional_id is not None
        return transactional_id not in self._turns and not _questions(request, led, version=version)

    def take_turn(self, transactional_id: bytes) -> tuple[Turn | None, Turn]:
        """Return the turn to wait for, if any, and the request's own, which its result ends."""
        before = self._turns.get(transactional_id)
        own: Turn = asyncio.get_running_loop().create_future()
        self._turns[transactional_id] = own

        def on_done(_: object) -> None:
            if self._turns.get(transactional_id) is own:
                del self._turns[transactional_id]

        own.add_done_callback(on_done)
        return before, own

    async def verify(self, request: ProduceRequest, led: Led, *, version: int) -> Verified:
        """Return the guards to append with, and the refusals."""
        retries = Retries()
        while True:
            verified = await self._verify_once(request, led, version=version)
            if not verified.is_overtaken or not await retries.wait():
                return verified

    async def _verify_once(self, request: ProduceRequest, led: Led, *, version: int) -> Verified:
        assert request.transactional_id is not None
        verified = Verified()
        questions = _questions(request, led, version=version)
        producers = {(q.header.producer_id, q.header.producer_epoch) for q in questions}
        if len(producers) > 1:
            error = InvalidProducerIdMapping("one request carries batches of several producers")
            verified.refusals = {question.place: error for question in questions}
            return verified
        for producer_id, epoch in producers:
            verifier = await self._get_verifier()
            codes = await verifier.ask(
                request.transactional_id.decode(errors="replace"),
                producer_id,
                epoch,
                [question.replica.partition for question in questions],
                adds=version >= ADDS_FROM,
            )
            for question in questions:
                self._take(verified, question, codes[question.replica.partition], version)
        return verified

    def _take(self, verified: Verified, question: _Question, code: ErrorCode, version: int) -> None:
        if code is ErrorCode.none:
            verified.guards[question.place] = question.guard
            verified.is_overtaken |= not question.holds()
            return
        verified.is_overtaken |= code is ErrorCode.concurrent_transactions
        verified.refusals[question.place] = NotVerified(
            _for_producer(code, version),
            f"{question.replica.partition} is not part of an open transaction",
        )


def _questions(request: ProduceRequest, led: Led, *, version: int) -> list[_Question]:
    """Return the transactional batches that must be verified first."""
    questions = []
    for name, partitions in request.topics:
        replicas = led.get(name, {})
        for index, records in partitions:
            replica = replicas.get(index)
            if replica is None or records is None or len(records) < HEADER_SIZE:
                continue
            try:
                header = parse_header(records)
                if not header.is_transactional:
                    continue
                guard = replica.log.producers.begin_verification(
                    header, bumps_epoch=version >= ADDS_FROM
                )
            except (CorruptRecordBatch, UnsupportedMagic, OSError, TidelogError):
                continue  # The append raises the same error, with a better message.
            if guard is not None:
                questions.append(_Question((name, index), replica, header, guard))
    return questions


def _for_producer(code: ErrorCode, version: int) -> ErrorCode:
    """Return the code on which a producer of this Produce version reacts correctly."""
    match code:
        case ErrorCode.transaction_abortable if version < KNOWS_ABORTABLE_FROM:
            return ErrorCode.invalid_txn_state
        case ErrorCode.concurrent_transactions if version >= ADDS_FROM:
            return code
        case (
            ErrorCode.concurrent_transactions
            | ErrorCode.network_exception
            | ErrorCode.request_timed_out
            | ErrorCode.coordinator_load_in_progress
            | ErrorCode.coordinator_not_available
            | ErrorCode.not_coordinator
        ):
            # Older producers retry on this, without looking for another leader.
            return ErrorCode.not_enough_replicas
        case _:
            return code

"""Dimensions of producers in a partition's log: idempotent ones, and open transactions."""

from __future__ import annotations

from kio.schema.add_partitions_to_txn.v3 import request as add_partitions
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4 import request as init_producer_id
from tidelog_core.wire_messages import build

from bench.peers.topics import PRODUCE, check_produced
from bench.scaling.cluster import HOT, Cluster
from bench.scaling.workload import RECORD
from tests.support.batches import batch_of
from tests.support.wire_client import WireClient, frame, milliseconds, produce_body

PRODUCER_ID_FIRST = 1_000_000
TRANSACTION_MS = 900_000  # transaction.max.timeout.ms: none ends during the measurement
_AT_ONCE = 50
_RETRIED = {ErrorCode.concurrent_transactions, ErrorCode.not_coordinator}


class IdempotentProducers:
    """Producer ids with one batch each in the hot partition."""

    def __init__(self) -> None:
        self._count = 0

    def grow(self, cluster: Cluster, count: int) -> None:
        """Produce for the missing producers."""
        with cluster.client(cluster.await_record()) as client:
            for start in range(self._count, count, _AT_ONCE):
                numbers = range(start, min(start + _AT_ONCE, count))
                client.send(b"".join(_first_batch(PRODUCER_ID_FIRST + n) for n in numbers))
                for _ in numbers:
                    check_produced(client.receive(), HOT)
        self._count = count

    def close(self) -> None:
        """Nothing to release."""


class OpenTransactions:
    """Unfinished transactions with one batch each in the hot partition."""

    def __init__(self) -> None:
        self._count = 0

    def grow(self, cluster: Cluster, count: int) -> None:
        """Begin the missing transactions."""
        cluster.await_coordinator("t-0", is_transactional=True)
        with cluster.client(cluster.await_record()) as client:
            for number in range(self._count, count):
                _begin(client, f"t-{number}")
        self._count = count

    def close(self) -> None:
        """Nothing to release."""


def _first_batch(producer_id: int) -> bytes:
    """Return the request with a producer's first batch."""
    batch = batch_of(RECORD, producer=(producer_id, 0, 0))
    return frame(*PRODUCE, 1, produce_body(HOT, batch, acks=-1), tags=b"")


def _begin(client: WireClient, transactional_id: str) -> None:
    """Write a batch in a transaction of a new producer."""
    asked = build(
        init_producer_id.InitProducerIdRequest,
        transactional_id=transactional_id,
        transaction_timeout=milliseconds(TRANSACTION_MS),
        producer_id=-1,
        producer_epoch=-1,
    )
    while (producer := client.call(asked)).error_code in _RETRIED:
        pass
    _require_none(producer.error_code, "a producer was not made")
    topic = build(add_partitions.AddPartitionsToTxnTopic, name=HOT, partitions=(0,))
    added = client.call(
        build(
            add_partitions.AddPartitionsToTxnRequest,
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=(topic,),
        )
    )
    [result] = added.results_by_topic_v3_and_below[0].results_by_partition
    _require_none(result.partition_error_code, "a partition was not added")
    batch = batch_of(
        RECORD,
        producer=(producer.producer_id, producer.producer_epoch, 0),
        is_transactional=True,
    )
    body = _transactional_body(transactional_id, batch)
    client.send(frame(*PRODUCE, 1, body, tags=b""))
    check_produced(client.receive(), HOT)


def _transactional_body(transactional_id: str, batch: bytes) -> bytes:
    """Return a Produce request's body with this transactional id instead of null."""
    body = produce_body(HOT, batch, acks=-1)
    name = transactional_id.encode()
    return len(name).to_bytes(2, "big") + name + body[2:]


def _require_none(code: ErrorCode, words: str) -> None:
    if code is not ErrorCode.none:
        raise RuntimeError(f"{words}: {code!r}")

"""Produce: append each partition's batch where it lies, answer what became of it.

The answer goes out from the call itself unless the topic wants the log flushed first
(``flush.messages``). With ``acks=0`` there is no answer: an error closes the connection,
which is how such a producer learns that it must look for the leader again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from tidelog_core.errors import (
    CorruptRecordBatch,
    ErrorCode,
    InvalidRecord,
    InvalidTopic,
    InvalidTxnState,
    NotEnoughReplicas,
    StorageError,
    TidelogError,
    UnsupportedCompression,
)
from tidelog_core.log.values import AppendInfo
from tidelog_node.connection import CloseConnection, Reply
from tidelog_node.dispatch import HotRoute
from tidelog_node.flushing import Flusher
from tidelog_node.replicas import Replica, ReplicaManager
from tidelog_node.wire import produce
from tidelog_node.wire.produce import (
    Endpoint,
    ProduceRequest,
    ProduceResult,
    encode_produce,
    parse_produce,
)

logger = logging.getLogger(__name__)

ACKS_ALL = -1
# Kafka 4 no longer serves versions 0 to 2 but still lists them: librdkafka before 2.8
# compresses only for brokers that do. Source: KAFKA-18659.
ADVERTISED_MIN_VERSION = 0
ZSTD_FROM = 7
LEADER_FROM = 10
ERROR_MESSAGE_LENGTH_MAX = 1000
_NONE: Mapping[int, Replica] = {}
_MAGIC_AT, _ATTRIBUTES_AT = 16, 22  # within a batch
_BATCH_OVERHEAD = 17  # base offset, length, leader epoch, magic
_ZSTD, _TRANSACTIONAL_BIT = 4, 0x10

Topics = list[tuple[bytes, list[ProduceResult]]]


class ProduceHandler:
    """Serves Produce on the partitions that this node leads."""

    def __init__(self, *, replicas: ReplicaManager, flusher: Flusher) -> None:
        self._replicas = replicas
        self._flusher = flusher

    def hot_route(self) -> HotRoute:
        """Return the route."""
        return HotRoute(
            api_key=produce.API_KEY,
            min_version=produce.VERSION_MIN,
            max_version=produce.VERSION_MAX,
            flexible_from=produce.FLEXIBLE_FROM,
            handle=self.handle,
            advertised_min_version=ADVERTISED_MIN_VERSION,
        )

    def handle(
        self, frame: memoryview, position: int, version: int, correlation_id: int
    ) -> Reply | asyncio.Future[Reply] | None:
        """Append what the request holds and return the answer. Raises ``CloseConnection``."""
        request = parse_produce(frame, position, version)
        acks = request.acks
        if not ACKS_ALL <= acks <= 1:
            topics = _same_error(request, ErrorCode.invalid_required_acks)
            return [encode_produce(version, correlation_id, topics)]
        has_ids = version >= produce.TOPIC_ID_FROM
        led_by = self._replicas.led_by_id if has_ids else self._replicas.led_by_name
        topics = []
        failures: list[tuple[bytes, int, TidelogError]] = []
        flushes: list[asyncio.Future[None]] = []
        for name, partitions in request.topics:
            led = led_by.get(name, _NONE)
            results: list[ProduceResult] = []
            for index, records in partitions:
                replica = led.get(index)
                try:
                    if replica is None:
                        raise self._refusal(name, index, has_ids=has_ids)
                    info = _append(replica, records, acks, version)
                except TidelogError as error:
                    failures.append((name, index, error))
                    results.append(_failed(index, replica, error))
                    continue
                results.append(
                    ProduceResult(
                        index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset
                    )
                )
                if replica.has_flush_policy:
                    flushes += self._flusher.appended(replica)
            topics.append((name, results))
        if failures:
            return self._answer_failures(version, correlation_id, acks, topics, failures, flushes)
        if flushes:
            return self._answer_flushed(version, correlation_id, acks, topics, flushes)
        return [encode_produce(version, correlation_id, topics)] if acks else None

    def _answer_flushed(
        self,
        version: int,
        correlation_id: int,
        acks: int,
        topics: Topics,
        flushes: list[asyncio.Future[None]],
        endpoints: list[Endpoint] | None = None,
    ) -> asyncio.Future[Reply] | None:
        """Answer once the flushes are done; their errors become the partitions' own."""
        if not acks:
            return None
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def finish(done: asyncio.Future[list[BaseException | None]]) -> None:
            if answer.done():
                return
            problem = next((result for result in done.result() if result is not None), None)
            if problem is None:
                answer.set_result([encode_produce(version, correlation_id, topics, endpoints or ())])
            else:
                answer.set_exception(CloseConnection(f"flush failed: {problem}"))

        asyncio.gather(*flushes, return_exceptions=True).add_done_callback(finish)
        return answer

    def _answer_failures(
        self,
        version: int,
        correlation_id: int,
        acks: int,
        topics: Topics,
        failures: list[tuple[bytes, int, TidelogError]],
        flushes: list[asyncio.Future[None]],
    ) -> Reply | asyncio.Future[Reply] | None:
        if not acks:
            _, index, error = failures[0]
            raise CloseConnection(
                f"produce with acks=0 failed on partition {index}: {error}", is_expected=True
            )
        endpoints: list[Endpoint] = []
        if version >= LEADER_FROM:
            topics, endpoints = self._add_leaders(topics, has_ids=version >= produce.TOPIC_ID_FROM)
        if flushes:
            return self._answer_flushed(
                version, correlation_id, acks, topics, flushes, endpoints
            )
        return [encode_produce(version, correlation_id, topics, endpoints)]

    def _add_leaders(self, topics: Topics, *, has_ids: bool) -> tuple[Topics, list[Endpoint]]:
        """Return the results with the current leader where another node leads (KIP-951)."""
        leaders = self._replicas.leaders
        endpoints: dict[int, Endpoint] = {}
        with_leaders: Topics = []
        for name, results in topics:
            found: list[ProduceResult] = []
            for result in results:
                if result.error_code == ErrorCode.not_leader_or_follower:
                    leader = leaders.find(name, result.partition, is_id=has_ids)
                    if leader is not None:
                        result = result._replace(  # noqa: PLW2901
                            leader_id=leader.leader_id, leader_epoch=leader.leader_epoch
                        )
                        if leader.endpoint is not None:
                            endpoints[leader.leader_id] = leader.endpoint
                found.append(result)
            with_leaders.append((name, found))
        return with_leaders, list(endpoints.values())

    def _refusal(self, name: bytes, index: int, *, has_ids: bool) -> TidelogError:
        return self._replicas.leaders.refusal(name, index, is_id=has_ids)


def _append(
    replica: Replica, records: memoryview | None, acks: int, version: int
) -> AppendInfo:
    batch = _require_one_batch(records, version)
    if replica.is_internal:
        raise InvalidTopic(f"{replica.partition.topic} is not for clients to write")
    if acks == ACKS_ALL and replica.isr_size < replica.config.min_insync_replicas:
        raise NotEnoughReplicas(
            f"{replica.isr_size} replicas of {replica.partition} are in sync, "
            f"{replica.config.min_insync_replicas} are required"
        )
    try:
        return replica.append(batch)
    except OSError as error:
        logger.exception("append failed", extra={"partition": str(replica.partition)})
        raise StorageError(f"{replica.partition} could not be written: {error}") from error


def _require_one_batch(records: memoryview | None, version: int) -> memoryview:
    """Return the records if they are one batch that this version of Produce may carry.

    Source: Kafka's ``ProduceRequest.validateRecords``.
    """
    size_bytes = 0 if records is None else len(records)
    if records is None or size_bytes < _BATCH_OVERHEAD:
        raise InvalidRecord("no record batch in the request")
    batch_size_bytes = 12 + int.from_bytes(records[8:12], signed=True)
    if batch_size_bytes != size_bytes:
        _refuse_size(batch_size_bytes, size_bytes)
    if records[_MAGIC_AT] != 2:
        raise InvalidRecord(f"record batches of magic {records[_MAGIC_AT]} are not accepted, only 2")
    attributes = records[_ATTRIBUTES_AT]
    if attributes & 0x7 == _ZSTD and version < ZSTD_FROM:
        raise UnsupportedCompression(f"Produce version {version} may not carry zstd, 7 and up may")
    if attributes & _TRANSACTIONAL_BIT:
        raise InvalidTxnState("the batch belongs to no transaction that this cluster knows of")
    return records


def _refuse_size(batch_size_bytes: int, size_bytes: int) -> None:
    if batch_size_bytes < _BATCH_OVERHEAD + 9:
        raise CorruptRecordBatch(f"a record batch claims to be {batch_size_bytes} bytes long")
    if batch_size_bytes > size_bytes:
        raise InvalidRecord("the record batch is cut short")
    raise InvalidRecord("a request may carry one record batch for a partition, not several")


def _failed(index: int, replica: Replica | None, error: TidelogError) -> ProduceResult:
    log = None if replica is None else replica.opened_log
    return ProduceResult(
        index,
        error.code,
        log_start_offset=-1 if log is None else log.log_start_offset,
        error_message=str(error)[:ERROR_MESSAGE_LENGTH_MAX].encode(),
    )


def _same_error(request: ProduceRequest, code: ErrorCode) -> Topics:
    return [
        (name, [ProduceResult(index, code) for index, _ in partitions])
        for name, partitions in request.topics
    ]

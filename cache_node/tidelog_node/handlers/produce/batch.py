"""One batch of a Produce request: its checks and its append.

Only the header is read here. The records are checked by the log, or were inspected before
(``inspection``).
"""

from __future__ import annotations

import logging
import struct

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import (
    CorruptRecordBatch,
    InvalidRecord,
    InvalidTopic,
    StorageError,
    TidelogError,
    TransactionalIdAuthorizationFailed,
    UnsupportedCompression,
)
from tidelog_core.log.append_checks import CheckedBatches
from tidelog_core.log.producers.verification import VerificationGuard
from tidelog_core.log.values import AppendInfo
from tidelog_core.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, parse_header

from tidelog_node.diskless.gateway.broken_producers import ProducerBatch, producer_batch
from tidelog_node.handlers.produce.inspection import InspectionResults
from tidelog_node.inspection.inspector import NotInspected
from tidelog_node.replicas.replica import Replica
from tidelog_node.wire.primitives import INT32
from tidelog_node.wire.produce import ProduceRequest

logger = logging.getLogger(__name__)

ACKS_ALL = -1
ZSTD_FROM = 7
_BATCH_HEAD = struct.Struct(">i4xb4xh")  # from byte 8: length, magic, attributes
_BATCH_OVERHEAD = 17  # base offset, length, leader epoch, magic: common to all formats
_LEGACY_BATCH_SIZE_MIN = 26  # base offset, length and the shortest valid message
_CODEC_MASK, _ZSTD, _TRANSACTIONAL_BIT = 0x7, 0x4, 0x10


class NotOneBatch(InvalidRecord):
    """The request's records are not a single batch; the log was not called."""


class CodecTooNew(UnsupportedCompression):
    """The request's version has no such codec; the log was not called."""


def append_batch(  # noqa: PLR0917
    replica: Replica,
    records: memoryview | None,
    request: ProduceRequest,
    version: int,
    guard: VerificationGuard | None,
    known: tuple[InspectionResults, int] | None,
    *,
    checked: CheckedBatches | None = None,
) -> AppendInfo:
    """Append one batch of a request to a led replica. Raises the errors of ``Replica.append``.

    ``checked`` is the result of an earlier check of the batch.
    """
    batch = require_batch(records, request, version, known)
    attributes = _BATCH_HEAD.unpack_from(batch, 8)[2]
    if replica.checks_schemas:
        _require_schemas(known)
    if replica.is_internal:
        raise InvalidTopic(f"{replica.partition.topic} is not for clients to write")
    if replica.role is not None:
        replica.role.require_appendable(needs_all=request.acks == ACKS_ALL)
    try:
        if attributes & _TRANSACTIONAL_BIT:
            replica.log.producers.require_verified(parse_header(batch), guard)
        if known is None or not replica.inspects_records:
            return replica.append(batch, checked=checked)
        inspected, place = known
        return replica.append(batch, checked=inspected.checked(place, batch, replica.config))
    except OSError as error:
        logger.exception("append failed", extra={"partition": str(replica.partition)})
        raise StorageError(f"{replica.partition} could not be written: {error}") from error


def require_batch(
    records: memoryview | None,
    request: ProduceRequest,
    version: int,
    known: tuple[InspectionResults, int] | None,
) -> memoryview:
    """Return the records if they are one batch that the request may carry.

    Source: ``ProduceRequest.validateRecords`` of Kafka.
    """
    if records is None or len(records) < HEADER_SIZE:
        raise _refuse_short(records)
    size_bytes, magic, attributes = _BATCH_HEAD.unpack_from(records, 8)
    if size_bytes + 12 != len(records) or magic != MAGIC:
        if known is not None and (refusal := known[0].refusal(known[1])) is not None:
            raise refusal  # Only the header of a refused batch was kept.
        raise _refuse_shape(size_bytes + 12, len(records), magic)
    if attributes & (_TRANSACTIONAL_BIT | _ZSTD):
        _require_allowed(attributes, request, version)
    return records


def idempotent_batch(where: PartitionName, records: memoryview | None) -> ProducerBatch | None:
    """Return which batch of an idempotent producer the records are, ``None`` for others.

    It is none if ``require_batch`` would refuse the records.
    """
    if records is None or len(records) < HEADER_SIZE:
        return None
    size_bytes, magic, _ = _BATCH_HEAD.unpack_from(records, 8)
    if size_bytes + LOG_OVERHEAD != len(records) or magic != MAGIC:
        return None
    return producer_batch(where, parse_header(records))


def _require_schemas(known: tuple[InspectionResults, int] | None) -> None:
    if known is None:
        raise NotInspected("the topic has begun to ask for schemas")
    known[0].require_schemas(known[1])


def _refuse_short(records: memoryview | None) -> TidelogError:
    if records is None or len(records) < LOG_OVERHEAD:
        return NotOneBatch("no record batch in the request")
    (size_bytes,) = INT32.unpack_from(records, 8)
    magic = records[16] if len(records) >= _BATCH_OVERHEAD else MAGIC
    return _refuse_shape(size_bytes + LOG_OVERHEAD, len(records), magic)


def _refuse_shape(batch_size_bytes: int, size_bytes: int, magic: int) -> TidelogError:
    if batch_size_bytes < _LEGACY_BATCH_SIZE_MIN:
        return CorruptRecordBatch(f"a record batch claims to be {batch_size_bytes} bytes long")
    if not 0 <= magic <= MAGIC:
        return CorruptRecordBatch(f"magic {magic} is no format of records, the newest is {MAGIC}")
    if batch_size_bytes > size_bytes:
        return NotOneBatch("the record batch is cut short")
    if magic != MAGIC:
        return NotOneBatch(f"record batches of magic {magic} are not accepted, only {MAGIC}")
    if batch_size_bytes < HEADER_SIZE:
        return CorruptRecordBatch(f"a record batch claims to be {batch_size_bytes} bytes long")
    return NotOneBatch("a request may carry one record batch for a partition, not several")


def _require_allowed(attributes: int, request: ProduceRequest, version: int) -> None:
    if attributes & _CODEC_MASK == _ZSTD and version < ZSTD_FROM:
        raise CodecTooNew(f"Produce version {version} may not carry zstd, 7 and up may")
    if attributes & _TRANSACTIONAL_BIT and request.transactional_id is None:
        raise TransactionalIdAuthorizationFailed(
            "a transactional batch came in a request without a transactional id"
        )

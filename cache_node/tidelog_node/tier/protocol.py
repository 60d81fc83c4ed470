"""The messages between a node and its tier worker, over a Unix socket.

A message is its size (4 bytes, big-endian) and that many bytes of JSON. The node sends numbered
requests; the worker answers each once, in any order:

    {"id": 7, "op": "read", ...}   ->   {"id": 7, "result": {...}}
                                   or   {"id": 7, "error": {"kind": "...", ...}}

Before the answer it may send an event, which says how far the request is:

                                        {"id": 7, "event": {...}}

Bytes of an object follow their message as they are: it has their number as ``bytes``. Ranges of
tiered segments are not sent. The worker names a file in its cache folder, and the node opens it.
Ranges for followers are not sent either: they are written into memory that both processes map.
Node and worker are of one version (``worker_version``), so messages have none. ``PROTOCOL`` there
is raised with every change of a message.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any
from uuid import UUID

from tidelog_core.errors import (
    CorruptObject,
    CorruptRecordBatch,
    InvalidObjectKey,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StorageError,
    StoreUnavailable,
    TidelogError,
    TierUnavailable,
    WrongObjectStore,
)
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.tier.index_build import SegmentSource
from tidelog_core.tier.keys import SegmentKeys

from tidelog_node.tier.wal_messages import (
    WalBuildFailed,
    WalBuildPutRequest,
    WalBuildRequest,
    WalDropRequest,
    WalFull,
    WalIndexRequest,
    WalNotBuilt,
    WalPutRequest,
    WalRequest,
    WalStoreRequest,
    wal_request_from_fields,
    wal_request_to_fields,
)

MESSAGE_SIZE_BYTES_MAX = 64 << 20  # a segment can have many aborted transactions
RANGES_MAX = 256
NICENESS = 5  # of a worker: when processors are scarce the node runs first; see nice(2)

_SIZE = Struct(">I")
# ``json.dumps`` would make an encoder for each message, ``json.loads`` guess its encoding.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode

Fields = dict[str, Any]
OnEvent = Callable[[Fields], None]  # called with the event of a request


class ProtocolError(Exception):
    """The peer sent something other than a message; the connection is closed."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``[start, end)`` of an object."""

    key: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Fetch ``wanted`` into the cache and answer; then fetch ``ahead`` in the background."""

    wanted: ByteRange
    ahead: tuple[ByteRange, ...] = ()


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """Build the segment's index object and store both objects, the log first."""

    source: SegmentSource
    keys: SegmentKeys
    kms_key_id: str  # that both are encrypted with; empty: none


@dataclass(frozen=True, slots=True)
class UploadResult:
    """Both objects are durable."""

    index_size_bytes: int
    chained_hash: bytes
    max_timestamp_ms: int
    # The bucket's time of the index object; NO_TIMESTAMP if an earlier attempt stored it, or if
    # its time cannot be read.
    stored_ms: int


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """Call a method of the object store; ``store_calls`` lists them with their arguments."""

    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """Remove the cached ranges of these objects, which have been replaced."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """Request the worker's counters."""


Request = ReadRequest | UploadRequest | StoreRequest | ForgetRequest | StatusRequest | WalRequest


async def read_message(reader: asyncio.StreamReader) -> Fields | None:
    """Return the next message, ``None`` at the end. Raises ``ProtocolError``.

    The bytes that follow it are its ``data``.
    """
    try:
        size = _SIZE.unpack(await reader.readexactly(_SIZE.size))[0]
        if size > MESSAGE_SIZE_BYTES_MAX:
            raise ProtocolError(f"a message of {size} bytes, the limit is {MESSAGE_SIZE_BYTES_MAX}")
        fields = _decode((await reader.readexactly(size)).decode())
        if not isinstance(fields, dict) or not isinstance(fields.get("id"), int):
            raise ProtocolError("not a message")
        if "bytes" in fields:
            fields["data"] = await reader.readexactly(_data_size(fields["bytes"]))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except ValueError as error:
        raise ProtocolError(f"not JSON: {error}") from None
    return fields


def encode_message(fields: Mapping[str, object], data: bytes | None = None) -> bytes:
    """Return the bytes of a message. Raises ``ProtocolError`` if it would be too large."""
    if data is not None:
        fields = {**fields, "bytes": _data_size(len(data))}
    message = _encode(fields).encode()
    if len(message) > MESSAGE_SIZE_BYTES_MAX:
        raise ProtocolError(
            f"a message of {len(message)} bytes, the limit is {MESSAGE_SIZE_BYTES_MAX}"
        )
    return b"".join([_SIZE.pack(len(message)), message, data or b""])


def _data_size(size: object) -> int:
    if not isinstance(size, int) or not 0 <= size <= MESSAGE_SIZE_BYTES_MAX:
        raise ProtocolError(f"{size!r} bytes of data, the limit is {MESSAGE_SIZE_BYTES_MAX}")
    return size


def request_to_fields(request: Request) -> Fields:
    """Return the request as JSON values, without its number."""
    match request:
        case ReadRequest(wanted, ahead):
            return {
                "op": "read",
                "wanted": _pack_range(wanted),
                "ahead": [*map(_pack_range, ahead)],
            }
        case UploadRequest(source, keys, kms_key_id):
            return {
                "op": "upload",
                "log_key": keys.log,
                "index_key": keys.index,
                "kms_key_id": kms_key_id,
                "source": _pack_source(source),
            }
        case StoreRequest(method, arguments):
            return {"op": "store", "method": method, "arguments": list(arguments)}
        case ForgetRequest(keys):
            return {"op": "forget", "keys": list(keys)}
        case StatusRequest():
            return {"op": "status"}
        case (
            WalBuildRequest()
            | WalBuildPutRequest()
            | WalStoreRequest()
            | WalPutRequest()
            | WalDropRequest()
            | WalIndexRequest()
        ):
            return wal_request_to_fields(request)


def request_from_fields(fields: Fields) -> Request:
    """Return the request. Raises ``ProtocolError``."""
    try:
        match fields["op"]:
            case "read":
                ahead = tuple(map(_unpack_range, fields["ahead"][:RANGES_MAX]))
                return ReadRequest(_unpack_range(fields["wanted"]), ahead)
            case "upload":
                keys = SegmentKeys(log=fields["log_key"], index=fields["index_key"])
                source = _unpack_source(fields["source"])
                return UploadRequest(source, keys, fields["kms_key_id"])
            case "store":
                return StoreRequest(fields["method"], tuple(fields["arguments"]))
            case "forget":
                return ForgetRequest(tuple(fields["keys"]))
            case "status":
                return StatusRequest()
            case op if str(op).startswith("wal-"):
                return wal_request_from_fields(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a request that is not whole: {error!r}") from None
    raise ProtocolError(f"an unknown request: {fields['op']!r}")


def upload_result_to_fields(result: UploadResult) -> Fields:
    """Return the result as JSON values."""
    return {
        "index_size_bytes": result.index_size_bytes,
        "chained_hash": result.chained_hash.hex(),
        "max_timestamp_ms": result.max_timestamp_ms,
        "stored_ms": result.stored_ms,
    }


def upload_result_from_fields(fields: Fields) -> UploadResult:
    """Return the result."""
    return UploadResult(
        index_size_bytes=fields["index_size_bytes"],
        chained_hash=bytes.fromhex(fields["chained_hash"]),
        max_timestamp_ms=fields["max_timestamp_ms"],
        stored_ms=fields["stored_ms"],
    )


_PLAIN_ERRORS: Mapping[str, type[TidelogError]] = {
    error.__name__: error
    for error in (
        CorruptRecordBatch,
        OutcomeUnknown,
        StorageError,
        StoreUnavailable,
        TierUnavailable,
        WalBuildFailed,
        WalFull,
        WalNotBuilt,
        WrongObjectStore,
    )
}


def error_to_fields(error: TidelogError) -> Fields:
    """Return the error as JSON values, for ``error_from_fields``."""
    fields: Fields = {"kind": type(error).__name__, "message": str(error)}
    if isinstance(error, ObjectNotFound | ObjectExists | CorruptObject | InvalidObjectKey):
        fields["key"] = error.key
    if isinstance(error, CorruptObject | InvalidObjectKey):
        fields["problem"] = error.problem
    return fields


def error_from_fields(fields: Fields) -> TidelogError:
    """Return the error; a ``StorageError`` if its class is unknown."""
    match fields["kind"]:
        case "ObjectNotFound":
            return ObjectNotFound(fields["key"])
        case "ObjectExists":
            return ObjectExists(fields["key"])
        case "CorruptObject":
            return CorruptObject(fields["key"], fields["problem"])
        case "InvalidObjectKey":
            return InvalidObjectKey(fields["key"], fields["problem"])
        case kind if kind in _PLAIN_ERRORS:
            return _PLAIN_ERRORS[kind](fields["message"])
        case kind:
            return StorageError(f"{kind}: {fields['message']}")


def _pack_range(range_: ByteRange) -> list[object]:
    return [range_.key, range_.start, range_.end]


def _unpack_range(packed: list[Any]) -> ByteRange:
    key, start, end = packed
    return ByteRange(str(key), int(start), int(end))


def _pack_source(source: SegmentSource) -> Fields:
    return {
        "topic_id": str(source.topic_id),
        "partition": source.partition,
        "segment_id": str(source.segment_id),
        "leader_epoch": source.leader_epoch,
        "base_offset": source.base_offset,
        "end_offset": source.end_offset,
        "size_bytes": source.size_bytes,
        "path": str(source.path),
        "offset_index": str(source.offset_index),
        "time_index": str(source.time_index),
        "producer_snapshot": str(source.producer_snapshot),
        "leader_epochs": [list(pair) for pair in source.leader_epochs],
        "aborted": [
            [t.producer_id, t.first_offset, t.last_offset, t.last_stable_offset]
            for t in source.aborted
        ],
        "previous_hash": source.previous_hash.hex(),
        "key_filter_records_max": source.key_filter_records_max,
    }


def _unpack_source(fields: Fields) -> SegmentSource:
    return SegmentSource(
        topic_id=UUID(fields["topic_id"]),
        partition=fields["partition"],
        segment_id=UUID(fields["segment_id"]),
        leader_epoch=fields["leader_epoch"],
        base_offset=fields["base_offset"],
        end_offset=fields["end_offset"],
        size_bytes=fields["size_bytes"],
        path=Path(fields["path"]),
        offset_index=Path(fields["offset_index"]),
        time_index=Path(fields["time_index"]),
        producer_snapshot=Path(fields["producer_snapshot"]),
        leader_epochs=tuple((epoch, offset) for epoch, offset in fields["leader_epochs"]),
        aborted=tuple(AbortedTransaction(*row) for row in fields["aborted"]),
        previous_hash=bytes.fromhex(fields["previous_hash"]),
        key_filter_records_max=fields["key_filter_records_max"],
    )

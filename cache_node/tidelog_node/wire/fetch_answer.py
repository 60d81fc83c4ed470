"""Fetch responses, versions 4 to 18; records are sent as slices of log files.

A response is a list of segments in sending order: encoded bytes, and file slices that
the connection sends with ``sendfile`` without reading them.

    response  throttle ms:32, 7+ error:16, session id:32,
              [topic, [partition:32, error:16, high watermark:64, last stable offset:64,
              5+ log start offset:64, [aborted producer id:64, first offset:64],
              11+ preferred replica:32, records, 12+ tag 0: diverging epoch, tag 1: leader]],
              16+ tag 0: endpoints of those leaders

Source: FetchResponse.json; KIP-74, KIP-227, KIP-320, KIP-482, KIP-516, KIP-595, KIP-951.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from tidelog_core.fetch_epochs import NO_SESSION
from tidelog_core.model import FileSlice

from tidelog_node.answers import Reply
from tidelog_node.wire.fetch import (
    FLEXIBLE_FROM,
    SESSIONS_FROM,
    write_count,
    write_topic_head,
)
from tidelog_node.wire.primitives import INT32, write_uvarint
from tidelog_node.wire.produce import Endpoint, write_endpoints_tag

# Below this many bytes one pread and a gathered send are cheaper than a separate sendfile call.
SENDFILE_BYTES_MIN = 65_536
LEADERS_FROM = 16

_RESULT_V4 = struct.Struct(">ihqq")
_RESULT_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_EPOCH_OFFSET = struct.Struct(">iq")
_LEADER = struct.Struct(">ii")
_SIZE_CORRELATION = struct.Struct(">ii")
_TOP = struct.Struct(">ihi")  # throttle, error, session id
# A result without records and optional fields. If a request names many partitions, nearly all
# results are like this.
_EMPTY_V11 = struct.Struct(">ihqqqiii")  # aborted transactions, preferred replica, records
_EMPTY_V12 = struct.Struct(">ihqqqBiBB")  # and tagged fields
_NULL_ARRAY = b"\xff\xff\xff\xff"


class FetchResult(NamedTuple):
    """The result for one partition."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: FileSlice | None = None  # ``None`` is «no records»
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset)
    diverging: tuple[int, int] | None = None  # (epoch, end offset)
    leader_id: int = -1  # -1 omits the current leader
    leader_epoch: int = -1
    preferred_replica: int = -1  # the replica that the consumer should read from; -1: this one


def _is_empty(result: FetchResult) -> bool:
    """Return whether a result has no records and no optional fields."""
    return (
        result[5] is None
        and result[6] is None
        and result[7] is None
        and result[8] < 0
        and result[10] < 0
    )


class FetchAnswer:
    """Builds a response as a list of segments in sending order.

    ``write_topic_count`` comes first. A topic is written whole, by ``write_topic``, or in pieces,
    by ``write`` and ``write_result``: then the caller encodes the topic's head and end.
    """

    __slots__ = ("_closed_size_bytes", "_is_flexible", "_out", "_segments", "_version")

    def __init__(
        self,
        version: int,
        *,
        error_code: int = 0,
        session_id: int = NO_SESSION,
        throttle_ms: int = 0,
    ) -> None:
        self._version = version
        self._is_flexible = version >= FLEXIBLE_FROM
        self._out = bytearray(9 if self._is_flexible else 8)  # ``finish`` sets the first 8
        if version >= SESSIONS_FROM:
            self._out += _TOP.pack(throttle_ms, error_code, session_id)
        else:
            self._out += INT32.pack(throttle_ms)
        self._segments: list[bytes | bytearray | FileSlice] = [self._out]
        self._closed_size_bytes = 0  # of all segments but the last, to which bytes are appended

    @property
    def size_bytes(self) -> int:
        """The size of the response so far, file slices included."""
        return self._closed_size_bytes + len(self._out)

    def written_since(self, size_bytes: int) -> bytes:
        """Return the bytes written since the size was ``size_bytes``: no records are among them."""
        return bytes(self._out[size_bytes - self._closed_size_bytes :])

    def write(self, data: bytes | bytearray) -> None:
        """Append encoded bytes."""
        self._out += data

    def write_topic_count(self, count: int) -> None:
        """Append the number of topics."""
        write_count(self._out, self._version, count)

    def write_topic(self, name: bytes, results: Sequence[FetchResult]) -> None:
        """Append a whole topic. Raises ``OSError``."""
        write_topic_head(self._out, self._version, name, len(results))
        for result in results:
            self.write_result(result)
        if self._is_flexible:
            self._out.append(0)

    def write_result(self, result: FetchResult) -> None:
        """Append a partition. Records below ``SENDFILE_BYTES_MIN`` are read. Raises ``OSError``."""
        version, out = self._version, self._out
        if version >= 11 and _is_empty(result):
            index, code, high_watermark, stable, start = result[:5]
            if self._is_flexible:
                out += _EMPTY_V12.pack(index, code, high_watermark, stable, start, 0, -1, 1, 0)
            else:
                out += _EMPTY_V11.pack(index, code, high_watermark, stable, start, -1, -1, 0)
        elif self._is_flexible:
            self._write_flexible(result)
        else:
            self._write_plain(result)

    def _write_plain(self, result: FetchResult) -> None:
        version, out = self._version, self._out
        if version >= 5:
            out += _RESULT_V5.pack(*result[:5])
        else:
            out += _RESULT_V4.pack(*result[:4])
        if result.aborted is None:
            out += _NULL_ARRAY
        else:
            out += INT32.pack(len(result.aborted))
            for producer_id, first_offset in result.aborted:
                out += _ABORTED.pack(producer_id, first_offset)
        if version >= 11:
            out += INT32.pack(result.preferred_replica)
        records = result.records
        if records is None:
            out += b"\x00\x00\x00\x00"
        else:
            out += INT32.pack(records.size_bytes)
            self._send(records)

    def _write_flexible(self, result: FetchResult) -> None:
        out = self._out
        out += _RESULT_V5.pack(*result[:5])
        if result.aborted is None:
            out.append(0)
        else:
            write_uvarint(out, len(result.aborted) + 1)
            for producer_id, first_offset in result.aborted:
                out += _ABORTED.pack(producer_id, first_offset)
                out.append(0)
        out += INT32.pack(result.preferred_replica)
        records = result.records
        if records is None:
            out.append(1)
        else:
            write_uvarint(out, records.size_bytes + 1)
            self._send(records)
        _write_partition_tags(self._out, result)

    def _send(self, records: FileSlice) -> None:
        self._segments.append(slice_segment(records))
        self._closed_size_bytes += len(self._out) + records.size_bytes
        self._out = bytearray()
        self._segments.append(self._out)

    def finish(self, correlation_id: int, endpoints: Sequence[Endpoint] = ()) -> Reply:
        """Return the whole response, with its size and header."""
        if self._is_flexible:
            if self._version >= LEADERS_FROM and endpoints:
                write_endpoints_tag(self._out, endpoints)
            else:
                self._out.append(0)
        segments = self._segments
        size_bytes = self.size_bytes
        if not self._out:
            segments.pop()  # nothing followed the last slice
        head = segments[0]
        assert isinstance(head, bytearray)
        _SIZE_CORRELATION.pack_into(head, 0, size_bytes - 4, correlation_id)
        return segments


def encode_fetch(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[FetchResult]]],
    *,
    error_code: int = 0,
    session_id: int = NO_SESSION,
    endpoints: Sequence[Endpoint] = (),
    throttle_ms: int = 0,
) -> Reply:
    """Return the whole response in segments, with its size and header.

    Reads slices below ``SENDFILE_BYTES_MIN`` from their files. Raises ``OSError``.
    """
    answer = FetchAnswer(
        version, error_code=error_code, session_id=session_id, throttle_ms=throttle_ms
    )
    answer.write_topic_count(len(topics))
    for name, results in topics:
        answer.write_topic(name, results)
    return answer.finish(correlation_id, endpoints)


def fetch_size_bytes(reply: Reply, version: int) -> int:
    """Return the size of a response with records, without its size field and tags of its header.

    So Kafka counts it for quotas. Source: ``FetchResponse.sizeOf``.
    """
    size_bytes = -4 - (version >= FLEXIBLE_FROM)
    for part in reply:
        size_bytes += part.size_bytes if isinstance(part, FileSlice) else len(part)
    return size_bytes


def set_throttle_time(reply: Reply, version: int, throttle_ms: int) -> Reply:
    """Return the response with this throttle time."""
    head = reply[0]
    assert isinstance(head, bytearray)
    INT32.pack_into(head, 8 + (version >= FLEXIBLE_FROM), throttle_ms)  # behind the header
    return reply


def encode_result(version: int, result: FetchResult) -> bytes:
    """Return the encoded result of a partition without records."""
    answer = FetchAnswer(version)
    size_bytes = answer.size_bytes
    answer.write_result(result)
    return answer.written_since(size_bytes)


def _write_partition_tags(out: bytearray, result: FetchResult) -> None:
    if result.diverging is None and result.leader_id < 0:
        out.append(0)
        return
    out.append((result.diverging is not None) + (result.leader_id >= 0))
    if result.diverging is not None:
        out += b"\x00\x0d"  # tag 0, 13 bytes
        out += _EPOCH_OFFSET.pack(*result.diverging)
        out.append(0)
    if result.leader_id >= 0:
        out += b"\x01\x09"  # tag 1, 9 bytes
        out += _LEADER.pack(result.leader_id, result.leader_epoch)
        out.append(0)


def slice_segment(records: FileSlice) -> bytes | FileSlice:
    """Return the slice, or its bytes if below ``SENDFILE_BYTES_MIN``. Raises ``OSError``."""
    if records.size_bytes >= SENDFILE_BYTES_MIN:
        return records
    data = os.pread(records.file.fileno(), records.size_bytes, records.position)
    if len(data) != records.size_bytes:
        raise OSError(f"{records.file.path} ends before byte {records.position + len(data)}")
    return data

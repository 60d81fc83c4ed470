"""GatewayAppend, versions 0 and 1: a gateway names slices of its chain, their leader appends them.

An API of Tidelog's own, which ApiVersions does not show and only nodes may send. Big-endian, behind
the usual headers without tagged fields:

    request   chain id:16 bytes, committed end of the chain:64, sequence of the object:64,
              number of slices:32, and of each slice
                  topic id:16 bytes, partition:32, position:u32, size:u32, CRC-32C:u32,
                  version of Produce:8, acks:8, timeout ms:32,
                  size of the transactional id:16 (-1: none), transactional id,
                  from version 1 on: the batch's header from its CRC on, 44 bytes
    answer    of each slice, in their order: error:16, base offset:64, is it referred to:8

A slice is the one batch that a client has sent, with base offset 0 and leader epoch -1. Its records
do not cross zones by this: the leader reads them from the gateway's object. With the header it may
give the batch its offsets before it has read it. The slices of a request must not overlap, and are
bounded together: else a small request would make a leader read the same bytes again and again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from tidelog_core.model import NO_LEADER_EPOCH
from tidelog_core.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, Buffer

from tidelog_node.wire.primitives import ELEMENTS_UNBOUNDED, MalformedRequest, spend

API_KEY = 20_005  # far from Kafka's
VERSION_MAX = HEADERS_FROM = 1
REQUESTS_MAX = 1_000  # of one gateway without an answer: a leader closes the connection
SLICES_MAX = 1_000  # in a request: no node allows fewer elements
# Of all slices of a request, unless it has one alone: a gateway's object has no more.
BYTES_MAX = 8 << 20
TRANSACTIONAL_ID_BYTES_MAX = 4_096
_REQUEST_HEAD = struct.Struct(">ihhih")  # size, key, version, correlation id, no client id
_ANSWER_HEAD = struct.Struct(">ii")  # size, correlation id
_OBJECT = struct.Struct(">16sqqi")
HEADER_REST_SIZE = 44
_REST_AT = HEADER_SIZE - HEADER_REST_SIZE
_BATCH_START = struct.Struct(">qiib")  # base offset, length, leader epoch, magic
_SLICE = struct.Struct(">16siIIIbbih")
_RESULT = struct.Struct(">hq?")


class GatewaySlice(NamedTuple):
    """A slice of a gateway's object, and the Produce request that has brought it."""

    topic_id: UUID
    partition: int
    position: int
    size_bytes: int
    crc32c: int
    produce_version: int
    acks: int
    timeout_ms: int
    transactional_id: bytes | None
    header_rest: bytes | None = None  # ``None``: version 0

    def batch_of_zeros(self) -> bytearray:
        """Return the batch with zeros for its records. ``header_rest`` must be there."""
        assert self.header_rest is not None
        batch = bytearray(self.size_bytes)
        length = self.size_bytes - LOG_OVERHEAD
        _BATCH_START.pack_into(batch, 0, 0, length, NO_LEADER_EPOCH, MAGIC)
        batch[_REST_AT:HEADER_SIZE] = self.header_rest
        return batch


def header_rest(batch: Buffer) -> bytes:
    """Return the part of a batch's header that its size does not determine."""
    return bytes(memoryview(batch)[_REST_AT:HEADER_SIZE])


class GatewayAppend(NamedTuple):
    """A request: slices of one committed object that one leader shall append in this order."""

    chain_id: UUID
    committed_end: int
    sequence: int
    slices: Sequence[GatewaySlice]

    @property
    def element_count(self) -> int:
        """The number of slices."""
        return len(self.slices)

    @property
    def has_headers(self) -> bool:
        """Whether the slices have the headers of their batches: all have, or none."""
        return self.slices[0].header_rest is not None


class GatewayResult(NamedTuple):
    """The outcome of a slice."""

    error_code: int
    base_offset: int  # -1: none
    is_referenced: bool  # false of a duplicate, which has the offsets of the first one


def encode_request(
    request: GatewayAppend, correlation_id: int, *, version_max: int = VERSION_MAX
) -> bytes:
    """Return the request, with its size; without headers for a leader of an older version."""
    version = min(version_max, HEADERS_FROM if request.has_headers else 0)
    parts = [
        _OBJECT.pack(
            request.chain_id.bytes, request.committed_end, request.sequence, len(request.slices)
        )
    ]
    for one in request.slices:
        name = one.transactional_id
        parts.append(_SLICE.pack(one.topic_id.bytes, *one[1:8], -1 if name is None else len(name)))
        if name:
            parts.append(name)
        if version >= HEADERS_FROM and one.header_rest is not None:
            parts.append(one.header_rest)
    body = b"".join(parts)
    return _REQUEST_HEAD.pack(10 + len(body), API_KEY, version, correlation_id, -1) + body


def parse_request(
    frame: memoryview, position: int, version: int, elements_max: int = ELEMENTS_UNBOUNDED
) -> GatewayAppend:
    """Return the request whose body begins at ``position``.

    Raises ``MalformedRequest``, ``struct.error`` and ``TooManyElements``.
    """
    chain_id, committed_end, sequence, count = _OBJECT.unpack_from(frame, position)
    position += _OBJECT.size
    if not 0 < count <= SLICES_MAX:
        raise MalformedRequest(f"{count} slices, allowed are 1 to {SLICES_MAX}")
    spend(elements_max, count)
    if not 0 <= sequence < committed_end:
        raise MalformedRequest(f"object {sequence} of a chain committed up to {committed_end}")
    slices: list[GatewaySlice] = []
    for _ in range(count):
        fields = _SLICE.unpack_from(frame, position)
        name_size = fields[-1]
        position += _SLICE.size
        name: bytes | None = None
        if name_size >= 0:
            name = bytes(frame[position : position + name_size])
            position += name_size
            if name_size > TRANSACTIONAL_ID_BYTES_MAX or position > len(frame):
                raise MalformedRequest("a transactional id does not fit its request")
        rest: bytes | None = None
        if version >= HEADERS_FROM:
            rest = bytes(frame[position : position + HEADER_REST_SIZE])
            position += HEADER_REST_SIZE
            if len(rest) < HEADER_REST_SIZE or fields[3] < HEADER_SIZE:
                raise MalformedRequest("a slice is smaller than the header of a batch")
        slices.append(GatewaySlice._make((UUID(bytes=fields[0]), *fields[1:-1], name, rest)))
    if position != len(frame):
        raise MalformedRequest(f"{len(frame) - position} bytes behind the last slice")
    _require_bounded(slices)
    return GatewayAppend(UUID(bytes=chain_id), committed_end, sequence, slices)


def _require_bounded(slices: Sequence[GatewaySlice]) -> None:
    """Raise ``MalformedRequest`` if slices are empty, overlap, or are too large together."""
    size_bytes = end = 0
    for one in sorted(slices, key=lambda one: one.position):
        if not one.size_bytes or one.position < end:
            raise MalformedRequest(f"a slice at {one.position} is empty or overlaps another one")
        end = one.position + one.size_bytes
        size_bytes += one.size_bytes
    if size_bytes > BYTES_MAX and len(slices) > 1:
        raise MalformedRequest(f"slices of {size_bytes} bytes, allowed are {BYTES_MAX}")


def encode_answer(correlation_id: int, results: Iterable[GatewayResult]) -> list[bytes]:
    """Return the answer, with its size."""
    body = b"".join(_RESULT.pack(*result) for result in results)
    return [_ANSWER_HEAD.pack(4 + len(body), correlation_id), body]


def parse_answer(answer: memoryview, count: int) -> list[GatewayResult]:
    """Return the results in an answer without size and header. Raises ``ValueError``."""
    if len(answer) != count * _RESULT.size:
        raise ValueError(f"{len(answer)} bytes of results of {count} slices")
    return [GatewayResult(*fields) for fields in _RESULT.iter_unpack(answer)]

"""Messages between node and worker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tidelog_core.errors import (
    CorruptObject,
    CorruptRecordBatch,
    InvalidObjectKey,
    ObjectExists,
    ObjectNotFound,
    OffsetOutOfRange,
    OutcomeUnknown,
    StorageError,
    StoreUnavailable,
    TidelogError,
    TierUnavailable,
    WrongObjectStore,
)
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.tier.keys import SegmentKeys
from tidelog_node.tier.protocol import (
    ByteRange,
    ForgetRequest,
    ProtocolError,
    ReadRequest,
    Request,
    StatusRequest,
    StoreRequest,
    UploadRequest,
    UploadResult,
    encode_message,
    error_from_fields,
    error_to_fields,
    read_message,
    request_from_fields,
    request_to_fields,
    upload_result_from_fields,
    upload_result_to_fields,
)

from tests.support.tier_segments import numbered_batch, write_source


def through_json(fields: dict[str, object]) -> dict[str, object]:
    found = json.loads(json.dumps(fields))
    assert isinstance(found, dict)
    return found


def test_every_request_comes_back_as_it_was(tmp_path: Path) -> None:
    source = write_source(
        tmp_path,
        [numbered_batch(0)],
        base_offset=0,
        end_offset=10,
        aborted=(AbortedTransaction(1, 2, 3, 4),),
    )
    requests: list[Request] = [
        ReadRequest(ByteRange("k", 1, 2), (ByteRange("l", 3, 4), ByteRange("m", 5, 6))),
        UploadRequest(source, SegmentKeys(log="a", index="b"), "alias/c"),
        ForgetRequest(("a", "b")),
        StoreRequest("get-range", ("k", 1, 2)),
        StatusRequest(),
    ]
    for request in requests:
        assert request_from_fields(through_json(request_to_fields(request))) == request
    result = UploadResult(5, b"\x01\x02", 7, 9)
    assert upload_result_from_fields(through_json(upload_result_to_fields(result))) == result


@pytest.mark.parametrize(
    "error",
    [
        ObjectNotFound("k"),
        ObjectExists("k"),
        CorruptObject("k", "why"),
        InvalidObjectKey("k", "why"),
        CorruptRecordBatch("why"),
        OutcomeUnknown("why"),
        StorageError("why"),
        StoreUnavailable("why"),
        TierUnavailable("why"),
        WrongObjectStore("why"),
    ],
)
def test_every_error_comes_back_as_it_was(error: TidelogError) -> None:
    found = error_from_fields(through_json(error_to_fields(error)))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_an_error_that_nobody_expects_is_a_storage_error() -> None:
    fields = error_to_fields(OffsetOutOfRange("p", 1, start=2, end=3))
    assert isinstance(error_from_fields(fields), StorageError)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"op": "dance"},
        {"op": "read"},
        {"op": "read", "wanted": ["k", 1], "ahead": []},
        {"op": "upload", "log_key": "a", "index_key": "b", "source": {}},
        {"op": "store", "method": "head"},
    ],
)
def test_what_is_no_request_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        request_from_fields(fields)


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff", b"\0\0\0\x01x", b"\0\0\0\x02[]", b"\0\0\0\x02{}"]
)
async def test_what_is_no_message_is_refused(data: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    with pytest.raises(ProtocolError):
        await read_message(reader)


async def test_bytes_follow_their_message_as_they_are() -> None:
    reader = asyncio.StreamReader()
    for number, data in enumerate((b"\0\xff{}", b"", b"x" * 300_000)):
        reader.feed_data(encode_message({"id": number}, data))
    reader.feed_data(encode_message({"id": 9}, b"cut short")[:-1])
    reader.feed_eof()
    for number, data in enumerate((b"\0\xff{}", b"", b"x" * 300_000)):
        assert await read_message(reader) == {"id": number, "bytes": len(data), "data": data}
    assert await read_message(reader) is None


@pytest.mark.parametrize("size", [-1, "7", None, 2**40])
async def test_a_number_of_bytes_that_cannot_be_is_refused(size: object) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(encode_message({"id": 1, "bytes": size}))
    with pytest.raises(ProtocolError, match="bytes of data"):
        await read_message(reader)


async def test_messages_come_back_one_by_one_until_the_end() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(encode_message({"id": 1}) + encode_message({"id": 2, "x": "y"}))
    reader.feed_data(b"\0\0")
    reader.feed_eof()
    assert await read_message(reader) == {"id": 1}
    assert await read_message(reader) == {"id": 2, "x": "y"}
    assert await read_message(reader) is None

"""Objects in chunks, as a server of S3 gets them: one body, with its length, hash and checksum."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256

import pytest
from tidelog_core.errors import OutcomeUnknown
from tidelog_core.objects.payload import Chunks
from tidelog_core.objects.s3 import S3ObjectStore

from tests.support.waiting import eventually_async

# The check value of CRC-64/NVME. Source: NVM Express NVM command set specification.
CHECK_BYTES, CHECK_CRC64NVME = b"123456789", "ae8b14860a799888"
LARGE_BYTES = 3 << 20  # more than a socket takes at once


class RecordingS3:
    """Keeps what each PUT sends. It answers once ``may_answer`` is set, and reads after that."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.statuses: list[int] = []  # of the next answers; 200 after those
        self.put_count = 0  # whose header has come
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.put_count += 1
                await self.may_answer.wait()
                fields = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:-2]]
                headers = {name.lower(): value for name, value in fields}
                body = await reader.readexactly(int(headers["content-length"]))
                self.received.append((headers, body))
                status = self.statuses.pop(0) if self.statuses else 200
                writer.write(
                    f'HTTP/1.1 {status} X\r\netag: "x"\r\ncontent-length: 0\r\n\r\n'.encode()
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def s3(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RecordingS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    served = RecordingS3()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        served.may_answer.set()
        server.close()


def store_of(s3: RecordingS3) -> S3ObjectStore:
    return S3ObjectStore("b", endpoint=f"http://127.0.0.1:{s3.port}", region="us-east-1")


def parts_of(data: bytes) -> Sequence[bytes | memoryview]:
    """Return the bytes in chunks of several kinds, one of them empty."""
    return [data[:1], memoryview(data)[1:4], b"", memoryview(data)[4:]]


async def test_the_hash_in_the_signature_and_the_checksum_are_those_of_all_chunks_together(
    s3: RecordingS3,
) -> None:
    data = bytes(range(256)) * 4_096
    await store_of(s3).put_once("a", Chunks(parts_of(data)), timeout_s=60.0)
    [(headers, body)] = s3.received
    assert body == data
    assert "transfer-encoding" not in headers
    assert headers["if-none-match"] == "*"
    assert headers["x-amz-content-sha256"] == sha256(data).hexdigest()
    assert b64decode(headers["x-amz-checksum-sha256"]) == sha256(data).digest()


async def test_the_crc_of_an_unsigned_body_is_that_of_all_chunks_together(
    s3: RecordingS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", "crc64nvme")
    monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", "true")
    await store_of(s3).put_once("a", Chunks(parts_of(CHECK_BYTES)), timeout_s=60.0)
    [(headers, body)] = s3.received
    assert body == CHECK_BYTES
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert b64decode(headers["x-amz-checksum-crc64nvme"]).hex() == CHECK_CRC64NVME


async def test_every_put_of_the_same_chunks_sends_the_same_bytes(s3: RecordingS3) -> None:
    data = bytes(range(256)) * (LARGE_BYTES // 256)
    chunks, store = Chunks(parts_of(data)), store_of(s3)
    s3.statuses = [500]
    with pytest.raises(OutcomeUnknown):
        await store.put_once("a", chunks, timeout_s=60.0)
    assert len(s3.received) == 1  # The client repeats nothing by itself.
    await asyncio.gather(*(store.put_once("a", chunks, timeout_s=60.0) for _ in range(2)))
    assert [body == data for _, body in s3.received] == [True, True, True]


async def test_a_put_that_is_given_up_lets_go_of_its_chunks(s3: RecordingS3) -> None:
    s3.may_answer.clear()
    memory, store = bytearray(LARGE_BYTES), store_of(s3)
    put = asyncio.create_task(
        store.put_once("a", Chunks([b"head", memoryview(memory)]), timeout_s=60.0)
    )
    await eventually_async(lambda: s3.put_count == 1)
    assert not is_let_go(memory)
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    del put
    await eventually_async(lambda: is_let_go(memory))


def is_let_go(memory: bytearray) -> bool:
    """Return whether nothing refers to the memory any more: only then it can grow."""
    try:
        memory.append(0)
    except BufferError:
        return False
    return True

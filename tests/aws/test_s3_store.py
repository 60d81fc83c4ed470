"""The S3 store keeps the contract against a real S3 server."""

from __future__ import annotations

import http.server
import logging
import os
import threading
import uuid
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError
from tidelog_core.errors import ObjectExists, ObjectNotFound, OutcomeUnknown, StoreUnavailable
from tidelog_core.objects import s3_listing
from tidelog_core.objects.one_attempt import put_once
from tidelog_core.objects.payload import Chunks
from tidelog_core.objects.s3 import S3ObjectStore
from tidelog_core.objects.store import ObjectStore

from tests.aws.buckets import REGION, make_bucket
from tests.aws.s3_contract import BUCKET, S3Contract

# The check value of CRC-64/NVME. Source: NVM Express NVM command set specification.
CHECK_BYTES, CHECK_CRC64NVME = b"123456789", "ae8b14860a799888"


@pytest.fixture
def s3_endpoint(ministack_endpoint: str, aws_credentials: None) -> str:
    make_bucket(ministack_endpoint, BUCKET)
    return ministack_endpoint


class TestS3ObjectStore(S3Contract):
    @pytest.fixture(autouse=True)
    def _fresh(self, s3_endpoint: str) -> None:
        self.endpoint, self.prefix = s3_endpoint, uuid.uuid4().hex

    def open_store(self) -> ObjectStore:
        return S3ObjectStore(BUCKET, prefix=self.prefix, endpoint=self.endpoint)


class TestS3ObjectStoreInParts(S3Contract):
    """The same with every object above the multipart threshold."""

    @pytest.fixture(autouse=True)
    def _fresh(self, s3_endpoint: str) -> None:
        self.endpoint, self.prefix = s3_endpoint, uuid.uuid4().hex

    def open_store(self) -> ObjectStore:
        return S3ObjectStore(
            BUCKET,
            prefix=self.prefix,
            endpoint=self.endpoint,
            multipart_threshold=0,
            part_size_bytes=5 << 20,
        )


async def test_a_large_file_goes_up_in_parts(s3_endpoint: str, tmp_path: Path) -> None:
    path = tmp_path / "large"
    data = os.urandom(12_000_000)
    path.write_bytes(data)
    store = S3ObjectStore(
        BUCKET,
        prefix=uuid.uuid4().hex,
        endpoint=s3_endpoint,
        multipart_threshold=6 << 20,
        part_size_bytes=5 << 20,
    )
    await store.put_file("large", path)
    assert await store.get_range("large", 5_000_000, 11_000_000) == data[5_000_000:11_000_000]
    assert (await store.head("large")).size_bytes == len(data)
    with pytest.raises(ObjectExists):
        await store.put_file("large", path)


async def test_a_locked_bucket_takes_objects_for_they_have_checksums(s3_endpoint: str) -> None:
    """S3 refuses an upload without one to a bucket with Object Lock. Source: S3 API, PutObject."""
    bucket = f"locked-{uuid.uuid4().hex}"
    s3 = boto3.client("s3", endpoint_url=s3_endpoint, region_name=REGION)
    s3.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    retention = {"Mode": "GOVERNANCE", "Days": 1}
    lock = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": retention}}
    s3.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=lock)
    store = S3ObjectStore(bucket, endpoint=s3_endpoint)
    await store.put("created", b"x")
    await store.replace("replaced", b"y")
    for key, data in (("created", b"x"), ("replaced", b"y")):
        found = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        assert b64decode(found["ChecksumSHA256"]) == sha256(data).digest()
    await store.delete(["created"])
    with pytest.raises(ObjectNotFound):
        await store.get("created")
    versions = s3.list_object_versions(Bucket=bucket, Prefix="created")["Versions"]
    assert len(versions) == 1
    with pytest.raises(ClientError, match="AccessDenied"):
        s3.delete_object(Bucket=bucket, Key="created", VersionId=versions[0]["VersionId"])
    s3.close()


async def test_uploads_as_to_s3_itself_are_checked_and_not_signed_with_their_bytes(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A locked bucket takes them too, and the objects that are replaced."""
    monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", "crc64nvme")
    monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", "true")
    bucket = f"locked-{uuid.uuid4().hex}"
    s3 = boto3.client("s3", endpoint_url=s3_endpoint, region_name=REGION)
    s3.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    retention = {"Mode": "GOVERNANCE", "Days": 1}
    lock = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": retention}}
    s3.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=lock)
    store = S3ObjectStore(bucket, endpoint=s3_endpoint)
    await store.put("created", CHECK_BYTES)
    await put_once(store, "once", CHECK_BYTES, timeout_s=30.0)
    parts = [memoryview(CHECK_BYTES)[:1], CHECK_BYTES[1:4], b"", CHECK_BYTES[4:]]
    await put_once(store, "chunked", Chunks(parts), timeout_s=30.0)
    await store.replace("replaced", CHECK_BYTES)
    for key in ("created", "once", "chunked", "replaced"):
        found = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        assert b64decode(found["ChecksumCRC64NVME"]).hex() == CHECK_CRC64NVME
        assert "ChecksumSHA256" not in found
        assert await store.get(key) == CHECK_BYTES
    with pytest.raises(ObjectExists):
        await store.put("created", b"other")
    s3.close()


async def test_a_listing_of_many_pages_is_whole(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_listing, "PAGE_SIZE_MAX", 3)

    store = S3ObjectStore(BUCKET, prefix=uuid.uuid4().hex, endpoint=s3_endpoint)
    keys = [f"a/{number:02d}" for number in range(10)]
    for key in keys:
        await store.put(key, b"1")
    assert [m.key async for m in store.list("")] == keys
    assert [m.key async for m in store.list("a/", start_after="a/03")] == keys[4:]
    assert [m.key async for m in store.list("a/", start_after="a/09")] == []


async def test_two_prefixes_do_not_see_each_other(s3_endpoint: str) -> None:
    name = uuid.uuid4().hex
    one = S3ObjectStore(BUCKET, prefix=name, endpoint=s3_endpoint)
    two = S3ObjectStore(BUCKET, prefix=f"{name}-two/", endpoint=s3_endpoint)
    await one.put("a", b"1")
    await two.put("a", b"2")
    assert [m.key async for m in one.list("")] == ["a"]
    assert await two.get("a") == b"2"


async def test_a_missing_bucket_is_not_a_missing_object(s3_endpoint: str) -> None:
    store = S3ObjectStore("no-such-bucket-here", endpoint=s3_endpoint)
    with pytest.raises(StoreUnavailable):
        await store.get("a")
    with pytest.raises(StoreUnavailable):
        await store.put("a", b"1")


class FlakyServer(http.server.BaseHTTPRequestHandler):
    """Answers each PUT with the next of ``answers``; 0 drops the connection unanswered."""

    answers: list[int]
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status = self.answers.pop(0)
        if status == 0:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("etag", '"x"')
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Stay silent."""


@pytest.fixture
def flaky(aws_credentials: None) -> Iterator[tuple[S3ObjectStore, list[int]]]:
    answers: list[int] = []
    handler = type("Handler", (FlakyServer,), {"answers": answers})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield S3ObjectStore("bucket", endpoint=f"http://127.0.0.1:{server.server_port}"), answers
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("trouble", [0, 500, 503, 409])
async def test_a_failed_put_is_tried_again(
    flaky: tuple[S3ObjectStore, list[int]], trouble: int
) -> None:
    store, answers = flaky
    answers += [trouble, trouble, 200]
    await store.put("a", b"1")
    assert answers == []


async def test_already_there_after_a_lost_reply_is_of_unknown_outcome(
    flaky: tuple[S3ObjectStore, list[int]],
) -> None:
    store, answers = flaky
    answers += [0, 412]
    with pytest.raises(OutcomeUnknown):
        await store.put("a", b"1")
    answers += [412]
    with pytest.raises(ObjectExists):
        await store.put("a", b"1")


async def test_lasting_trouble_is_reported_after_bounded_attempts(
    flaky: tuple[S3ObjectStore, list[int]],
) -> None:
    store, answers = flaky
    answers += [500] * 100
    with pytest.raises(OutcomeUnknown):
        await store.put("a", b"1")
    assert 90 <= len(answers) < 100
    answers.clear()
    answers += [403, 200]
    with pytest.raises(StoreUnavailable):
        await store.put("a", b"1")
    assert answers == [200]


async def test_an_unreachable_store_wrote_nothing(aws_credentials: None) -> None:
    store = S3ObjectStore("bucket", endpoint="http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable):
        await store.put("a", b"1")


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers every request with ``answer``, a status and S3's code, or as S3 would."""

    answer: list[tuple[int, str]]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        status, code = self.answer[0]
        body = b'<?xml version="1.0" encoding="UTF-8"?>\n'
        if status != 200:
            body += f"<Error><Code>{code}</Code><Message>This is\nwhy</Message></Error>".encode()
        elif "list-type=2" in self.path:
            body += b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
        elif self.command == "POST":
            body += b"<DeleteResult><Deleted><Key>a</Key></Deleted></DeleteResult>"
        wanted = self.headers.get("range")
        self.send_response(206 if status == 200 and wanted else status)
        if wanted:
            body = body[:1] if status == 200 else body
            self.send_header("content-range", "bytes 0-0/100")
        self.send_header("etag", '"x"')
        self.send_header("last-modified", "Sat, 21 Nov 2026 17:00:00 GMT")
        self.send_header("content-length", "0" if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_PUT = do_POST = do_HEAD = do_GET

    def log_message(self, *args: object) -> None:
        """Stay silent."""


async def listed(store: ObjectStore) -> list[str]:
    return [meta.key async for meta in store.list("")]


CALLS: dict[str, Callable[[ObjectStore], Awaitable[object]]] = {
    "get": lambda store: store.get("a"),
    "get_range": lambda store: store.get_range("a", 0, 1),
    "head": lambda store: store.head("a"),
    "put": lambda store: store.put("a", b"1"),
    "replace": lambda store: store.replace("a", b"1"),
    "delete": lambda store: store.delete(["a"]),
    "list": listed,
}


REFUSALS = [(403, "AccessDenied"), (403, "InvalidAccessKeyId"), (401, "Unauthorized")]
MISSING_BUCKET = (404, "NoSuchBucket")  # an answer that HEAD and DeleteObjects do not tell


@pytest.mark.parametrize(
    ("call", "status", "code"),
    [(call, *refusal) for call in CALLS for refusal in REFUSALS]
    + [(call, *MISSING_BUCKET) for call in CALLS if call not in {"head", "delete"}],
)
async def test_what_s3_refuses_is_an_error_in_the_log_once_with_its_reason(
    call: str,
    status: int,
    code: str,
    aws_credentials: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    said_by_s3 = {403: "Forbidden", 401: "Unauthorized"}.get(status) if call == "head" else code
    assert said_by_s3 is not None
    caplog.set_level(logging.INFO)
    answer = [(status, code)]
    handler = type("Handler", (Refusing,), {"answer": answer})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    try:
        store = S3ObjectStore("bucket", endpoint=f"http://127.0.0.1:{server.server_port}")
        for _ in range(3):
            with pytest.raises(StoreUnavailable) as raised:
                await CALLS[call](store)
            said = str(raised.value)
            assert "\n" not in said
            assert said_by_s3 in said
            assert call == "head" or "This is why" in said
        answer[0] = (200, "")
        await CALLS[call](store)
        await store.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    ours = [r for r in caplog.records if r.name.startswith("tidelog_core")]
    assert [r.levelname for r in ours] == ["ERROR", "INFO"]
    assert said_by_s3 in vars(ours[0])["reason"]

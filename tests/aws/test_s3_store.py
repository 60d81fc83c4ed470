"""The S3 store keeps the contract against a real S3 server."""

from __future__ import annotations

import asyncio
import http.server
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidelog_core.errors import ObjectExists, OutcomeUnknown, StoreUnavailable
from tidelog_core.objects.s3 import S3ObjectStore
from tidelog_core.objects.store import ObjectStore

from tests.aws.buckets import make_bucket
from tests.contracts.object_store import ObjectStoreContract

BUCKET = "tidelog-objects"


@pytest.fixture
def s3_endpoint(ministack_endpoint: str, aws_credentials: None) -> str:
    make_bucket(ministack_endpoint, BUCKET)
    return ministack_endpoint


class TestS3ObjectStore(ObjectStoreContract):
    @pytest.fixture(autouse=True)
    def _fresh(self, s3_endpoint: str) -> None:
        self.endpoint, self.prefix = s3_endpoint, uuid.uuid4().hex

    def open_store(self) -> ObjectStore:
        return S3ObjectStore(BUCKET, prefix=self.prefix, endpoint=self.endpoint)


class TestS3ObjectStoreInParts(ObjectStoreContract):
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


def test_a_large_file_goes_up_in_parts(s3_endpoint: str, tmp_path: Path) -> None:
    async def run() -> None:
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

    asyncio.run(run())


def test_two_prefixes_do_not_see_each_other(s3_endpoint: str) -> None:
    async def run() -> None:
        name = uuid.uuid4().hex
        one = S3ObjectStore(BUCKET, prefix=name, endpoint=s3_endpoint)
        two = S3ObjectStore(BUCKET, prefix=f"{name}-two/", endpoint=s3_endpoint)
        await one.put("a", b"1")
        await two.put("a", b"2")
        assert [m.key async for m in one.list("")] == ["a"]
        assert await two.get("a") == b"2"

    asyncio.run(run())


def test_a_missing_bucket_is_not_a_missing_object(s3_endpoint: str) -> None:
    async def run() -> None:
        store = S3ObjectStore("no-such-bucket-here", endpoint=s3_endpoint)
        with pytest.raises(StoreUnavailable):
            await store.get("a")
        with pytest.raises(StoreUnavailable):
            await store.put("a", b"1")

    asyncio.run(run())


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
def test_a_failed_put_is_tried_again(flaky: tuple[S3ObjectStore, list[int]], trouble: int) -> None:
    store, answers = flaky
    answers += [trouble, trouble, 200]
    asyncio.run(store.put("a", b"1"))
    assert answers == []


def test_already_there_after_a_lost_reply_is_of_unknown_outcome(
    flaky: tuple[S3ObjectStore, list[int]],
) -> None:
    store, answers = flaky
    answers += [0, 412]
    with pytest.raises(OutcomeUnknown):
        asyncio.run(store.put("a", b"1"))
    answers += [412]
    with pytest.raises(ObjectExists):
        asyncio.run(store.put("a", b"1"))


def test_lasting_trouble_is_reported_after_bounded_attempts(
    flaky: tuple[S3ObjectStore, list[int]],
) -> None:
    store, answers = flaky
    answers += [500] * 100
    with pytest.raises(OutcomeUnknown):
        asyncio.run(store.put("a", b"1"))
    assert 90 <= len(answers) < 100
    answers.clear()
    answers += [403, 200]
    with pytest.raises(StoreUnavailable):
        asyncio.run(store.put("a", b"1"))
    assert answers == [200]


def test_an_unreachable_store_wrote_nothing(aws_credentials: None) -> None:
    store = S3ObjectStore("bucket", endpoint="http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable):
        asyncio.run(store.put("a", b"1"))

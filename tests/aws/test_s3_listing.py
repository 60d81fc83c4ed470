"""One client lists a bucket, however many pages and listings there are, and it is closed."""

from __future__ import annotations

import asyncio
import gc
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import pytest
from tidelog_core.errors import StoreUnavailable
from tidelog_core.objects.s3 import S3ObjectStore

from tests.support.waiting import eventually

PAGES = 5
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>It is old.</Message></Error>"


@dataclass
class Bucket:
    """A server of listings: page n has the key ``n``. It counts connections."""

    url: str = ""
    opened: int = 0
    closed: int = 0
    expired: int = 0  # requests that it refuses for their token
    lock: threading.Lock = field(default_factory=threading.Lock)

    def page(self, number: int) -> bytes:
        is_last = number + 1 == PAGES
        return (
            "<ListBucketResult>"
            f"<IsTruncated>{'false' if is_last else 'true'}</IsTruncated>"
            f"<Contents><Key>{number}</Key><Size>1</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            f"{'' if is_last else f'<NextContinuationToken>{number + 1}</NextContinuationToken>'}"
            "</ListBucketResult>"
        ).encode()


class Listing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def setup(self) -> None:
        super().setup()
        with self.bucket.lock:
            self.bucket.opened += 1

    def finish(self) -> None:
        super().finish()
        with self.bucket.lock:
            self.bucket.closed += 1

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        with self.bucket.lock:
            is_refused = self.bucket.expired > 0
            self.bucket.expired -= is_refused
        status, body = 400, EXPIRED
        if not is_refused:
            status, body = 200, self.bucket.page(int(asked.get("continuation-token", ["0"])[0]))
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Stay silent."""


@pytest.fixture
def bucket(aws_credentials: None) -> Iterator[Bucket]:
    found = Bucket()
    handler = type("Handler", (Listing,), {"bucket": found})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def require_closed(bucket: Bucket, *, opened: int) -> None:
    eventually(lambda: bucket.closed == opened, lambda: str(bucket))
    assert bucket.opened == opened


async def keys(store: S3ObjectStore) -> list[str]:
    return [one.key async for one in store.list("")]


EVERY = [str(number) for number in range(PAGES)]


async def test_all_pages_of_all_listings_come_over_one_connection(bucket: Bucket) -> None:
    store = S3ObjectStore("bucket", endpoint=bucket.url)
    for _ in range(3):
        assert await keys(store) == EVERY
    assert (bucket.opened, bucket.closed) == (1, 0)
    await store.close()
    require_closed(bucket, opened=1)
    await store.close()
    assert await keys(store) == EVERY  # It may go on, as before.
    await store.close()
    require_closed(bucket, opened=2)


async def test_listings_at_once_leave_no_connection_behind(bucket: Bucket) -> None:
    store = S3ObjectStore("bucket", endpoint=bucket.url)
    assert await asyncio.gather(*(keys(store) for _ in range(6))) == [EVERY] * 6
    await store.close()
    require_closed(bucket, opened=bucket.opened)


async def test_a_listing_that_is_left_in_the_middle_keeps_no_client_busy(bucket: Bucket) -> None:
    store = S3ObjectStore("bucket", endpoint=bucket.url)
    async for one in store.list(""):
        assert one.key == "0"
        break
    assert await keys(store) == EVERY
    await store.close()
    require_closed(bucket, opened=1)


@pytest.mark.filterwarnings("error")
def test_a_store_that_nobody_closes_is_closed_with_its_loop(bucket: Bucket) -> None:
    """And goes on in the next one, as in a function that is invoked again."""
    store = S3ObjectStore("bucket", endpoint=bucket.url)
    for number in range(1, 4):
        assert asyncio.run(keys(store)) == EVERY
        gc.collect()
        require_closed(bucket, opened=number)


async def test_expired_credentials_are_loaded_again_once(bucket: Bucket) -> None:
    store = S3ObjectStore("bucket", endpoint=bucket.url)
    assert await keys(store) == EVERY
    bucket.expired = 1
    assert await keys(store) == EVERY
    require = bucket.opened
    assert require == 2
    bucket.expired = 2
    with pytest.raises(StoreUnavailable, match="ExpiredToken"):
        await keys(store)
    await store.close()
    require_closed(bucket, opened=bucket.opened)

"""The client of listings: closed once its calls have ended, and not under them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tidelog_core.errors import StoreUnavailable
from tidelog_core.objects import s3_listing
from tidelog_core.objects.s3_listing import S3Listing
from tidelog_core.objects.s3_refusals import Refusals

from tests.support.waiting import eventually_async

PAGE = b"""<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>
<Name>b</Name><IsTruncated>false</IsTruncated><Contents><Key>a/1</Key><Size>3</Size>
<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>"""


class SlowS3:
    """Answers every request with one page, once ``may_answer`` is set."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.request_count = 0
        self.open_count = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_count += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.request_count += 1
                await self.may_answer.wait()
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(PAGE)}\r\n\r\n"
                writer.write(head.encode() + PAGE)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open_count -= 1
            writer.close()


@pytest.fixture
async def s3(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlowS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    served = SlowS3()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        served.may_answer.set()
        server.close()


def listing_of(s3: SlowS3) -> S3Listing:
    return S3Listing(
        "b",
        endpoint=f"http://127.0.0.1:{s3.port}",
        region="us-east-1",
        read_timeout_s=60.0,
        refusals=Refusals("b"),
    )


async def listed(listing: S3Listing) -> list[str]:
    return [one.path async for page in listing.pages("a/", start_after="") for one in page]


async def test_a_close_waits_for_the_calls_that_run(s3: SlowS3) -> None:
    listing = listing_of(s3)
    calls = [asyncio.create_task(listed(listing)) for _ in range(2)]
    await eventually_async(lambda: s3.request_count == 2)
    closing = asyncio.create_task(listing.close())
    await asyncio.sleep(0)
    s3.may_answer.set()
    assert await asyncio.gather(*calls) == [["a/1"], ["a/1"]]
    await closing
    await eventually_async(lambda: s3.open_count == 0)


async def test_a_call_that_takes_too_long_is_cut_off(
    s3: SlowS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_listing, "CLOSE_TIMEOUT_S", 0.0)
    listing = listing_of(s3)
    call = asyncio.create_task(listed(listing))
    await eventually_async(lambda: s3.request_count == 1)
    await listing.close()
    with pytest.raises(StoreUnavailable, match="the store was closed before S3 answered"):
        await call
    s3.may_answer.set()
    await eventually_async(lambda: s3.open_count == 0)
    assert await listed(listing) == ["a/1"], "a listing after it opens another client"
    await listing.close()


async def test_a_caller_that_is_cancelled_is_not_told_of_a_close(s3: SlowS3) -> None:
    listing = listing_of(s3)
    call = asyncio.create_task(listed(listing))
    await eventually_async(lambda: s3.request_count == 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await listing.close()
    s3.may_answer.set()
    await eventually_async(lambda: s3.open_count == 0)

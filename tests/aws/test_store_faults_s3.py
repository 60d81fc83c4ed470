"""What the S3 store makes of an S3 that stalls, and of credentials that end too soon."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tidelog_core.errors import OutcomeUnknown, StoreUnavailable
from tidelog_core.objects import s3_session
from tidelog_core.objects.s3 import S3ObjectStore

from tests.aws.buckets import make_bucket
from tests.aws.credentials import STATIC, CredentialsEndpoint, credentials_endpoint
from tests.support.store_proxy import S3, STORE_PASSES, StoreBehaviour, StoreProxy

BUCKET = "tidelog-store-faults"
STALLS = StoreBehaviour(delay_s=60.0)  # longer than any test waits
DATA = b"0123456789" * 1000

Scenario = Callable[[S3ObjectStore, StoreProxy], Awaitable[None]]


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CredentialsEndpoint]:
    """Where the stores of this module get credentials from, as often as they like."""
    monkeypatch.setattr(s3_session, "RENEW_INTERVAL_S", 0.0)
    for name in STATIC:
        monkeypatch.delenv(name, raising=False)
    with credentials_endpoint(tmp_path) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        yield endpoint


@pytest.fixture
def run(ministack_endpoint: str, credentials: CredentialsEndpoint) -> Callable[[Scenario], None]:
    """Return what runs a scenario with a store behind a proxy."""
    make_bucket(ministack_endpoint, BUCKET)

    async def main(scenario: Scenario) -> None:
        async with StoreProxy(ministack_endpoint, random.Random(1), S3) as proxy:
            store = S3ObjectStore(
                BUCKET,
                prefix=uuid.uuid4().hex,
                endpoint=proxy.url,
                read_timeout_s=0.5,
                write_timeout_s=0.5,
            )
            async with asyncio.timeout(30):
                await scenario(store, proxy)
            await store.close()

    return lambda scenario: asyncio.run(main(scenario))


async def heal_after(proxy: StoreProxy, request_count: int) -> None:
    """Let requests pass again once so many have been carried out."""
    while proxy.counts["carried out"] < request_count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    proxy.behave(STORE_PASSES)


def test_a_read_that_gets_no_answer_is_given_up_and_repeated(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(store: S3ObjectStore, proxy: StoreProxy) -> None:
        await store.put("a", DATA)
        for read in (lambda: store.get("a"), lambda: store.get_range("a", 0, len(DATA))):
            proxy.counts.clear()
            proxy.behave(STALLS)
            data, _ = await asyncio.gather(read(), heal_after(proxy, 1))
            assert data == DATA

    run(scenario)


def test_a_write_that_gets_no_answer_is_given_up_and_may_have_happened(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(store: S3ObjectStore, proxy: StoreProxy) -> None:
        proxy.behave(STALLS)
        put = asyncio.gather(store.put("a", DATA), heal_after(proxy, 1))
        with pytest.raises(OutcomeUnknown):
            await put
        assert await store.get("a") == DATA

    run(scenario)


def test_a_truncated_answer_is_never_taken_for_the_object(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: S3ObjectStore, proxy: StoreProxy) -> None:
        await store.put("a", DATA)
        proxy.behave(StoreBehaviour(truncated_part=1.0, methods=frozenset({"GET"})))
        with pytest.raises(StoreUnavailable):
            await store.get("a")
        with pytest.raises(StoreUnavailable):
            await store.get_range("a", 0, 100)
        assert proxy.counts["truncated"] > 2
        proxy.behave(StoreBehaviour(truncated_part=0.5))
        assert await store.get_range("a", 5, 105) == DATA[5:105]

    run(scenario)


def test_credentials_that_have_ended_are_looked_for_anew_by_every_call(
    run: Callable[[Scenario], None], credentials: CredentialsEndpoint
) -> None:
    async def scenario(store: S3ObjectStore, proxy: StoreProxy) -> None:
        await store.put("a", DATA)

        async def listed() -> list[str]:
            return [meta.key async for meta in store.list("")]

        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.get("a"),
            lambda: store.get_range("a", 0, 10),
            lambda: store.head("a"),
            lambda: store.put("b", DATA),
            lambda: store.replace("c", DATA),
            lambda: store.delete(["b"]),
            listed,
        ]
        await listed()  # Listing keeps credentials of its own.
        for number, call in enumerate(calls):
            credentials.token = f"token {number}"
            proxy.behave(StoreBehaviour(valid_token=credentials.token))
            await call()
        assert await listed() == ["a", "c"]
        proxy.behave(StoreBehaviour(valid_token="of nobody"))
        with pytest.raises(StoreUnavailable, match="ExpiredToken"):
            await listed()

    run(scenario)


def test_a_refused_write_has_not_happened(
    run: Callable[[Scenario], None], credentials: CredentialsEndpoint
) -> None:
    async def scenario(store: S3ObjectStore, proxy: StoreProxy) -> None:
        proxy.behave(StoreBehaviour(valid_token="none has it"))
        with pytest.raises(StoreUnavailable, match="ExpiredToken"):
            await store.put("a", DATA)
        assert proxy.counts["carried out"] == 0

    run(scenario)

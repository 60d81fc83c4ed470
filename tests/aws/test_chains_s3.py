"""Chains in an S3, and the probe against one that ignores ``If-None-Match``."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator

import pytest
from tidelog_core.diskless.chain.start_probe import check_creates_once
from tidelog_core.errors import InvalidConfig
from tidelog_core.objects.s3 import S3ObjectStore
from tidelog_core.objects.store import ObjectStore

from tests.aws.buckets import make_bucket
from tests.contracts.chain_store import ChainStoreContract
from tests.support.store_proxy import S3, STORE_PASSES, StoreBehaviour, StoreProxy

BUCKET = "tidelog-chains"


@pytest.mark.slow
class TestS3Chains(ChainStoreContract):
    @pytest.fixture
    async def store(
        self, ministack_endpoint: str, aws_credentials: None
    ) -> AsyncIterator[ObjectStore]:
        make_bucket(ministack_endpoint, BUCKET)
        store = S3ObjectStore(BUCKET, prefix=uuid.uuid4().hex, endpoint=ministack_endpoint)
        yield store
        await store.close()


@pytest.mark.usefixtures("aws_credentials")
def test_a_store_that_writes_over_objects_is_refused(ministack_endpoint: str) -> None:
    make_bucket(ministack_endpoint, BUCKET)

    async def main() -> None:
        async with StoreProxy(ministack_endpoint, random.Random(1), S3) as proxy:
            store = S3ObjectStore(BUCKET, prefix=uuid.uuid4().hex, endpoint=proxy.url)
            await check_creates_once(store, "c", uuid.uuid4())
            proxy.behave(StoreBehaviour(overwrites=True))
            with pytest.raises(InvalidConfig, match="If-None-Match"):
                await check_creates_once(store, "c", uuid.uuid4())
            proxy.behave(STORE_PASSES)
            assert [meta async for meta in store.list("")] == []
            await store.close()

    asyncio.run(main())

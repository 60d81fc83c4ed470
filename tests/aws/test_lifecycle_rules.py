"""Lifecycle rules of a bucket that would delete objects of chains are found."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import boto3
import pytest
from tidelog_core.diskless.chain.expiring_rules import chain_expiring_rules, check_keeps_chains
from tidelog_core.errors import InvalidConfig, StoreUnavailable
from tidelog_core.objects.counted_store import CountedObjectStore
from tidelog_core.objects.expiry import expiry_rules
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.s3 import S3ObjectStore

from tests.aws.buckets import REGION, make_bucket

BUCKET = "tidelog-lifecycle"
CHAINS = "data/c/wal/"


def rule(name: str, prefix: str, **fields: Any) -> dict[str, Any]:
    return {
        "ID": name, "Status": "Enabled", "Filter": {"Prefix": prefix}, "Expiration": {"Days": 3},
        **fields,
    }  # fmt: skip


def found(endpoint: str, rules: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the rules that are found to delete objects of chains."""
    make_bucket(endpoint, BUCKET)
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)
    if rules:
        s3.put_bucket_lifecycle_configuration(
            Bucket=BUCKET, LifecycleConfiguration={"Rules": list(rules)}
        )
    else:
        s3.delete_bucket_lifecycle(Bucket=BUCKET)
    s3.close()

    async def read() -> list[str]:
        store = CountedObjectStore(S3ObjectStore(BUCKET, prefix="data", endpoint=endpoint))
        try:
            return [one.name for one in await chain_expiring_rules(store, "c")]
        finally:
            await store.close()

    return asyncio.run(read())


@pytest.mark.usefixtures("aws_credentials")
def test_rules_that_apply_to_chains_are_found_and_no_others(ministack_endpoint: str) -> None:
    assert found(ministack_endpoint, []) == []
    hits = [rule("all", ""), rule("ours", "data/"), rule("one", f"{CHAINS}0000000001/")]
    misses = [
        rule("staging", "data/.staging/"),
        rule("other", "other/"),
        rule("off", "", Status="Disabled"),
        rule("parts", "", Expiration={"ExpiredObjectDeleteMarker": True}),
        rule("tagged", "", Filter={"Tag": {"Key": "a", "Value": "b"}}),
    ]
    assert found(ministack_endpoint, [*hits, *misses]) == ["all", "ours", "one"]


@pytest.mark.usefixtures("aws_credentials")
def test_such_a_rule_is_refused_with_what_to_do(ministack_endpoint: str) -> None:
    found(ministack_endpoint, [rule("tidy", "data/")])

    async def check() -> None:
        store = S3ObjectStore(BUCKET, prefix="data", endpoint=ministack_endpoint)
        with pytest.raises(InvalidConfig, match=r"'tidy' deletes .* after 3 days.*limit the rule"):
            await check_keeps_chains(store, "c")
        await store.close()
        missing = S3ObjectStore(f"none-{uuid.uuid4()}", endpoint=ministack_endpoint)
        with pytest.raises(StoreUnavailable, match=r"lifecycle rules cannot be read"):
            await expiry_rules(missing)
        await missing.close()
        assert await expiry_rules(MemoryObjectStore()) == []

    asyncio.run(check())

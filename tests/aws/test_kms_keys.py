"""Topics whose tiered segments are encrypted with a key of KMS (``tier.kms.key.id``)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.s3 import S3ObjectStore
from tidelog_core.tier_compaction.compact import CompactionOutcome, compact_partition

from tests.aws.buckets import REGION, make_bucket
from tests.support.compacted_tier import plain
from tests.support.random_logs import RandomLog
from tests.support.tier_node import running_node
from tests.support.tiered_partition import TieredPartition
from tests.support.waiting import eventually_async

BUCKET = "tidelog-kms"
KEY = f"arn:aws:kms:{REGION}:000000000000:key/{uuid.uuid4()}"


class Bucket:
    """The bucket on a stand-in, below a prefix of its own."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint, self.prefix = endpoint, uuid.uuid4().hex
        make_bucket(endpoint, BUCKET)
        self._s3 = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)

    def store(self, **settings: Any) -> S3ObjectStore:
        return S3ObjectStore(BUCKET, prefix=self.prefix, endpoint=self.endpoint, **settings)

    def keys(self) -> dict[str, tuple[str | None, str | None]]:
        """Return how each object is encrypted, and with which key."""
        listed = self._s3.list_objects_v2(Bucket=BUCKET, Prefix=self.prefix)
        found = {}
        for one in listed.get("Contents", ()):
            head = self._s3.head_object(Bucket=BUCKET, Key=one["Key"])
            algorithm, kms_key = head.get("ServerSideEncryption"), head.get("SSEKMSKeyId")
            found[one["Key"].removeprefix(f"{self.prefix}/")] = (algorithm, kms_key)
        return found

    def close(self) -> None:
        self._s3.close()


@pytest.fixture
def bucket(ministack_endpoint: str, aws_credentials: None) -> Iterator[Bucket]:
    found = Bucket(ministack_endpoint)
    yield found
    found.close()


@pytest.mark.parametrize("threshold", [0, 1 << 30], ids=["in parts", "at once"])
async def test_objects_get_the_key_that_is_named_and_others_none(
    bucket: Bucket, threshold: int, tmp_path: Path
) -> None:
    store = bucket.store(multipart_threshold=threshold, part_size_bytes=5 << 20)
    (tmp_path / "file").write_bytes(b"file")
    await store.put("plain", b"1")
    await store.put("encrypted", b"2", kms_key_id=KEY)
    await store.put_file("file", tmp_path / "file", kms_key_id=KEY)
    await store.put("plain-again", b"3")
    named = ("aws:kms", KEY)
    found = bucket.keys()
    assert (found.pop("encrypted"), found.pop("file")) == (named, named)
    assert KEY not in str(found)
    assert await store.get("encrypted") == b"2"
    assert await store.get_range("file", 1, 3) == b"il"


async def test_copied_segments_get_the_key_of_their_topic(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)  # the worker inherits it
    url = f"s3://{BUCKET}/{bucket.prefix}"
    async with running_node(tmp_path, objects_url=url) as node:
        secret = await node.create_topic("secret", configs={"tier.kms.key.id": KEY})
        plain = await node.create_topic("plain")
        segments = node.produce_segments(secret, 2, batch_count=5)
        node.produce_segments(plain, 2, batch_count=5)

        async def are_copied() -> bool:
            found = bucket.keys()
            return sum(key.endswith(".log") for key in found) == 4

        await eventually_async(are_copied)
        assert await node.verify(secret) == segments
    for key, (algorithm, kms_key) in bucket.keys().items():
        is_segment = key.endswith((".log", ".index"))
        is_secret = "/secret" in key and is_segment
        assert (algorithm == "aws:kms", kms_key == KEY) == (is_secret, is_secret), key


async def test_rewritten_segments_get_the_key_that_their_topic_has_now(
    bucket: Bucket, tmp_path: Path
) -> None:
    metadata, objects = SqliteMetadataStore(tmp_path / "metadata.db"), bucket.store()
    partition = TieredPartition(metadata, objects, tmp_path, configs={"tier.kms.key.id": KEY})
    await partition.create()
    log = RandomLog()
    for keys in ("ab", "ac", "ad"):
        await partition.copy([plain(log, *keys)])  # without the key
    assert KEY not in str(bucket.keys())
    report = await compact_partition(partition.tier())
    assert report.outcome is CompactionOutcome.COMPACTED
    found = bucket.keys()
    assert {found[key][1] for key in await partition.named_keys()} >= {KEY}
    assert await partition.problems() == []
    await metadata.close()


async def test_a_folder_takes_no_key_and_says_so(tmp_path: Path) -> None:
    store = FolderObjectStore(tmp_path)
    with pytest.raises(StoreUnavailable, match=r"only S3 encrypts .* tier\.kms\.key\.id is 'key'"):
        await store.put("a", b"1", kms_key_id="key")
    assert [found.key async for found in store.list("")] == []
    await store.close()


@pytest.mark.slow
@pytest.mark.localstack
async def test_nothing_is_readable_or_written_once_the_key_is_disabled(
    localstack_endpoint: str, aws_credentials: None, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is said as other refusals are: of writes, then of reads. MiniStack knows no keys."""
    bucket = Bucket(localstack_endpoint)
    kms = boto3.client("kms", endpoint_url=localstack_endpoint, region_name=REGION)
    # Of another kind than S3 takes: on Python 3.11 LocalStack fails to make a symmetric one.
    made = kms.create_key(KeySpec="RSA_2048", KeyUsage="ENCRYPT_DECRYPT")
    arn = made["KeyMetadata"]["Arn"]
    store = bucket.store()
    await store.put("a", b"1", kms_key_id=arn)
    assert await store.get("a") == b"1"
    with pytest.raises(StoreUnavailable, match=r"KMS\.NotFoundException"):
        await store.put("b", b"2", kms_key_id=KEY)
    kms.disable_key(KeyId=arn)
    with pytest.raises(StoreUnavailable, match=r"KMS\.DisabledException"):
        await store.get("a")
    with pytest.raises(StoreUnavailable, match=r"KMS\.DisabledException"):
        await store.put("c", b"3", kms_key_id=arn)
    assert [record.message for record in caplog.records] == ["object store refuses"] * 2
    kms.enable_key(KeyId=arn)
    assert await store.get("a") == b"1"
    kms.close()
    bucket.close()

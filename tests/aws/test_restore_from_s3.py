"""A cluster whose table is lost, restored into another one from its bucket."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path
from typing import Any

import boto3
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.aws.buckets import make_bucket
from tests.aws.test_dynamodb_store import new_table
from tests.support.command import called
from tests.support.docs_reader import only, read_all
from tests.support.node_process import NodeProcess
from tests.support.tiered_topics import (
    CONFIG,
    TOPIC_CONFIG,
    produce,
    read,
    seal,
    values,
    wait_tiered,
)

COUNT = 60
START = 7  # by DeleteRecords
DEADLINE_SECONDS = 120.0


def wait_until_there(s3: Any, bucket: str, *suffixes: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        keys = [found["Key"] for found in s3.list_objects_v2(Bucket=bucket)["Contents"]]
        if all(any(key.endswith(suffix) for key in keys) for suffix in suffixes):
            return
        assert time.monotonic() < deadline, keys
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("aws_credentials")
def test_a_cluster_comes_back_from_s3_into_another_table(
    dynamodb_local_endpoint: str,
    ministack_endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = f"restore-{uuid.uuid4().hex}"
    make_bucket(ministack_endpoint, bucket)
    s3 = boto3.client("s3", endpoint_url=ministack_endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", ministack_endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack_endpoint)
    url = f"s3://{bucket}/tidelog"

    def node(name: str) -> NodeProcess:
        table = asyncio.run(new_table(dynamodb_local_endpoint))
        store = f"dynamodb://{table}?region=us-east-1&endpoint={dynamodb_local_endpoint}"
        return NodeProcess(tmp_path / name, metadata_store=store, object_store=url, config=CONFIG)

    config = [
        part for name, value in TOPIC_CONFIG.items() for part in ("--config", f"{name}={value}")
    ]
    with node("before") as before:
        called("topic", "create", "orders", *config, bootstrap=before.address)
        produce(before.address, "orders", 0, values(0, COUNT))
        seal(before, [("orders", 0)])
        wait_tiered(before, {("orders", 0): COUNT})
        rows = read(before, "orders", 0, COUNT)
        admin = AdminClient({"bootstrap.servers": before.address})
        start = TopicPartition("orders", 0, START)
        admin.delete_records([start])[start].result(60)
        called("topic", "create", "gone", bootstrap=before.address)
        admin.delete_topics(["gone"])["gone"].result(60)
        wait_until_there(s3, bucket, f"/0/log-start-{START:020d}.json", ".deleted.json")

    # The reader of docs/ finds the same in the bucket.
    rows = rows[START:]
    with monkeypatch.context() as patched:
        # The script leaves its client to the end of its process.
        patched.setattr(boto3, "client", lambda _: s3)
        records = only(read_all(url).values())
    s3.close()
    assert [(r.offset, r.key, r.value) for r in records] == [
        (offset, key, value) for offset, _, key, value in rows
    ]

    after = node("after")
    document = called(
        "restore", "--from", url, "--metadata", after.metadata_store, "--json"
    ).document
    assert document["ok"]
    assert [topic["topic"] for topic in document["topics"]] == ["orders"]
    with after:
        assert read(after, "orders", 0, COUNT - START, start=START) == rows
        produce(after.address, "orders", 0, values(1, 1))
        assert read(after, "orders", 0, COUNT + 1 - START, start=START)[-1][3] == values(1, 1)[0]
        seal(after, [("orders", 0)])
        wait_tiered(after, {("orders", 0): COUNT + 1})
    checked = called(
        "verify", "--objects", url, "--metadata", after.metadata_store, "--json"
    ).document
    assert checked["ok"], checked

"""Another node takes over the diskless partitions of one that was killed; all is in an S3."""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from tests.aws.buckets import REGION, make_bucket
from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient

# ``tests/node/diskless/test_takeover.py`` has more of it, with a folder.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BUCKET, TOPIC = "tidelog-takeover", "t"
LEASE_MS = 2_000
COUNT, PRODUCER = 20, 7_000
SECONDS_MAX = 90.0


@pytest.fixture
def nodes(tmp_path: Path, ministack_endpoint: str) -> Iterator[dict[int, NodeProcess]]:
    make_bucket(ministack_endpoint, BUCKET)
    prefix = uuid.uuid4().hex
    made = {
        broker_id: NodeProcess(
            tmp_path / f"node-{broker_id}",
            broker_id=broker_id,
            metadata_store=f"sqlite://{tmp_path}/metadata.db",
            object_store=f"s3://{BUCKET}/{prefix}",
            environment={
                "AWS_ENDPOINT_URL": ministack_endpoint,
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": REGION,
            },
            config={
                "broker.session.timeout.ms": str(LEASE_MS),
                "broker.heartbeat.interval.ms": str(LEASE_MS // 4),
                "metadata.poll.interval.ms": "50",
                "offsets.topic.num.partitions": "2",
                "diskless.checkpoint.interval.ms": "1000",
            },
        )
        for broker_id in (1, 2)
    }
    with contextlib.ExitStack() as stack:
        for node in made.values():
            stack.enter_context(node)
        yield made


def send(nodes: dict[int, NodeProcess], number: int) -> tuple[int, int]:
    """Send the idempotent producer's batch with this number; return the leader and its offset."""
    batch = batch_of(b"value %d" % number, producer=(PRODUCER, 0, number))
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        for broker_id, node in nodes.items():
            if node.process is None:
                continue
            with contextlib.suppress(OSError), WireClient(node.port) as client:
                answer = client.produce(TOPIC, batch, acks=-1)
                if answer.error_code is ErrorCode.none:
                    return broker_id, int(answer.base_offset)
        time.sleep(0.05)
    raise AssertionError([node.log[-2_000:] for node in nodes.values()])


def test_every_acknowledged_record_is_there_after_two_takeovers(
    nodes: dict[int, NodeProcess],
) -> None:
    admin = AdminClient({"bootstrap.servers": nodes[1].address})
    config = {"diskless.enable": "true"}
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(60)
    offsets = []
    for number in range(COUNT):
        leader, offset = send(nodes, number)
        offsets.append(offset)
    assert offsets == list(range(COUNT))
    for turn in range(2):  # back again, to a node that has lost its disk
        nodes[leader].kill()
        last = COUNT + turn
        heir, offset = send(nodes, last - 1)  # It was acknowledged, and is known to the heir.
        assert (heir != leader, offset) == (True, last - 1)
        assert send(nodes, last) == (heir, last)
        shutil.rmtree(nodes[leader].data_dir)
        nodes[leader].start()
        leader = heir
    with WireClient(nodes[leader].port) as client:
        assert client.fetch(TOPIC, 0).high_watermark == COUNT + 2

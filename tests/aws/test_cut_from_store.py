"""One of three nodes is cut from the bucket: others lead its diskless partitions, nothing is lost."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.aws.buckets import make_bucket
from tests.support.node_process import NodeProcess
from tests.support.store_proxy import S3, STORE_PASSES, StoreBehaviour, StoreProxy
from tests.support.waiting import eventually_async

BUCKET = "tidelog-cut-from-store"
PARTITIONS = 6
SECONDS_MAX = 120.0

# ``tests/node/membership/test_lost_object_store.py`` has the small twins.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("aws_credentials"),
]


class Sending:
    """An idempotent producer that sends numbered values to all partitions in the background."""

    def __init__(self, bootstrap: str) -> None:
        self.acked: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.errors: list[str] = []
        self._ends = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 50}
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ends.wait(0.1):
            for partition in range(PARTITIONS if len(self._producer) < 300 else 0):
                number += 1
                self._producer.produce(
                    "t", b"%d" % number, partition=partition, on_delivery=self._on_delivery
                )
            self._producer.poll(0)
        assert self._producer.flush(100) == 0

    def _on_delivery(self, error: object, message: object) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            value = int(message.value())  # type: ignore[attr-defined]
            self.acked[message.partition()].append(value)  # type: ignore[attr-defined]

    def counts(self) -> list[int]:
        return [len(some) for some in self.acked]

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


def test_a_node_that_is_cut_from_the_bucket_gives_its_leads_away(
    ministack_endpoint: str, tmp_path: Path
) -> None:
    make_bucket(ministack_endpoint, BUCKET)
    prefix = uuid4().hex

    def node(broker_id: int, endpoint: str) -> NodeProcess:
        return NodeProcess(
            tmp_path / f"node-{broker_id}",
            broker_id=broker_id,
            metadata_store=f"sqlite://{tmp_path}/metadata.db",
            object_store=f"s3://{BUCKET}/{prefix}",
            environment={"AWS_ENDPOINT_URL": endpoint},
        )

    async def main() -> None:
        async with StoreProxy(ministack_endpoint, random.Random(1), S3) as proxy:
            nodes = [node(1, proxy.url), node(2, ministack_endpoint), node(3, ministack_endpoint)]
            try:
                for one in nodes:
                    await asyncio.to_thread(one.start)
                await cut_and_heal(nodes, proxy)
            finally:
                for one in nodes:
                    if one.process is not None:
                        await asyncio.to_thread(one.stop)

    asyncio.run(main())


async def cut_and_heal(nodes: list[NodeProcess], proxy: StoreProxy) -> None:
    bootstrap = ",".join(one.address for one in nodes)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic("t", PARTITIONS, -1, config={"diskless.enable": "true"})
    await asyncio.to_thread(admin.create_topics([new])["t"].result, 60)

    async def leaders() -> Counter[int]:
        found = await asyncio.to_thread(admin.list_topics, "t", timeout=30)
        return Counter(one.leader for one in found.topics["t"].partitions.values())

    async def all_lead() -> bool:
        return set(await leaders()) == {1, 2, 3}

    async def first_leads_nothing() -> bool:
        return 1 not in await leaders()

    sending = Sending(bootstrap)
    try:
        await eventually_async(all_lead, seconds=SECONDS_MAX)
        await eventually_async(lambda: min(sending.counts()) > 5, seconds=SECONDS_MAX)
        proxy.behave(StoreBehaviour(is_cut=True))
        await eventually_async(first_leads_nothing, seconds=SECONDS_MAX)
        await eventually_async(acknowledges_again(sending), seconds=SECONDS_MAX)
        assert 1 not in await leaders()
        proxy.behave(STORE_PASSES)
        await eventually_async(all_lead, seconds=SECONDS_MAX)
        await eventually_async(acknowledges_again(sending), seconds=SECONDS_MAX)
    finally:
        await asyncio.to_thread(sending.end)
    assert sending.errors == []
    assert await asyncio.to_thread(read_all, bootstrap, sending.counts()) == sending.acked


def acknowledges_again(sending: Sending) -> Callable[[], bool]:
    """Return whether every partition has acknowledged some records since this call."""
    before = sending.counts()

    def holds() -> bool:
        return all(now > some + 5 for now, some in zip(sending.counts(), before, strict=True))

    return holds


def read_all(bootstrap: str, counts: list[int]) -> list[list[int]]:
    """Read all partitions from the start."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    try:
        consumer.assign([TopicPartition("t", number, 0) for number in range(PARTITIONS)])
        while sum(map(len, found)) < sum(counts):
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, f"{found} after {counts}"
            assert message.error() is None
            found[message.partition()].append(int(message.value()))
        late = consumer.poll(1)
        assert late is None, "a record is there twice"
    finally:
        consumer.close()
    return found

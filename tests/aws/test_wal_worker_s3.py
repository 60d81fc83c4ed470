"""The WAL worker in front of an S3 that refuses, delays and loses answers: outcomes and PUTs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.wal.build import ObjectName, WalSlice
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import InvalidConfig, TierUnavailable
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.s3 import S3ObjectStore
from tidelog_node.diskless.chain.wal_client import WalClient
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.wal_messages import FileRange, SliceFiles, WalBuildRequest, WalNotBuilt
from tidelog_node.tier.worker_command import WorkerCommand

from tests.aws.buckets import REGION, make_bucket
from tests.support.data_objects import build_data_object
from tests.support.diskless_node import running_chain
from tests.support.store_proxy import S3, STORE_PASSES, StoreBehaviour, StoreProxy
from tests.support.tier_node import CONFIG, READY_TIMEOUT_S
from tests.support.waiting import eventually_async
from tests.support.wal_objects import CLUSTER, TOPIC_ID, batch

BUCKET = "tidelog-wal"
PUTS = frozenset({"PUT"})
STALLS = StoreBehaviour(delay_s=60.0, methods=PUTS)  # the PUT is carried out
SLOW_S = 60.0


class Scene:
    """A worker, its store behind a proxy, and a segment file."""

    def __init__(self, client: TierClient, proxy: StoreProxy, store: S3ObjectStore) -> None:
        self.client, self.proxy, self.store = client, proxy, store
        self.chain = ChainName(1, uuid4())
        self.wal = WalClient(client, CLUSTER, self.chain)
        self.path = Path()

    async def build(self, sequence: int = 0) -> bytes:
        """Have an object built; return the bytes that it must have."""
        data = batch(0, 5)
        name = ObjectName(CLUSTER, self.chain, sequence, 0, 0, 0)
        ranges = (FileRange(str(self.path), 0, len(data)),)
        files = SliceFiles(TOPIC_ID, 0, 7, 0, 5, ranges)
        header = await self.wal.build(WalBuildRequest(name, (files,)))
        built = build_data_object(name, [WalSlice(TOPIC_ID, 0, 7, data)])
        assert header == built.header
        return built.data

    async def stored(self, sequence: int = 0) -> bytes:
        return await self.store.get(wal_key(CLUSTER, self.chain, sequence))

    @property
    def put_count(self) -> int:
        counts = self.proxy.counts
        return counts["carried out"] + counts["throttled"] + counts["reset"]


Scenario = Callable[[Scene], Awaitable[None]]


@pytest.fixture
def run(
    ministack_endpoint: str,
    aws_credentials: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Scenario], None]:
    make_bucket(ministack_endpoint, BUCKET)

    async def main(scenario: Scenario) -> None:
        async with StoreProxy(ministack_endpoint, random.Random(1), S3) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            prefix = uuid4().hex
            client = TierClient(
                WorkerCommand(
                    socket=tmp_path / "wal.sock",
                    objects=f"s3://{BUCKET}/{prefix}",
                    cache_dir=tmp_path / "cache",
                    node_config=CONFIG,
                    wal_bytes=1 << 20,
                )
            )
            client.start()
            store = S3ObjectStore(BUCKET, prefix=prefix, endpoint=ministack_endpoint)
            scene = Scene(client, proxy, store)
            scene.path = tmp_path / "segment.log"
            scene.path.write_bytes(batch(0, 5))
            try:
                async with asyncio.timeout(60):
                    await scenario(scene)
            finally:
                await client.close()
                await store.close()

    return lambda scenario: asyncio.run(main(scenario))


def test_every_answer_of_the_store_has_its_outcome_after_one_request(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(scene: Scene) -> None:
        data = await scene.build()
        for behaviour, outcome in (
            (StoreBehaviour(throttled_part=1.0), PutOutcome.THROTTLED),
            (StoreBehaviour(reset_part=1.0), PutOutcome.UNKNOWN),
            (STORE_PASSES, PutOutcome.STORED),
            (STORE_PASSES, PutOutcome.TAKEN),
        ):
            scene.proxy.behave(behaviour)
            scene.proxy.counts.clear()
            assert await scene.wal.put(0, timeout_s=SLOW_S) is outcome
            assert scene.put_count == 1, outcome
        assert await scene.stored() == data
        # An answer that is late, and one that is lost with its connection.
        await scene.build(1)
        scene.proxy.behave(STALLS)
        scene.proxy.counts.clear()
        assert await scene.wal.put(1, timeout_s=0.2) is PutOutcome.UNKNOWN
        await scene.build(2)
        scene.proxy.behave(StoreBehaviour(lost_part=1.0, hold_s=0.1, methods=PUTS))
        assert await scene.wal.put(2, timeout_s=SLOW_S) is PutOutcome.UNKNOWN
        assert scene.put_count == 2
        scene.proxy.behave(STORE_PASSES)
        for sequence in (1, 2):  # Both were stored, which the owner learns from their headers.
            assert await scene.wal.put(sequence, timeout_s=SLOW_S) is PutOutcome.TAKEN
            header = await scene.wal.header(sequence)
            assert header is not None
            assert header.pack() == (await scene.stored(sequence))[: len(header.pack())]

    run(scenario)


@pytest.mark.slow
def test_a_store_that_cannot_be_reached_has_written_nothing(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.build()
        await scene.wal.put(0, timeout_s=SLOW_S)
        await scene.build(1)
        scene.proxy.refuse()
        scene.proxy.behave(StoreBehaviour(is_cut=True))
        assert await scene.wal.put(1, timeout_s=SLOW_S) in (
            PutOutcome.THROTTLED,  # the connection is refused
            PutOutcome.UNKNOWN,  # one that was kept open has broken
        )

    run(scenario)


@pytest.mark.slow
def test_a_worker_killed_with_puts_in_flight_puts_the_same_bytes_again(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(scene: Scene) -> None:
        client = scene.client
        built = [await scene.build(sequence) for sequence in range(4)]
        scene.proxy.behave(STALLS)
        scene.proxy.counts.clear()
        puts = [
            asyncio.create_task(scene.wal.put(sequence, timeout_s=SLOW_S)) for sequence in range(2)
        ]
        while scene.proxy.counts["carried out"] < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert client.worker_pid is not None
        os.kill(client.worker_pid, signal.SIGKILL)
        found = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(one) for one in found] == [TierUnavailable] * 2
        scene.proxy.behave(STORE_PASSES)
        await client.wait_ready(READY_TIMEOUT_S)
        outcomes = []
        for sequence in range(4):
            with pytest.raises(WalNotBuilt):
                await scene.wal.put(sequence, timeout_s=SLOW_S)
            assert await scene.build(sequence) == built[sequence]
            outcomes.append(await scene.wal.put(sequence, timeout_s=SLOW_S))
            assert await scene.stored(sequence) == built[sequence]
        assert outcomes == [PutOutcome.TAKEN] * 2 + [PutOutcome.STORED] * 2

    run(scenario)


@pytest.mark.slow
def test_the_slower_put_of_a_committed_object_is_ended_with_its_memory(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.build()
        scene.proxy.behave(STALLS)
        slow = asyncio.create_task(scene.wal.put(0, timeout_s=SLOW_S))
        while not scene.proxy.counts["carried out"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        scene.proxy.behave(STORE_PASSES)
        assert await scene.wal.put(0, timeout_s=SLOW_S) is PutOutcome.TAKEN
        await scene.wal.drop(1)
        assert await slow is PutOutcome.UNKNOWN
        assert (await scene.client.status())["wal_built_bytes"] == 0

    run(scenario)


@pytest.mark.usefixtures("aws_credentials")
def test_a_store_that_ignores_conditions_is_refused_once_and_by_its_name(
    ministack_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bucket(ministack_endpoint, BUCKET)
    url = f"s3://{BUCKET}/{uuid4().hex}"

    async def main() -> None:
        async with StoreProxy(ministack_endpoint, random.Random(1), S3) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            proxy.behave(StoreBehaviour(overwrites=True))
            async with running_chain(tmp_path, url) as node_chain:
                for _ in range(2):
                    with pytest.raises(InvalidConfig, match="If-None-Match") as refused:
                        await node_chain.current()
                    assert url in str(refused.value)
                    assert "use a store that supports conditional writes" in str(refused.value)
                    request_count = sum(proxy.counts.values())
                assert sum(proxy.counts.values()) == request_count
                assert node_chain.chain is None
                # The rest of the node goes on using the store.
                await node_chain.client.put("a/b", b"c")
                assert await node_chain.client.get("a/b") == b"c"

    asyncio.run(main())


@pytest.mark.usefixtures("aws_credentials")
def test_a_bucket_whose_rules_delete_chains_is_refused(
    ministack_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"tidelog-expiring-{uuid4().hex[:8]}"
    make_bucket(ministack_endpoint, bucket)
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack_endpoint)
    rule = {"ID": "week", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 7}}
    boto3.client("s3", region_name=REGION).put_bucket_lifecycle_configuration(
        Bucket=bucket, LifecycleConfiguration={"Rules": [rule]}
    )

    async def main() -> None:
        async with running_chain(tmp_path, f"s3://{bucket}") as node_chain:
            chain = await node_chain.current()
            await eventually_async(lambda: chain.is_deposed)
            with pytest.raises(InvalidConfig, match="'week' deletes objects below"):
                await node_chain.current()

    asyncio.run(main())

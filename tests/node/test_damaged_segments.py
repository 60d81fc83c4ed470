"""Sealed segments whose files lose bytes under a running node: found, named, replaced."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from kio.schema.errors import ErrorCode
from tidelog_core.log.segments.batch_scan import scan_file
from tidelog_core.log.segments.segment_check import check_segment

from tests.node.disk_trouble import values
from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.replicated_cluster import ReplicatedCluster, replicated_cluster
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

TIGHT = {"log.scrub.bytes.per.second": "100000000"}


def flip(path: Path, position: int) -> int:
    """Flip a bit of the batch at or behind the position; return where that begins."""
    at = next(
        one.position for one in scan_file(path, path.stat().st_size) if one.position >= position
    )
    content = bytearray(path.read_bytes())
    content[at + 80] ^= 1
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content[at : at + 81])
    return at


def is_whole(path: Path) -> bool:
    segments = sorted(path.parent.glob("*.log"))
    following = segments[segments.index(path) + 1]
    damage = check_segment(
        path,
        base_offset=int(path.stem),
        end_offset=int(following.stem),
        size_bytes=path.stat().st_size,
        leader_epochs=(),
    )
    return damage is None


def sealed(node: NodeProcess, topic: str) -> list[Path]:
    return sorted((node.data_dir / f"{topic}-0").glob("*.log"))[:-1]


def flushed_sealed(cluster: ReplicatedCluster, node: NodeProcess) -> Path:
    """Return the second segment once it is sealed and flushed."""
    eventually(lambda: len(sealed(node, "t")) > 3, "segments are sealed")
    path = sealed(node, "t")[1]
    eventually(lambda: path.with_suffix(".index").exists(), "it is flushed")
    return path


def test_a_damaged_segment_keeps_nothing_from_the_tier(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, config={"log.scrub.bytes.per.second": "0"}) as cluster:
        cluster.create("t", segment_bytes="20000", remote_storage_enable="false")
        acked = cluster.produce("t", values(1_000))
        node = cluster.node_leading("t")
        path = flushed_sealed(cluster, node)
        before, count = path.read_bytes(), len(sealed(node, "t"))
        at = flip(path, 5_000)
        alter(node, "t", "remote.storage.enable=true")
        eventually(lambda: path.read_bytes() == before, "it is as it was")
        objects = tmp_path / "objects"
        eventually(lambda: len(list(objects.rglob("*.index"))) >= count, "all is in the tier")
        node.wait_logged(f"{path} is damaged at position {at}")
        assert cluster.leader("t") != node.broker_id
        assert cluster.isr("t") == {1, 2, 3}
        assert cluster.consume("t", 1_000) == acked
        node.wait_logged(" ERROR ")
        assert len([line for line in node.log.splitlines() if " ERROR " in line]) == 1


def alter(node: NodeProcess, topic: str, setting: str) -> None:
    name, _, value = setting.partition("=")
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.incremental_alter_configs([resource])[resource].result(60)


@pytest.mark.slow  # the scrubber looks every few seconds where it has found nothing
def test_the_last_copy_is_served_from_the_tier_or_named(tmp_path: Path) -> None:
    config = {**TIGHT, "remote.task.interval.ms": "100"}
    with NodeProcess(tmp_path / "node", config=config) as node:
        admin = AdminClient({"bootstrap.servers": node.address})
        for name, remote in (("t", "true"), ("local", "false")):
            settings = {"segment.bytes": "20000", "remote.storage.enable": remote}
            admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(60)
            with WireClient(node.port) as client:
                for number in range(60):
                    eventually(
                        partial(is_produced, client, name, values(10, start=number * 10)),
                        "it is taken",
                    )
        eventually(lambda: node.log.count("segment copied") >= 3, "it is tiered")
        tiered, local = sealed(node, "t")[1], sealed(node, "local")[1]
        positions = {path: flip(path, 5_000) for path in (tiered, local)}
        eventually(lambda: "nowhere else" in node.log, "what nobody else has is named")
        eventually(lambda: not tiered.exists(), "what is tiered is let go of")
        for path, at in positions.items():
            node.wait_logged(f"{path} is damaged at position {at}")
        node.wait_logged("tidelog repair --partition local-0 --dry-run")
        with WireClient(node.port) as client:
            assert client.fetch("t", int(tiered.stem)).error_code is ErrorCode.none
            # What is whole is served.
            after = int(sealed(node, "local")[2].stem)
            assert client.fetch("local", after).error_code is ErrorCode.none
        assert node.log.count(" ERROR ") == 3


def is_produced(client: WireClient, topic: str, batch: list[bytes]) -> bool:
    code: ErrorCode = client.produce(topic, batch_of(*batch)).error_code
    return code is ErrorCode.none


@pytest.mark.slow
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_damaged_segment_is_fetched_again_from_another_replica(who: str, tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, config=TIGHT) as cluster:
        cluster.create("t", segment_bytes="20000", remote_storage_enable="false")
        acked = cluster.produce("t", values(1_000))
        node = cluster.node_leading("t") if who == "leader" else cluster.followers("t")[0]
        path = flushed_sealed(cluster, node)
        before = path.read_bytes()
        at = flip(path, 5_000)
        eventually(lambda: path.read_bytes() == before, "it is as it was")
        node.wait_logged(f"{path} is damaged at position {at}")
        eventually(lambda: "damaged segment replaced" in node.log, "it says so")
        (kept,) = (node.data_dir / "quarantine" / "t-0").glob("*")
        assert kept.name == path.name
        assert len(kept.read_bytes()) == len(before)
        assert cluster.isr("t") == {1, 2, 3}
        if who == "leader":
            assert cluster.leader("t") != node.broker_id
        assert cluster.consume("t", 1_000) == acked
        node.wait_logged(" ERROR ")
        assert len([line for line in node.log.splitlines() if " ERROR " in line]) == 1


@pytest.mark.slow
def test_a_damaged_log_of_a_compacted_topic_is_fetched_again_as_a_whole(tmp_path: Path) -> None:
    config = {**TIGHT, "log.cleaner.backoff.ms": "1000000"}
    with replicated_cluster(tmp_path, config=config) as cluster:
        cluster.create(
            "t", segment_bytes="20000", remote_storage_enable="false", cleanup_policy="compact"
        )
        producer = cluster.producer()
        for value in values(1_000):
            producer.produce("t", value, key=value[:6], partition=0)
        assert producer.flush(30) == 0
        node = cluster.followers("t")[0]
        path = flushed_sealed(cluster, node)
        at = flip(path, 5_000)
        eventually(lambda: "damaged log set aside" in node.log, "it is fetched again")
        node.wait_logged(f"{path} is damaged at position {at}")
        cluster.wait_isr("t", {1, 2, 3})
        cluster.wait_same_logs("t")
        assert sorted(cluster.consume("t", 1_000).values()) == values(1_000)
        (aside,) = node.data_dir.glob("t-0.*-stray")
        assert (aside / path.name).exists()

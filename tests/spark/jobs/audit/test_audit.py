"""The audit over a history in Spark: what is whole passes, and whatever is not is named."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tidelog_core.erasure.tier import erase_from_tier
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.records.batch import Record, build_batch
from tidelog_core.tier.integrity import CHAIN_PROBLEM
from tidelog_core.tier.keys import cluster_manifest_key, topic_manifest_key
from tidelog_core.tier.manifest import ClusterManifest, TopicManifest
from tidelog_core.tier_compaction.compact import compact_partition
from tidelog_spark.jobs.audit.audit_report import write_report
from tidelog_spark.jobs.audit.auditing import (
    AuditReport,
    AuditRequest,
    audit,
    audit_planned,
    planned_audit,
)

from tests.spark.jobs.audit.produced import produced
from tests.support.clock import NOW_MS
from tests.support.tiered_cluster import CLUSTER_ID, TieredCluster
from tests.support.tiered_partition import tiered_partition


def ten(base_offset: int, *, producer_id: int = 7, sequence: int | None = None) -> bytes:
    """Return a batch of ten records, whose sequence is its offset unless told."""
    first = base_offset if sequence is None else sequence
    return produced(base_offset, producer_id, 0, first, 10, timestamp_ms=NOW_MS + base_offset)


class History:
    """Partition 0 of topic ``t``, 10 records a batch, 2 batches a segment."""

    def __init__(self, folder: Path, *, configs: dict[str, str] | None = None) -> None:
        self.cluster = TieredCluster(folder)
        topic = self.cluster.create_topic("t", partition_count=2, configs=configs)
        self.segments: list[SegmentMeta] = []
        manifest = TopicManifest(
            name="t",
            topic_id=topic.topic_id,
            partition_count=2,
            created_ms=0,
            replication_factor=1,
            configs=topic.configs,
        )
        self._write(
            cluster_manifest_key(CLUSTER_ID), ClusterManifest(cluster_id=CLUSTER_ID).to_bytes()
        )
        self._write(topic_manifest_key(CLUSTER_ID, "t", topic.topic_id), manifest.to_bytes())

    def _write(self, key: str, content: bytes) -> None:
        path = self.cluster.objects / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def add(self, *batches: bytes, **given: int) -> SegmentMeta:
        self.segments.append(self.cluster.add_segment("t", batches, **given))
        return self.segments[-1]

    def add_whole(self, count: int) -> History:
        for base in range(0, count * 20, 20):
            self.add(ten(base), ten(base + 10))
        return self

    def remove(self, number: int) -> None:
        """Do as retention does: the log starts later, then the item goes."""
        segment = self.segments[number]
        self.cluster.set_log_start_offset("t", 0, segment.end_offset)
        self.cluster.remove_item(segment.item_id)

    def path(self, number: int, *, is_index: bool = False) -> Path:
        keys = self.cluster.keys("t", self.segments[number])
        return self.cluster.objects / (keys.index if is_index else keys.log)

    def request(self, **given: object) -> AuditRequest:
        return AuditRequest(**{**self.cluster.options, **given})

    def problems(self, spark: SparkSession, **given: object) -> list[tuple[str, int | None, str]]:
        report = audit(spark, self.request(**given))
        return [(one.check, one.offset, one.problem) for one in report.problems]


def test_a_whole_history_passes_and_is_counted(spark, tmp_path):
    history = History(tmp_path).add_whole(5)
    report = audit(spark, history.request())
    row, empty = report.partitions
    assert (row.topic, row.partition, row.start_offset, row.end_offset) == ("t", 0, 0, 100)
    assert (row.segment_count, row.batch_count, row.record_count) == (5, 10, 100)
    assert row.size_bytes == sum(segment.size_bytes for segment in history.segments)
    assert (row.problem_count, empty.segment_count, empty.start_offset) == (0, 0, None)
    assert history.problems(spark) == []


def test_a_flipped_bit_in_a_batch_is_found_and_the_rest_still_checked(spark, tmp_path):
    history = History(tmp_path).add_whole(4)
    content = bytearray(history.path(1).read_bytes())
    content[100] ^= 1
    history.path(1).write_bytes(content)
    assert history.problems(spark) == [("objects", None, "the CRC of the whole does not match")]
    assert [row.segment_count for row in audit(spark, history.request()).partitions] == [4, 0]


def test_damage_in_an_index_object_is_found(spark, tmp_path):
    history = History(tmp_path).add_whole(2)
    content = bytearray(history.path(1, is_index=True).read_bytes())
    content[-1] ^= 1
    history.path(1, is_index=True).write_bytes(content)
    [(check, _, text)] = history.problems(spark)
    assert check == "objects"
    assert "the CRC of section" in text


def test_a_segment_out_of_the_chain_is_named(spark, tmp_path):
    history = History(tmp_path).add_whole(2)
    history.cluster._hashes["t", 0] = {0: b"\1" * 32}
    history.add(ten(40), ten(50))
    assert history.problems(spark) == [("chain", None, CHAIN_PROBLEM)]


def test_offsets_missing_within_and_between_segments_are_named(spark, tmp_path):
    history = History(tmp_path)
    history.add(ten(0), ten(20, sequence=10))
    history.add(ten(40, sequence=20), end_offset=60)
    assert history.problems(spark) == [
        ("offsets", 10, "offsets [10, 20) are missing"),
        ("offsets", 50, "offsets [50, 60) are missing"),
        ("chain", None, "offsets [30, 40) are missing before it"),
    ]


@pytest.mark.slow
def test_a_compacted_topic_may_have_gaps_and_skip_sequences_but_repeat_none(spark, tmp_path):
    history = History(tmp_path, configs={"cleanup.policy": "compact,delete"})
    history.add(ten(0), ten(20), end_offset=40)
    history.add(ten(50), ten(60, sequence=55))
    assert [(check, offset) for check, offset, _ in history.problems(spark)] == [
        ("producers", 60),
        ("chain", None),
    ]

    once = History(tmp_path / "once")
    once.add(ten(0), ten(20))
    once.add(ten(30, sequence=20))
    assert {check for check, _, _ in once.problems(spark)} == {"offsets", "producers"}
    told = once.problems(spark, compacted=("t",))
    assert [(check, offset) for check, offset, _ in told] == [("producers", 30)]


def test_a_sequence_skipped_between_segments_is_found(spark, tmp_path):
    history = History(tmp_path).add_whole(2)
    history.add(ten(40, sequence=45), ten(50, sequence=55))
    history.add(ten(60, sequence=65))
    assert history.problems(spark) == [
        (
            "producers",
            40,
            "producer 7 skips sequences in epoch 0: 45 came instead of 40, after the batch at 30",
        )
    ]


def test_producers_are_followed_over_segments_that_know_nothing_of_them(spark, tmp_path):
    history = History(tmp_path)
    history.add(ten(0, sequence=0), ten(10, producer_id=8, sequence=0))
    history.add(ten(20, producer_id=8, sequence=10))
    history.add(ten(30, producer_id=8, sequence=20), ten(40, sequence=0))
    assert history.problems(spark) == [
        (
            "producers",
            40,
            "producer 7 repeats sequences in epoch 0: 0 came instead of 10, after the batch at 0",
        )
    ]


def test_behind_a_segment_that_cannot_be_read_producers_may_begin_anywhere(spark, tmp_path):
    history = History(tmp_path).add_whole(4)
    history.path(1).unlink()
    assert [(check, offset) for check, offset, _ in history.problems(spark)] == [("objects", None)]


def test_a_segment_that_retention_removes_meanwhile_is_no_problem(spark, tmp_path):
    history = History(tmp_path).add_whole(3)
    history.path(0).unlink()
    request = history.request()
    assert len(audit(spark, request).problems) == 1

    async def audited_during_retention() -> AuditReport:
        async with planned_audit(request) as planned:
            await asyncio.to_thread(history.remove, 0)
            return await audit_planned(spark, request, planned)

    report = asyncio.run(audited_during_retention())
    assert report.problems == ()
    assert [row.segment_count for row in report.partitions] == [2, 0]


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_history_that_was_rewritten_is_whole(spark, tmp_path, policy):
    """Compaction and erasure take records away, whole batches among them, and are no damage."""

    def key_of(offset: int) -> bytes:
        return b"secret" if offset % 10 < 5 else b"k%d" % (offset % 3)

    def rewritable(base: int) -> bytes:
        records = [Record(0, base, key_of(base + n), b"v") for n in range(5)]
        return build_batch(
            records, base_offset=base, producer_id=7, producer_epoch=0, base_sequence=base
        )

    async def rewrite() -> None:
        configs = {"cleanup.policy": policy, "file.delete.delay.ms": "0"}
        async with tiered_partition(tmp_path, configs=configs) as partition:
            for base in range(0, 80, 20):
                await partition.copy([rewritable(at) for at in range(base, base + 20, 5)])
            if policy == "compact":
                await compact_partition(partition.tier(), is_forced=True)
            else:
                await erase_from_tier(partition.tier(), b"secret")
            assert any(meta.rewrite_epoch for meta in await partition.finished())

    asyncio.run(rewrite())
    stores = {
        "metadata": f"sqlite://{tmp_path}/metadata.db",
        "objects": (tmp_path / "objects").as_uri(),
    }
    report = audit(spark, AuditRequest(**stores))
    assert [one for one in report.problems if one.topic is not None] == []
    assert report.partitions[0].record_count < 80


def test_overlapping_segments_of_two_leaders_tell_a_producer_once(spark, tmp_path):
    history = History(tmp_path).add_whole(2)
    # A new leader had rolled elsewhere: offsets 20 to 60, of which 20 to 40 are copied again.
    history.cluster.add_segment("t", [ten(base) for base in range(20, 60, 10)], leader_epoch=1)
    assert history.problems(spark) == []


def test_a_bucket_is_audited_by_itself(spark, tmp_path):
    history = History(tmp_path).add_whole(3)
    bucket = {"objects": history.cluster.options["objects"], "metadata": None}
    report = audit(spark, AuditRequest(**bucket))
    assert [(row.segment_count, row.record_count) for row in report.partitions] == [(3, 60)]
    history.path(2).write_bytes(b"")
    report = audit(spark, AuditRequest(**bucket))
    assert report.problems


@pytest.mark.slow
def test_the_report_is_a_table_to_which_every_audit_adds(spark, tmp_path):
    history = History(tmp_path / "cluster").add_whole(1)
    history.add(ten(30))
    report = audit(spark, history.request())
    for kind, times in (("parquet", 2), ("json", 1)):
        folder = str(tmp_path / kind)
        for _ in range(times):
            write_report(spark, report, folder, format=kind)
        problems = spark.read.format(kind).load(f"{folder}/problems")
        assert problems.where("check = 'chain' AND audited_at IS NOT NULL").count() == times
        rows = spark.read.format(kind).load(f"{folder}/partitions")
        assert rows.where("partition = 0").select("record_count").distinct().collect()[0][0] == 30


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidelog_cli", "job", "audit"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_command_ends_with_1_where_something_is_wrong(tmp_path):
    history = History(tmp_path).add_whole(2)
    stores = [f"--{name}={url}" for name, url in history.cluster.options.items()]
    history.path(0).unlink()
    done = run(*stores, "--json", "t")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["partitions"][0]["segment_count"] == 2
    assert run(*stores, "absent").returncode == 1
    assert run().returncode == 2
    assert "--compacted" in run("--help").stdout

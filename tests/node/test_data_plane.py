"""What Produce, Fetch and the offset APIs answer, in particular where they refuse."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.alter_replica_log_dirs.v2 import request as alter_dirs_request
from kio.schema.delete_records.v2 import request as delete_request
from kio.schema.describe_log_dirs.v4 import request as log_dirs_request
from kio.schema.describe_quorum.v2 import request as quorum_request
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v9 import request as list_request
from kio.schema.offset_for_leader_epoch.v4 import request as epoch_request
from kio.schema.update_features.v2 import request as features_request
from tidelog_core.records.batch import CompressionType

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient, fetch_body, frame, milliseconds, produce_body


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests here."""
    with NodeProcess(tmp_path_factory.mktemp("data-plane") / "node") as process:
        yield process


@pytest.fixture
def client(node: NodeProcess) -> Iterator[WireClient]:
    with WireClient(node.port) as wire_client:
        yield wire_client


@pytest.fixture
def topic(node: NodeProcess, request: pytest.FixtureRequest) -> str:
    """A new topic of two partitions, named after the test; ``param`` holds its settings."""
    name = request.node.name.replace("[", ".").replace("]", "").replace(" ", "")[:200]
    return create(node, name, **getattr(request, "param", {}))


def create(node: NodeProcess, name: str, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(name, 2, 1, config=config)])[name].result(60)
    return name


def test_offsets_follow_one_another(client: WireClient, topic: str) -> None:
    first = client.produce(topic, batch_of(b"a", b"b"))
    second = client.produce(topic, batch_of(b"c"))
    assert (first.error_code, first.base_offset, first.log_start_offset) == (ErrorCode.none, 0, 0)
    assert first.log_append_time is None
    assert second.base_offset == 2
    fetched = client.fetch(topic, 0)
    assert (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset) == (
        3,
        3,
        0,
    )
    assert fetched.aborted_transactions is None
    assert fetched.preferred_read_replica == -1


def test_the_answer_tells_the_append_time_where_the_topic_stamps(
    node: NodeProcess, client: WireClient
) -> None:
    topic = create(node, "stamped", **{"message.timestamp.type": "LogAppendTime"})
    before = time.time()
    answer = client.produce(topic, batch_of(b"a"))
    assert before - 1 < answer.log_append_time.timestamp() < time.time() + 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda batch: batch[:-1], ErrorCode.invalid_record),
        (lambda _: b"", ErrorCode.invalid_record),
        (lambda _: None, ErrorCode.invalid_record),
        (lambda batch: batch + batch, ErrorCode.invalid_record),
        (lambda batch: batch[:16] + b"\x01" + batch[17:], ErrorCode.invalid_record),
        (lambda batch: batch[:-1] + b"\xff", ErrorCode.corrupt_message),
        (lambda batch: batch[:8] + struct.pack(">i", 5) + batch[12:], ErrorCode.corrupt_message),
    ],
    ids=["cut", "empty", "null", "two", "magic1", "crc", "length"],
)
def test_a_bad_batch_is_refused_and_the_log_stays_as_it_was(
    client: WireClient, topic: str, change: Any, code: ErrorCode
) -> None:
    client.produce(topic, batch_of(b"good"))
    answer = client.produce(topic, change(batch_of(b"bad", b"worse")))
    assert answer.error_code is code
    assert answer.base_offset == -1
    assert answer.error_message
    assert client.produce(topic, batch_of(b"good")).base_offset == 1


def test_zstd_needs_version_7(client: WireClient, topic: str) -> None:
    batch = batch_of(b"a", compression=CompressionType.ZSTD)
    assert client.produce(topic, batch, version=6).error_code is (
        ErrorCode.unsupported_compression_type
    )
    assert client.produce(topic, batch, version=7).error_code is ErrorCode.none


def test_a_batch_over_the_limit_is_refused(node: NodeProcess, client: WireClient) -> None:
    topic = create(node, "limited", **{"max.message.bytes": "200"})
    assert client.produce(topic, batch_of(b"x" * 300)).error_code is ErrorCode.message_too_large
    assert client.produce(topic, batch_of(b"x")).base_offset == 0


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_acks_must_be_0_1_or_all(client: WireClient, topic: str, acks: int) -> None:
    answer = client.produce(topic, batch_of(b"a"), acks=acks)
    assert answer.error_code is ErrorCode.invalid_required_acks
    assert client.produce(topic, batch_of(b"a")).base_offset == 0


def test_acks_0_is_not_answered(client: WireClient, topic: str) -> None:
    client.send(frame(0, 8, 1, produce_body(topic, batch_of(b"a"), acks=0), tags=b""))
    assert client.produce(topic, batch_of(b"b")).base_offset == 1


def test_acks_0_with_an_error_closes_the_connection(client: WireClient, topic: str) -> None:
    client.send(frame(0, 8, 1, produce_body("nowhere", batch_of(b"a"), acks=0), tags=b""))
    assert client.is_closed_by_node()


def test_min_insync_replicas_counts_no_more_than_there_are(
    node: NodeProcess, client: WireClient
) -> None:
    topic = create(node, "needs-two", **{"min.insync.replicas": "2"})
    assert client.produce(topic, batch_of(b"a"), acks=-1).base_offset == 0


def test_an_unknown_topic_or_partition_is_said_so(client: WireClient, topic: str) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    assert client.produce("nowhere", batch_of(b"a")).error_code is unknown
    assert client.produce(topic, batch_of(b"a"), partition=2).error_code is unknown
    assert client.fetch("nowhere", 0).error_code is unknown
    assert client.fetch(topic, 0, partition=-1).error_code is unknown


def test_a_duplicate_of_an_idempotent_producer_is_answered_with_its_first_offset(
    client: WireClient, topic: str
) -> None:
    batch = batch_of(b"a", producer=(7, 0, 0))
    assert client.produce(topic, batch).base_offset == 0
    client.produce(topic, batch_of(b"other"))
    again = client.produce(topic, batch)
    assert (again.error_code, again.base_offset) == (ErrorCode.none, 0)
    gap = batch_of(b"b", producer=(7, 0, 5))
    assert client.produce(topic, gap).error_code is ErrorCode.out_of_order_sequence_number
    assert client.fetch(topic, 0).high_watermark == 2


def test_a_fetch_outside_the_log_is_refused_at_once(client: WireClient, topic: str) -> None:
    client.produce(topic, batch_of(b"a"))
    for offset in (2, -5):
        began = time.monotonic()
        answer = client.fetch(topic, offset, max_wait_ms=120_000)
        assert answer.error_code is ErrorCode.offset_out_of_range
        assert (answer.high_watermark, answer.log_start_offset) == (-1, -1)
        assert time.monotonic() - began < 60


def test_the_first_batch_comes_whole_whatever_the_limits(client: WireClient, topic: str) -> None:
    """Source: KIP-74."""
    batch = batch_of(b"x" * 1000)
    client.produce(topic, batch)
    client.produce(topic, batch)
    for limits in ({"partition_max_bytes": 10}, {"max_bytes": 0}, {"partition_max_bytes": 0}):
        records = client.fetch(topic, 0, **limits).records
        assert len(records) >= len(batch)
        assert len(records) < 2 * len(batch)


def test_a_made_up_session_is_refused(client: WireClient, topic: str) -> None:
    """Source: KIP-227."""
    refused = client.fetch_response(topic, 0, session=(77, 5))
    assert refused.error_code is ErrorCode.fetch_session_id_not_found
    assert (refused.session_id, refused.responses) == (0, ())
    assert client.fetch_response(topic, 0, session=(77, -1)).error_code is ErrorCode.none


def test_leader_epochs_are_checked(client: WireClient, topic: str) -> None:
    """Source: KIP-320."""
    client.produce(topic, batch_of(b"a"))
    assert client.fetch(topic, 0, leader_epoch=0).error_code is ErrorCode.none
    assert client.fetch(topic, 0, leader_epoch=9).error_code is ErrorCode.unknown_leader_epoch


def test_read_committed_gets_a_list_of_aborted_transactions(client: WireClient, topic: str) -> None:
    client.produce(topic, batch_of(b"a"))
    assert client.fetch(topic, 0, isolation_level=1).aborted_transactions == ()
    assert client.fetch(topic, 1, isolation_level=1).aborted_transactions == ()


def test_a_topic_can_be_fetched_by_its_id_only(
    node: NodeProcess, client: WireClient, topic: str
) -> None:
    client.produce(topic, batch_of(b"by id"))
    admin = AdminClient({"bootstrap.servers": node.address})
    uuid = admin.describe_topics(TopicCollection([topic]))[topic].result(60).topic_id
    most, least = uuid.get_most_significant_bits(), uuid.get_least_significant_bits()
    topic_id = UUID(int=((most & (2**64 - 1)) << 64) | (least & (2**64 - 1)))
    for wanted, code in ((topic_id, ErrorCode.none), (UUID(int=5), ErrorCode.unknown_topic_id)):
        partition = by_id_answer(client, wanted)
        assert partition.error_code is code
        if code is ErrorCode.none:
            assert b"by id" in bytes(partition.records)


def by_id_answer(client: WireClient, topic_id: UUID) -> Any:
    from kio.schema.fetch.v16 import request as fetch_request

    request = fetch_request.FetchRequest(
        max_wait=milliseconds(0),
        min_bytes=1,
        topics=(
            fetch_request.FetchTopic(
                topic_id=topic_id,
                partitions=(
                    fetch_request.FetchPartition(
                        partition=0, fetch_offset=0, partition_max_bytes=1000
                    ),
                ),
            ),
        ),
        forgotten_topics_data=(),
    )
    return client.call(request).responses[0].partitions[0]


def list_offset(client: WireClient, topic: str, timestamp: int, **fields: int) -> Any:
    request = list_request.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=(
            list_request.ListOffsetsTopic(
                name=topic,
                partitions=(
                    list_request.ListOffsetsPartition(
                        partition_index=0, timestamp=timestamp, **fields
                    ),
                ),
            ),
        ),
    )
    return client.call(request).topics[0].partitions[0]


def test_offsets_by_name_and_by_time(client: WireClient, topic: str) -> None:
    assert list_offset(client, topic, -3).offset == -1
    before_ms = time.time_ns() // 1_000_000
    client.produce(topic, batch_of(b"a", b"b"))
    time.sleep(0.01)
    between_ms = time.time_ns() // 1_000_000
    client.produce(topic, batch_of(b"c"))
    assert list_offset(client, topic, -1).offset == 3
    assert list_offset(client, topic, -2).offset == 0
    assert list_offset(client, topic, -3).offset == 2
    assert list_offset(client, topic, -4).offset == 0
    assert list_offset(client, topic, -5).offset == -1
    assert list_offset(client, topic, before_ms).offset == 0
    assert list_offset(client, topic, between_ms).offset == 2
    nothing = list_offset(client, topic, between_ms + 60_000)
    assert (nothing.offset, nothing.timestamp, nothing.error_code) == (-1, -1, ErrorCode.none)
    assert list_offset(client, topic, -6).error_code is ErrorCode.unsupported_version
    fenced = list_offset(client, topic, -1, current_leader_epoch=3)
    assert fenced.error_code is ErrorCode.unknown_leader_epoch


def delete_records(client: WireClient, topic: str, offset: int) -> Any:
    request = delete_request.DeleteRecordsRequest(
        timeout=milliseconds(1000),
        topics=(
            delete_request.DeleteRecordsTopic(
                name=topic,
                partitions=(
                    delete_request.DeleteRecordsPartition(partition_index=0, offset=offset),
                ),
            ),
        ),
    )
    return client.call(request).topics[0].partitions[0]


def test_records_are_deleted_up_to_an_offset_and_stay_deleted(
    node: NodeProcess, client: WireClient, topic: str
) -> None:
    for _ in range(5):
        client.produce(topic, batch_of(b"a"))
    deleted = delete_records(client, topic, 3)
    assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.none, 3)
    assert delete_records(client, topic, 1).low_watermark == 3
    assert delete_records(client, topic, 9).error_code is ErrorCode.offset_out_of_range
    assert client.fetch(topic, 2).error_code is ErrorCode.offset_out_of_range
    assert client.fetch(topic, 3).log_start_offset == 3
    node.kill()
    node.start()
    with WireClient(node.port) as again:
        assert list_offset(again, topic, -2).offset == 3
        assert delete_records(again, topic, -1).low_watermark == 5
        assert list_offset(again, topic, -2).offset == 5


def test_log_dirs_tell_sizes(node: NodeProcess, client: WireClient, topic: str) -> None:
    client.produce(topic, batch_of(b"a" * 100))
    request = log_dirs_request.DescribeLogDirsRequest(
        topics=(log_dirs_request.DescribableLogDirTopic(topic=topic, partitions=(0,)),)
    )
    (result,) = client.call(request).results
    assert result.log_dir == str(node.data_dir)
    assert result.total_bytes >= result.usable_bytes > 0
    (partition,) = result.topics[0].partitions
    assert partition.partition_size == len(batch_of(b"a" * 100))
    everything = client.call(log_dirs_request.DescribeLogDirsRequest(topics=None))
    assert topic in {found.name for found in everything.results[0].topics}


def test_offsets_come_with_the_leader_epoch_that_wrote_them(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node") as node:
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        for _ in range(2):
            with WireClient(node.port) as client:
                client.produce("t", batch_of(b"x"))
            node.stop()
            node.start()  # and leads in another epoch
        with WireClient(node.port) as client:
            found = {name: list_offset(client, "t", name) for name in (-1, -2, -3, -4, 0)}
    offsets = {name: (answer.offset, answer.leader_epoch) for name, answer in found.items()}
    assert offsets[-2] == offsets[-4] == offsets[0] == (0, 0)
    assert offsets[-3][1] == offsets[-3][0]
    assert offsets[-1] == (2, 2)


def test_a_leader_epoch_ends_at_the_log_end(client: WireClient, topic: str) -> None:
    client.produce(topic, batch_of(b"a", b"b"))

    def ask(epoch: int, index: int = 0) -> Any:
        request = epoch_request.OffsetForLeaderEpochRequest(
            topics=(
                epoch_request.OffsetForLeaderTopic(
                    topic=topic,
                    partitions=(
                        epoch_request.OffsetForLeaderPartition(partition=index, leader_epoch=epoch),
                    ),
                ),
            )
        )
        return client.call(request).topics[0].partitions[0]

    assert (ask(0).leader_epoch, ask(0).end_offset) == (0, 2)
    assert ask(0, 7).error_code is ErrorCode.unknown_topic_or_partition


def test_flush_messages_1_acknowledges_what_is_on_the_disk(
    node: NodeProcess, client: WireClient
) -> None:
    topic = create(node, "flushed", **{"flush.messages": "1"})
    for offset in range(5):
        assert client.produce(topic, batch_of(b"a")).base_offset == offset
    checkpoint = (node.data_dir / f"{topic}-0" / "recovery-point").read_text()
    assert "\n5\n" in checkpoint


def test_a_deleted_topic_leaves_no_files_and_can_be_made_again(
    node: NodeProcess, client: WireClient, topic: str
) -> None:
    client.produce(topic, batch_of(b"old"))
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.delete_topics([topic])[topic].result(60)
    unknown = client.produce(topic, batch_of(b"lost"))
    assert unknown.error_code is ErrorCode.unknown_topic_or_partition
    assert not (node.data_dir / f"{topic}-0").exists()
    deadline = time.monotonic() + 60
    while list(node.data_dir.glob(f"{topic}-0*")):  # the bytes go in the background
        assert time.monotonic() < deadline
        time.sleep(0.01)
    create(node, topic)
    assert client.produce(topic, batch_of(b"new")).base_offset == 0


def test_a_client_may_not_write_to_a_reserved_topic(node: NodeProcess, client: WireClient) -> None:
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": "g"})
    consumer.subscribe(["__consumer_offsets"])

    def is_there() -> bool:
        consumer.poll(0.05)
        return "__consumer_offsets" in consumer.list_topics(timeout=60).topics

    eventually(is_there, "the topic is created")
    consumer.close()
    answer = client.produce("__consumer_offsets", batch_of(b"a"))
    assert answer.error_code is ErrorCode.invalid_topic_exception


def test_a_fetch_of_a_long_poll_sees_the_topic_go(node: NodeProcess, client: WireClient) -> None:
    topic = create(node, "going")
    client.send(frame(1, 11, 1, fetch_body(topic, 0, max_wait_ms=120_000), tags=b""))
    time.sleep(0.1)
    began = time.monotonic()
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.delete_topics([topic])[topic].result(60)
    assert len(client.receive()) > 0
    assert time.monotonic() - began < 60


def test_replicas_are_moved_to_the_directory_where_they_are(
    node: NodeProcess, client: WireClient, topic: str
) -> None:
    (described,) = client.call(log_dirs_request.DescribeLogDirsRequest(topics=None)).results
    wanted = alter_dirs_request.AlterReplicaLogDirTopic(name=topic, partitions=(0, 999))
    for path, code in (
        (described.log_dir, ErrorCode.none),
        ("/other", ErrorCode.log_dir_not_found),
    ):
        directory = alter_dirs_request.AlterReplicaLogDir(path=path, topics=(wanted,))
        request = alter_dirs_request.AlterReplicaLogDirsRequest(dirs=(directory,))
        (result,) = client.call(request).results
        absent = ErrorCode.unknown_topic_or_partition if code is ErrorCode.none else code
        assert [p.error_code for p in result.partitions] == [code, absent]


def test_nobody_is_a_controller_and_no_feature_changes(client: WireClient) -> None:
    partition = quorum_request.PartitionData(partition_index=0)
    asked = quorum_request.TopicData(topic_name="__cluster_metadata", partitions=(partition,))
    answer = client.call(quorum_request.DescribeQuorumRequest(topics=(asked,)))
    assert answer.error_code is ErrorCode.unsupported_version
    for level, code in ((2, ErrorCode.none), (1, ErrorCode.invalid_update_version)):
        update = features_request.FeatureUpdateKey(
            feature="transaction.version", max_version_level=level, upgrade_type=2
        )
        request = features_request.UpdateFeaturesRequest(feature_updates=(update,))
        assert client.call(request).error_code is code

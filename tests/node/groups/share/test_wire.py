"""ShareFetch and ShareAcknowledge over real sockets, one node."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from tests.support.batches import batch_of
from tests.support.kafka_messages import entity
from tests.support.node_process import NodeProcess
from tests.support.share_member import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    ShareMember,
    acquired,
    make_group,
    partition_of,
    values,
)
from tests.support.wire_client import WireClient

LOCK_MS = 1000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all of these tests; each has topics and groups of its own."""
    config = {
        "group.share.min.record.lock.duration.ms": str(LOCK_MS),
        "group.share.delivery.count.limit": "2",
        "group.share.partition.max.record.locks": "100",
        "offsets.topic.num.partitions": "4",
    }
    with NodeProcess(tmp_path_factory.mktemp("share") / "node", config=config) as process:
        yield process


@pytest.fixture
def topic(node: NodeProcess, request: pytest.FixtureRequest) -> str:
    """A topic with two partitions, named after the test."""
    name = str(request.node.name)[:100].replace("[", "-").replace("]", "")
    create(node, name)
    return name


def create(node: NodeProcess, topic: str, **config: str) -> None:
    """Create a topic of two partitions, and a group for it."""
    admin = AdminClient({"bootstrap.servers": node.address})
    dotted = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, 2, 1, config=dotted)])[topic].result(60)
    make_group(node.port, f"group-of-{topic}", topic)


def configure(node: NodeProcess, group: str, **config: str) -> None:
    """Set settings of a group; it begins at the start of the log."""
    admin = AdminClient({"bootstrap.servers": node.address})
    entries = [
        ConfigEntry(
            f"share.{name.replace('_', '.')}", value, incremental_operation=AlterConfigOpType.SET
        )
        for name, value in {"auto_offset_reset": "earliest", **config}.items()
    ]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(60)


def produce(node: NodeProcess, topic: str, *sizes: int, partition: int = 0) -> None:
    """Append batches of so many records; the values are counted in each batch."""
    with WireClient(node.port) as client:
        for size in sizes:
            batch = batch_of(*(b"%d" % index for index in range(size)))
            assert client.produce(topic, batch, partition=partition).error_code is ErrorCode.none


def member(node: NodeProcess, topic: str, name: str = "a", **options: int) -> ShareMember:
    return ShareMember(node.port, f"group-of-{topic}", name, topic, **options)


@pytest.mark.parametrize("nothing", [{"max_bytes": 0}, {"max_records": 0}])
def test_who_asks_for_nothing_gets_nothing_at_once(
    node: NodeProcess, topic: str, nothing: dict[str, int]
) -> None:
    """Not even one batch, and no record is acquired; acknowledgements are heard all the same."""
    configure(node, f"group-of-{topic}")
    produce(node, topic, 5, 5)
    with member(node, topic) as one, member(node, topic, "b") as other:
        assert acquired(one.fetch(max_records=5)) == [(0, 4, 1)]
        begun = time.monotonic()
        for said in (None, {0: [(0, 4, [ACCEPT])]}):
            answer = one.fetch(said=said, max_wait_ms=120_000, **nothing)
            assert answer.error_code is ErrorCode.none
            if said is None:
                assert answer.responses == ()
            else:
                assert partition_of(answer).acknowledge_error_code == ErrorCode.none.value
                assert partition_of(answer).acquired_records == ()
        assert time.monotonic() - begun < 60
        assert acquired(other.fetch()) == [(5, 9, 1)]


@pytest.mark.parametrize("version", [1, 2])
def test_members_of_a_group_share_a_partitions_records(
    node: NodeProcess, topic: str, version: int
) -> None:
    configure(node, f"group-of-{topic}")
    produce(node, topic, 5, 5, 5)
    with (
        member(node, topic, "a", version=version) as one,
        member(node, topic, "b", version=version) as other,
    ):
        first = one.fetch(max_records=5)
        assert acquired(first) == [(0, 4, 1)]
        assert values(first) == {n: b"%d" % n for n in range(5)}
        assert first.acquisition_lock_timeout.total_seconds() == 30
        second = other.fetch()
        assert acquired(second) == [(5, 14, 1)]
        assert sorted(values(second)) == list(range(5, 15))
        assert one.records() == []
        assert one.acknowledge((0, 4, [ACCEPT])) is ErrorCode.none
        assert other.acknowledge((5, 9, [ACCEPT]), (10, 14, [RELEASE])) is ErrorCode.none
        assert one.records() == [(10, 14, 2)]


def test_acknowledgements_can_come_with_the_next_fetch(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}")
    produce(node, topic, 4)
    with member(node, topic) as one:
        assert one.records() == [(0, 3, 1)]
        answer = one.fetch(said={0: [(0, 3, [ACCEPT, RELEASE, REJECT, GAP])]})
        assert partition_of(answer).acknowledge_error_code == 0
        assert acquired(answer) == [(1, 1, 2)]
        answer = one.fetch(said={0: [(0, 1, [ACCEPT])]})
        assert partition_of(answer).acknowledge_error_code == 0  # 0 was done with already
        answer = one.fetch(said={0: [(3, 3, [ACCEPT])], 1: [(0, 0, [ACCEPT])]})
        assert partition_of(answer, 1).acknowledge_error_code == ErrorCode.invalid_record_state


def test_a_group_begins_at_the_end_unless_told_otherwise(node: NodeProcess, topic: str) -> None:
    produce(node, topic, 3)
    with member(node, topic) as one:
        assert one.records() == []
        produce(node, topic, 2)
        assert one.records() == [(3, 4, 1)]


def test_a_group_can_begin_some_time_ago(node: NodeProcess, topic: str) -> None:
    produce(node, topic, 3)
    configure(node, f"group-of-{topic}", auto_offset_reset="by_duration:PT1H")
    with member(node, topic) as one:
        assert one.records() == [(0, 2, 1)]
    time.sleep(0.01)
    group = f"later-group-of-{topic}"
    make_group(node.port, group, topic)
    configure(node, group, auto_offset_reset="by_duration:PT0.001S")
    with ShareMember(node.port, group, "a", topic) as other:
        assert other.records() == []


def test_a_share_session_is_told_its_partitions_once(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}")
    with member(node, topic) as one:
        first = one.fetch(partitions=(0, 1))
        assert [p.partition_index for t in first.responses for p in t.partitions] == [0, 1]
        assert one.fetch().responses == ()  # nothing is new
        produce(node, topic, 2, partition=1)
        later = one.fetch()
        assert partition_of(later, 0) is None
        assert acquired(later, 1) == [(0, 1, 1)]


def test_share_sessions_refuse_what_does_not_follow(node: NodeProcess, topic: str) -> None:
    with member(node, topic) as one:
        assert one.fetch(epoch=1).error_code is ErrorCode.share_session_not_found
        assert one.acknowledge((0, 0, [ACCEPT]), epoch=-1) is ErrorCode.share_session_not_found
        answer = one.fetch(said={0: [(0, 0, [ACCEPT])]})
        assert answer.error_code is ErrorCode.invalid_request
        assert one.fetch().error_code is ErrorCode.none
        assert one.fetch(epoch=2).error_code is ErrorCode.invalid_share_session_epoch
        assert one.acknowledge((0, 0, [ACCEPT]), epoch=0) is ErrorCode.invalid_share_session_epoch
        assert one.fetch().error_code is ErrorCode.none
        one.epoch = 0
        assert one.fetch().error_code is ErrorCode.none  # anew
        assert one.close_session() is ErrorCode.none
        assert one.fetch(epoch=1).error_code is ErrorCode.share_session_not_found


def test_closing_a_session_gives_back_what_is_acquired(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}")
    produce(node, topic, 3)
    with member(node, topic, "a") as one, member(node, topic, "b") as other:
        assert one.records() == [(0, 2, 1)]
        assert one.acknowledge((0, 0, [ACCEPT]), epoch=-1) is ErrorCode.none
        assert other.records() == [(1, 2, 1)]


def test_a_member_that_hangs_up_gives_back_what_it_has_acquired(
    node: NodeProcess, topic: str
) -> None:
    configure(node, f"group-of-{topic}")
    produce(node, topic, 3)
    with member(node, topic, "b") as other:
        with member(node, topic, "a") as one:
            assert one.records() == [(0, 2, 1)]
            assert other.records() == []
        assert other.records(max_wait_ms=45_000) == [(0, 2, 1)]


def test_acquired_records_come_back_when_their_time_is_up(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}", record_lock_duration_ms=str(LOCK_MS))
    produce(node, topic, 3)
    with member(node, topic, "a") as one, member(node, topic, "b") as other:
        began = time.monotonic()
        assert one.records() == [(0, 2, 1)]
        assert one.acknowledge((0, 0, [RENEW])) is ErrorCode.invalid_request
        assert other.records(max_wait_ms=45_000) == [(0, 2, 2)]
        assert time.monotonic() - began > 0.9 * LOCK_MS / 1000
        assert one.acknowledge((0, 2, [ACCEPT])) is ErrorCode.invalid_record_state
        # Delivered as often as may be: the next deadline ends it.
        assert one.records(max_wait_ms=LOCK_MS + 300) == []
        produce(node, topic, 1)
        assert one.records() == [(3, 3, 1)]


def test_an_acquisition_can_be_renewed(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}", record_lock_duration_ms="4000")
    produce(node, topic, 2, 2)
    with member(node, topic, "a") as one, member(node, topic, "b") as other:
        assert one.records() == [(0, 3, 1)]
        time.sleep(2)  # As far from the first end as the second end will be from it.
        answer = one.fetch(
            said={0: [(2, 3, [RENEW])]}, is_renew_ack=True, max_bytes=0, min_bytes=0, max_records=0
        )
        assert partition_of(answer).acknowledge_error_code == 0
        assert other.records(max_wait_ms=45_000) == [(0, 1, 2)]
        assert one.acknowledge((2, 3, [ACCEPT])) is ErrorCode.none


def test_a_fetch_waits_for_records_and_for_enough_of_them(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}")
    with member(node, topic) as one:
        assert one.records(max_wait_ms=50) == []
        began = time.monotonic()
        later = threading.Timer(0.3, produce, (node, topic, 2))
        later.start()
        assert one.records(max_wait_ms=120_000) == [(0, 1, 1)]
        assert time.monotonic() - began < 60
        later.join()
        produce(node, topic, 1)
        began = time.monotonic()
        assert one.records(max_wait_ms=400, min_bytes=10_000) == [(2, 2, 1)]
        assert time.monotonic() - began > 0.3


def test_a_released_record_ends_another_members_wait(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}")
    produce(node, topic, 2)
    with member(node, topic, "a") as one, member(node, topic, "b") as other:
        assert one.records() == [(0, 1, 1)]
        later = threading.Timer(0.3, one.acknowledge, ((0, 1, [RELEASE]),))
        later.start()
        assert other.records(max_wait_ms=45_000) == [(0, 1, 2)]
        later.join()


def test_the_records_in_flight_of_a_partition_are_limited(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}")
    produce(node, topic, *[10] * 15)
    with member(node, topic, "a") as one, member(node, topic, "b") as other:
        assert one.records(max_records=95) == [(0, 99, 1)]
        assert other.records() == []
        assert one.acknowledge((0, 9, [ACCEPT])) is ErrorCode.none
        assert other.records() == [(100, 109, 1)]


def test_limits_end_at_batches_unless_records_are_counted(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}")
    produce(node, topic, 10, 10)
    with member(node, topic) as one:
        exact = one.fetch(max_records=3, share_acquire_mode=1)
        assert acquired(exact) == [(0, 2, 1)]
        assert sorted(values(exact)) == [0, 1, 2]
        assert one.records(max_records=3) == [(3, 9, 1)]
        assert one.records(max_records=1) == [(10, 19, 1)]


def test_acquired_ranges_are_about_as_large_as_asked_for(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}")
    produce(node, topic, 4, 4, 4)
    with member(node, topic) as one:
        assert one.records(batch_size=5) == [(0, 7, 1), (8, 11, 1)]


def test_only_whole_batches_within_the_bytes_are_acquired(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}")
    produce(node, topic, 5, 5, 5)
    size_bytes = len(batch_of(*(b"%d" % n for n in range(5))))
    with member(node, topic) as one:
        assert one.records(max_bytes=1) == [(0, 4, 1)]  # the first whole, whatever it takes
        assert one.records(max_bytes=size_bytes + 10) == [(5, 9, 1)]


def test_no_partition_is_always_the_last(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}")
    for partition in (0, 1):
        produce(node, topic, *[1] * 6, partition=partition)
    seen = []
    with member(node, topic) as one:
        for _ in range(6):
            answer = one.fetch(partitions=(0, 1), max_records=1)
            seen += [index for index in (0, 1) if acquired(answer, index)]
    assert sorted(seen) == [0, 0, 0, 1, 1, 1]


def test_deleted_records_are_passed_over(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}")
    produce(node, topic, 5, 5)
    with member(node, topic) as one:
        assert one.records(max_records=1) == [(0, 4, 1)]
        admin = AdminClient({"bootstrap.servers": node.address})
        for future in admin.delete_records([TopicPartition(topic, 0, 7)]).values():
            future.result(60)
        assert one.records() == [(7, 9, 1)]
        assert one.acknowledge((0, 4, [RELEASE])) is ErrorCode.none
        assert one.records() == []


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_isolation_decides_whether_aborted_records_are_delivered(
    node: NodeProcess, topic: str, level: str
) -> None:
    group = f"group-of-{topic}"
    configure(node, group, isolation_level=level)
    producer = Producer({"bootstrap.servers": node.address, "transactional.id": topic})
    producer.init_transactions(10)
    for value, ends in ((b"aborted", producer.abort_transaction), (b"kept", None)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(60)
        if ends is not None:
            ends(10)
    with member(node, topic) as one:
        answer = one.fetch()
        is_committed_only = level == "read_committed"
        if is_committed_only:
            # The marker of the abort, which the client tells for a gap.
            assert (values(answer), acquired(answer)) == ({}, [(1, 1, 1)])
        else:
            assert set(values(answer).values()) == {b"aborted", b"kept"}
        waiting = threading.Timer(0.3, producer.commit_transaction, (10,))
        waiting.start()
        answer = one.fetch(max_wait_ms=45_000)
        waiting.join()
        found = [v for v in values(answer).values() if v is not None]
        assert found == ([b"kept"] if is_committed_only else [])


def test_what_is_acknowledged_outlives_the_node(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node") as node:
        create(node, "t")
        configure(node, "group-of-t")
        produce(node, "t", 5, 5)
        with member(node, "t") as one:
            assert one.records() == [(0, 9, 1)]
            assert one.acknowledge((0, 1, [ACCEPT]), (5, 5, [REJECT])) is ErrorCode.none
            node.kill()
        node.start()
        with member(node, "t") as one:
            assert one.records() == [(2, 4, 1), (6, 9, 1)]
            assert one.acknowledge((2, 4, [RELEASE])) is ErrorCode.none
            node.kill()
        node.start()
        with member(node, "t") as one:
            assert one.records() == [(2, 4, 2), (6, 9, 1)]


def test_a_topic_that_is_unknown_or_deleted_is_reported(node: NodeProcess, topic: str) -> None:
    configure(node, f"group-of-{topic}")
    produce(node, topic, 2)
    with member(node, topic) as one:
        assert one.records() == [(0, 1, 1)]
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.delete_topics([topic])[topic].result(60)
        deadline = time.monotonic() + 60
        while partition_of(answer := one.fetch(max_wait_ms=200)) is None:
            assert time.monotonic() < deadline
        assert partition_of(answer).error_code is ErrorCode.unknown_topic_id
        assert one.acknowledge((0, 1, [ACCEPT])) is ErrorCode.unknown_topic_id


def test_a_group_that_does_not_exist_is_given_nothing(node: NodeProcess, topic: str) -> None:
    configure(node, "no-such-group")
    produce(node, topic, 2)
    with ShareMember(node.port, "no-such-group", "a", topic) as one:
        answer = one.fetch()
        assert partition_of(answer).error_code is ErrorCode.unknown_server_error  # as in Kafka
        assert acquired(answer) == []


def test_an_administrator_moves_an_empty_group(node: NodeProcess, topic: str) -> None:
    group = f"group-of-{topic}"
    configure(node, group)
    produce(node, topic, 5, 5)
    with member(node, topic) as one:
        assert one.records() == [(0, 9, 1)]
        assert one.acknowledge((0, 9, [ACCEPT])) is ErrorCode.none
        # Its session goes on: whoever moves a group cannot know of it.
        admin = entity(
            load_request_schema(91, 0),
            {
                "group_id": group,
                "topics": [
                    {
                        "topic_name": topic,
                        "partitions": [{"partition_index": 0, "start_offset": 3}],
                    }
                ],
            },
        )
        with WireClient(node.port) as client:
            moved = client.call(admin).responses[0].partitions[0]
        assert moved.error_code is ErrorCode.none
        assert one.records(max_wait_ms=45_000) == [(3, 9, 1)]

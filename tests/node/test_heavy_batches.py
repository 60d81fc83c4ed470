"""Batches that take long to look into: they wait for another process, and nobody for them."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v7 import request as list_request
from tidelog_core.records.batch import (
    CompressionType,
    Record,
    build_batch,
    decode_records,
    iter_headers,
    parse_header,
)

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient, encode, frame, produce_body

HEAVY_RECORDS = 20_000  # ten times what is looked at on the spot
VERY_HEAVY_RECORDS = 100_000
WORKER = "inspection.worker"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("heavy") / "node") as running:
        admin = AdminClient({"bootstrap.servers": running.address})
        compact = {"cleanup.policy": "compact"}
        topics = [
            NewTopic("compacted", 1, 1, config=compact),
            NewTopic("ordered", 1, 1, config=compact),
            NewTopic("zipped", 1, 1, config={"compression.type": "gzip"}),
            NewTopic("plain", 1, 1),
            NewTopic("timed", 1, 1),
            NewTopic("twice", 1, 1, config=compact),
        ]
        for created in admin.create_topics(topics).values():
            created.result(60)
        yield running


@contextmanager
def client_of(node: NodeProcess, *, host: str = "127.0.0.1") -> Iterator[WireClient]:
    with WireClient(node.port, host=host) as client:
        client.socket.settimeout(60)
        yield client


def records_of(count: int, *, key: bytes | None = b"k") -> list[Record]:
    now_ms = time.time_ns() // 1_000_000
    return [Record(offset, now_ms, key, b"", ()) for offset in range(count)]


def heavy(count: int = HEAVY_RECORDS, **fields: Any) -> bytes:
    return bytes(build_batch(records_of(count), compression=CompressionType.ZSTD, **fields))


def workers_of(node: NodeProcess) -> list[int]:
    """Return the processes that look into batches for the node."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == node.pid and WORKER in (path / "cmdline").read_text():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def send_produce(client: WireClient, topic: str, batch: bytes, acks: int = 1) -> None:
    client.correlation_id += 1
    body = produce_body(topic, batch, acks=acks)
    client.send(frame(0, 8, client.correlation_id, body, tags=b""))


def take_answers(client: WireClient, count: int) -> list[tuple[ErrorCode, int]]:
    """Return error and base offset of the last requests' answers, in their order."""
    last, answers = client.correlation_id, []
    for client.correlation_id in range(last - count + 1, last + 1):
        (topic,) = client._response(0, 8, is_flexible=False).responses
        (result,) = topic.partition_responses
        answers.append((ErrorCode(result.error_code), int(result.base_offset)))
    return answers


def answered_before(sender: WireClient, other: WireClient) -> int:
    """Return how often another client is answered before ``sender`` is."""
    answered = 0
    sender.socket.setblocking(False)
    while True:
        try:
            sender.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            assert other.produce("plain", batch_of(b"x")).error_code is ErrorCode.none
            answered += 1
        else:
            sender.socket.settimeout(60)
            return answered


def test_others_are_answered_while_a_heavy_batch_is_looked_into(node: NodeProcess) -> None:
    with client_of(node) as sender, client_of(node) as other:
        before = node.rss_bytes()
        send_produce(sender, "compacted", heavy(VERY_HEAVY_RECORDS))
        assert answered_before(sender, other) > 5
        assert take_answers(sender, 1)[0][0] is ErrorCode.none
        # As objects the records would take over 20 MB.
        assert node.rss_bytes() - before < 12_000_000


def test_a_host_with_many_heavy_batches_is_in_nobody_elses_way(node: NodeProcess) -> None:
    batch = heavy(VERY_HEAVY_RECORDS // 2)
    with ExitStack() as stack:
        many = [stack.enter_context(client_of(node)) for _ in range(4)]
        other = stack.enter_context(client_of(node, host="127.0.0.2"))
        for client in (*many, other):
            send_produce(client, "compacted", batch)
        ((_, offset_of_other),) = take_answers(other, 1)
        offsets = [offset for client in many for _, offset in take_answers(client, 1)]
    assert sum(offset < offset_of_other for offset in offsets) <= 2


def test_a_clients_batches_stay_in_order_behind_one_that_is_looked_into(node: NodeProcess) -> None:
    """Of an idempotent producer that does not wait: none is out of its sequence."""
    with client_of(node) as client:
        sequence = 0
        counts = (1, HEAVY_RECORDS, 1, 1, HEAVY_RECORDS, 1)
        for count in counts:
            records = records_of(count)
            batch = bytes(
                build_batch(
                    records,
                    compression=CompressionType.ZSTD,
                    producer_id=7,
                    producer_epoch=0,
                    base_sequence=sequence,
                )
            )
            send_produce(client, "ordered", batch)
            sequence += count
        answers = take_answers(client, len(counts))
        expected, offset = [], 0
        for count in counts:
            expected.append((ErrorCode.none, offset))
            offset += count
        assert answers == expected
        # The same once more: a batch that was looked into is known again.
        send_produce(
            client,
            "ordered",
            heavy(HEAVY_RECORDS, producer_id=7, producer_epoch=0, base_sequence=HEAVY_RECORDS + 3),
        )
        assert take_answers(client, 1) == [(ErrorCode.none, HEAVY_RECORDS + 3)]


@pytest.mark.parametrize("count", [1, HEAVY_RECORDS])
def test_two_batches_for_one_partition_in_one_request_are_both_stored(
    node: NodeProcess, count: int
) -> None:
    batches = [
        bytes(build_batch(records_of(count, key=key), compression=CompressionType.ZSTD))
        for key in (b"one", b"two")
    ]
    partitions = b"".join(struct.pack(">ii", 0, len(batch)) + batch for batch in batches)
    head = struct.pack(">hhiih", -1, 1, 1000, 1, len(b"twice")) + b"twice"
    with client_of(node) as client:
        client.correlation_id += 1
        body = head + struct.pack(">i", 2) + partitions
        client.send(frame(0, 8, client.correlation_id, body, tags=b""))
        (topic,) = client._response(0, 8, is_flexible=False).responses
        first, second = topic.partition_responses
        assert (first.error_code, second.error_code) == (ErrorCode.none, ErrorCode.none)
        assert second.base_offset == first.base_offset + count
        fetched = bytes(client.fetch("twice", first.base_offset).records)
    keys = [decode_records(fetched, position)[0].key for position in iter_positions(fetched)]
    assert keys == [b"one", b"two"]


def test_a_record_without_a_key_is_named_however_far_behind(node: NodeProcess) -> None:
    records = records_of(HEAVY_RECORDS)
    for index in (15_000, 19_999):
        records[index] = records[index]._replace(key=None)
    batch = bytes(build_batch(records, compression=CompressionType.LZ4))
    with client_of(node) as client:
        answer = client.produce("compacted", batch)
    assert answer.error_code is ErrorCode.invalid_record
    assert [error.batch_index for error in answer.record_errors] == [15_000, 19_999]


def test_more_records_than_a_compacted_topic_takes_are_refused_by_the_header(
    node: NodeProcess,
) -> None:
    """With the error that makes clients split a batch."""
    batch = bytearray(heavy(1_000))
    struct.pack_into(">i", batch, 57, 1_000_001)
    struct.pack_into(">i", batch, 23, 1_000_000)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    with client_of(node) as client:
        assert client.produce("compacted", bytes(batch)).error_code is ErrorCode.message_too_large


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.ZSTD])
def test_a_batch_that_grows_without_bound_takes_no_memory_of_the_node(
    node: NodeProcess, codec: CompressionType
) -> None:
    value = bytes(200_000_000)
    batch = bytes(
        build_batch([Record(0, time.time_ns() // 1_000_000, b"k", value, ())], compression=codec)
    )
    assert len(batch) < 1_000_000
    with client_of(node) as client:
        assert client.produce("plain", batch_of(b"x")).error_code is ErrorCode.none
        before = node.rss_bytes()
        assert client.produce("compacted", batch).error_code is ErrorCode.invalid_record
        assert node.rss_bytes() - before < 10_000_000


CLAIM = b"\xff\xff\xff\xff\x0f"  # a block of snappy that says it has 4 GiB
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(CLAIM) + 2)


@pytest.mark.parametrize("framing", [b"", XERIAL], ids=["raw", "of Java"])
def test_a_block_that_says_how_large_it_is_takes_no_memory_of_the_node(
    node: NodeProcess, framing: bytes
) -> None:
    """CVE-2023-34455: the decoder allocated what the size said."""
    batch = bytearray(batch_of(b"x"))[:61] + framing + CLAIM + b"\0a"
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, CompressionType.SNAPPY)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    with client_of(node) as client:
        assert client.produce("plain", batch_of(b"x")).error_code is ErrorCode.none
        before = node.rss_bytes()
        assert client.produce("compacted", bytes(batch)).error_code in (
            ErrorCode.invalid_record,
            ErrorCode.corrupt_message,
        )
        assert node.rss_bytes() - before < 10_000_000


def test_a_heavy_batch_without_acks_is_stored_and_a_wrong_one_closes(node: NodeProcess) -> None:
    with client_of(node) as client:
        before = client.produce("compacted", a_batch_with_key()).base_offset
        send_produce(client, "compacted", heavy(), acks=0)
        after = client.produce("compacted", a_batch_with_key()).base_offset
        assert after == before + 1 + HEAVY_RECORDS
        keyless = build_batch(records_of(HEAVY_RECORDS, key=None), compression=CompressionType.ZSTD)
        send_produce(client, "compacted", bytes(keyless), acks=0)
        assert client.is_closed_by_node()


def test_nothing_is_carried_out_behind_a_heavy_batch_without_acks_that_failed(
    node: NodeProcess,
) -> None:
    with client_of(node) as sender, client_of(node) as other:
        before = other.produce("plain", batch_of(b"x")).base_offset
        keyless = build_batch(records_of(HEAVY_RECORDS, key=None), compression=CompressionType.ZSTD)
        wrong = frame(0, 8, 1, produce_body("compacted", bytes(keyless), acks=0), tags=b"")
        behind = frame(0, 8, 2, produce_body("plain", batch_of(b"behind")), tags=b"")
        sender.send(wrong + behind)  # The node has both when it finds the first one wrong.
        assert sender.is_closed_by_node()
        assert other.produce("plain", batch_of(b"x")).base_offset == before + 1


def a_batch_with_key() -> bytes:
    return bytes(build_batch(records_of(1)))


def test_a_large_batch_gets_the_topics_codec_elsewhere(node: NodeProcess) -> None:
    values = [os.urandom(100).hex().encode() for _ in range(3_000)]
    with client_of(node) as client:
        answer = client.produce("zipped", batch_of(*values))
        assert answer.error_code is ErrorCode.none
        fetched = bytes(client.fetch("zipped", answer.base_offset).records)
    (header,) = (parse_header(fetched, position) for position in iter_positions(fetched))
    assert header.compression is CompressionType.GZIP
    assert [record.value for record in decode_records(fetched)] == values


def iter_positions(batches: bytes) -> list[int]:
    return [position for position, _ in iter_headers(batches)]


def test_others_are_answered_while_a_time_is_looked_up_in_a_heavy_batch(node: NodeProcess) -> None:
    base_ms = time.time_ns() // 1_000_000 - VERY_HEAVY_RECORDS
    records = [Record(n, base_ms + n, None, b"", ()) for n in range(VERY_HEAVY_RECORDS)]
    batch = bytes(build_batch(records, compression=CompressionType.ZSTD))
    last = VERY_HEAVY_RECORDS - 1
    wanted = list_request.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=base_ms + last
    )
    request = list_request.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=(list_request.ListOffsetsTopic(name="timed", partitions=(wanted,)),),
    )
    with client_of(node) as sender, client_of(node) as other:
        assert sender.produce("timed", batch).error_code is ErrorCode.none
        sender.correlation_id += 1
        body = encode(list_request.ListOffsetsRequest, request)
        sender.send(frame(2, 7, sender.correlation_id, b"\x00" + body, tags=b""))
        assert answered_before(sender, other) > 5
        (topic,) = sender._response(2, 7, is_flexible=True).topics
        (found,) = topic.partitions
        assert (found.error_code, found.offset) == (ErrorCode.none, last)


def test_a_process_that_dies_is_started_again(node: NodeProcess) -> None:
    with client_of(node) as client:
        assert client.produce("compacted", heavy()).error_code is ErrorCode.none
        (worker,) = workers_of(node)
        os.kill(worker, signal.SIGKILL)
        assert client.produce("compacted", heavy()).error_code is ErrorCode.none
        assert worker not in workers_of(node)

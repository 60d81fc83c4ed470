"""What a broker must not store, and what it says of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog_core.records.batch import CompressionType
from tidelog_core.wire_messages import write_message

from tests.kafka import batches
from tests.kafka.batches import NOW_MS, edited, good_batch
from tests.kafka.compare import compared
from tests.support.diskless_default import replicated_only
from tests.support.kafka_messages import request
from tests.support.peer import CLOSED, TIMEOUT_SECONDS, Peer
from tests.support.waiting import eventually

Observations = Iterator[tuple[str, Any]]
HOUR_MS = 3_600_000


def offered(peer: Peer, topic: str, offers: dict[str, bytes | None], **fields: Any) -> Observations:
    """Produce each of ``offers``; one that is refused may not change the log."""
    for label, records in offers.items():
        before = peer.end_offset(topic)
        answer = peer.produce(topic, records, **fields)
        after = peer.end_offset(topic)
        assert before is not None
        assert after is not None
        yield label, {"answer": answer, "appended": after - before}
        is_refused = not isinstance(answer, dict) or answer["error_code"] != "none"
        assert after == before or not is_refused, f"{label} was refused and stored"


@compared
def test_batches_whose_bytes_are_wrong_are_refused(peer: Peer) -> Observations:
    peer.create_topic("bad-bytes")
    good = good_batch(b"one", b"two")
    yield "good", peer.produce("bad-bytes", good)
    bad = {
        "crc": batches.with_bad_crc(good),
        "value changed": good[:-3] + b"x" + good[-2:],
        "truncated by one": good[:-1],
        "header only": good[:61],
        "half a header": good[:30],
        "a size only": good[:12],
        "one byte": good[:1],
        "length negative": edited(good, batch_length=-1),
        "length zero": edited(good, batch_length=0),
        "length too small": edited(good, batch_length=48),
        "length beyond the end": edited(good, batch_length=len(good)),
        "all zero": bytes(100),
    }
    yield from offered(peer, "bad-bytes", bad)
    yield "records", peer.fetch("bad-bytes", 0)


@compared
def test_a_batch_with_part_of_another_is_refused(peer: Peer) -> Observations:
    peer.create_topic("trailing-bytes")
    good = good_batch(b"one", b"two")
    bad = {"trailing bytes": good + b"\x00\x00\x00", "trailing header": good + good[:40]}
    yield from offered(peer, "trailing-bytes", bad)


@compared
def test_other_message_formats_are_refused(peer: Peer) -> Observations:
    peer.create_topic("bad-magic")
    good = good_batch()
    bad = {f"magic {magic}": edited(good, magic=magic) for magic in (-1, 0, 1, 3, 127)}
    bad["a message of format 0"] = batches.legacy_message(0)
    bad["a message of format 1"] = batches.legacy_message(1)
    yield from offered(peer, "bad-magic", bad)


@compared
def test_counts_that_do_not_fit_are_refused(peer: Peer) -> Observations:
    peer.create_topic("bad-counts")
    good = good_batch(b"one", b"two")
    bad = {
        "count one more": edited(good, record_count=3),
        "count one less": edited(good, record_count=1),
        "count zero": edited(good, record_count=0),
        "count negative": edited(good, record_count=-1),
        "last offset delta one more": edited(good, last_offset_delta=2),
        "last offset delta one less": edited(good, last_offset_delta=0),
        "last offset delta negative": edited(good, last_offset_delta=-1),
        "count and delta negative": edited(good, record_count=0, last_offset_delta=-1),
        "base offset": edited(good, base_offset=7),
        "negative base offset": edited(good, base_offset=-1),
    }
    yield from offered(peer, "bad-counts", bad)


@compared
def test_counts_that_the_records_belie(peer: Peer) -> Observations:
    peer.create_topic("false-counts")
    peer.create_topic("false-counts-compacted", cleanup_policy="compact")
    good = good_batch(b"one", b"two", key=b"key")
    bad = {
        "one more": edited(good, record_count=3, last_offset_delta=2),
        "one less": edited(good, record_count=1, last_offset_delta=0),
        "rubbish": batches.with_payload(good, b"\xff" * 20),
        "not gzip": edited(good, attributes=1),
    }
    yield from offered(peer, "false-counts-compacted", bad)
    yield "plain topic", dict(offered(peer, "false-counts", bad))


@replicated_only("it names leader epochs, which begin with another one")
@compared
def test_a_leader_epoch_in_a_batch_means_nothing(peer: Peer) -> Observations:
    peer.create_topic("epoch-in-batch")
    yield "epoch", peer.produce("epoch-in-batch", edited(good_batch(), leader_epoch=9))
    yield "stored", peer.fetch("epoch-in-batch", 0)


@compared
def test_two_batches_for_one_partition_are_refused(peer: Peer) -> Observations:
    peer.create_topic("two-batches")
    yield from offered(peer, "two-batches", {"two": good_batch() + good_batch()})


@compared
def test_no_records_at_all_are_refused(peer: Peer) -> Observations:
    peer.create_topic("no-records")
    bad = {"empty": b"", "batch without records": batches.without_records()}
    yield from offered(peer, "no-records", bad)
    for version in (3, 5, 8):
        yield f"empty in version {version}", peer.produce("no-records", b"", version=version)
    peer.timeout = 0.5
    for version in (3, 9):
        yield f"null in version {version}", peer.produce("no-records", None, version=version)
    peer.timeout = TIMEOUT_SECONDS
    yield "end", peer.end_offset("no-records")


@compared
def test_codecs_that_do_not_exist_are_refused(peer: Peer) -> Observations:
    peer.create_topic("bad-codecs")
    bad = {f"codec {codec}": edited(good_batch(), attributes=codec) for codec in (5, 6, 7)}
    yield from offered(peer, "bad-codecs", bad)


@compared
def test_payloads_that_do_not_decompress(peer: Peer) -> Observations:
    peer.create_topic("bad-payloads", cleanup_policy="compact")
    bad = {
        f"codec {codec}": edited(good_batch(b"v", key=b"k"), attributes=codec)
        for codec in (1, 2, 3, 4)
    }
    bad["record cut"] = batches.with_payload(good_batch(b"v", key=b"k"), b"\x10\x00\x00")
    bad["rubbish"] = batches.with_payload(good_batch(b"v", key=b"k"), b"\xff" * 20)
    yield from offered(peer, "bad-payloads", bad)


@compared
def test_zstd_needs_a_version_that_knows_it(peer: Peer) -> Observations:
    peer.create_topic("old-zstd")
    zstd = good_batch(compression=CompressionType.ZSTD)
    for version in (3, 6):
        label = f"version {version}"
        yield from offered(peer, "old-zstd", {label: zstd}, version=version)
    yield "version 7", peer.produce("old-zstd", zstd, version=7)


@compared
def test_a_topics_own_codec_is_used(peer: Peer) -> Observations:
    peer.create_topic("own-codec", compression_type="gzip")
    for codec in CompressionType:
        yield codec.name, peer.produce("own-codec", good_batch(b"v" * 100, compression=codec))
    yield "null key", peer.produce("own-codec", good_batch(b"a", b"b", key=None))
    yield "end", peer.end_offset("own-codec")


@compared
def test_batches_over_the_limit_are_refused(peer: Peer) -> Observations:
    peer.create_topic("too-large", max_message_bytes="1000")
    peer.create_topic("default-limit")
    overhead = len(good_batch(b"x" * 900)) - 900
    yield "as large as allowed", peer.produce("too-large", good_batch(b"x" * (1000 - overhead)))
    bad = {
        "one byte more": good_batch(b"x" * (1001 - overhead)),
        "much more": good_batch(b"x" * 100_000),
    }
    yield from offered(peer, "too-large", bad)
    yield from offered(peer, "default-limit", {"over the default": good_batch(b"x" * 1_100_000)})


@compared
def test_batches_over_a_segment_are_refused(peer: Peer) -> Observations:
    peer.create_topic("small-segments", segment_bytes="1048576", max_message_bytes="3000000")
    yield from offered(peer, "small-segments", {"over a segment": good_batch(b"x" * 1_100_000)})


@compared
def test_what_only_coordinators_write_is_refused(peer: Peer) -> Observations:
    peer.create_topic("not-yours")
    bad = {
        "control": batches.control_batch(good_batch()),
        "control and transactional": edited(good_batch(producer=(1, 0, 0)), attributes=0x30),
    }
    yield from offered(peer, "not-yours", bad)


@compared
def test_a_transactional_batch_without_an_id_is_refused(peer: Peer) -> Observations:
    peer.create_topic("transactional")
    bad = {
        "bit": good_batch(producer=(5, 0, 0), is_transactional=True),
        "bit without producer": edited(good_batch(), attributes=0x10),
    }
    yield from offered(peer, "transactional", bad)


@compared
def test_a_transactional_batch_without_a_transaction_is_refused(peer: Peer) -> Observations:
    peer.create_topic("no-transaction")
    peer.await_coordinator("never-begun", key_type=1)
    records = good_batch(producer=(5, 0, 0), is_transactional=True)
    for version in (9, 12):
        answer = peer.until(
            lambda version=version: peer.produce(
                "no-transaction", records, version=version, transactional_id="never-begun"
            ),
            # The coordinator is still loading.
            lambda answer: answer["error_code"] != "not_enough_replicas",
        )
        yield f"version {version}", answer
    yield "end", peer.end_offset("no-transaction")
    yield (
        "plain records with a transactional id",
        peer.produce("no-transaction", good_batch(), transactional_id="never-begun"),
    )


@compared
def test_idempotent_producers_are_held_to_their_sequence(peer: Peer) -> Observations:
    peer.create_topic("sequences")
    topic = "sequences"
    producer = peer.init_producer_id()
    yield "id", producer
    pid = producer["producer_id"]
    yield "first", peer.produce(topic, good_batch(b"0", b"1", producer=(pid, 0, 0)))
    yield "second", peer.produce(topic, good_batch(b"2", b"3", producer=(pid, 0, 2)))
    yield (
        "duplicate of the second",
        peer.produce(topic, good_batch(b"2", b"3", producer=(pid, 0, 2))),
    )
    yield (
        "duplicate of the first",
        peer.produce(topic, good_batch(b"0", b"1", producer=(pid, 0, 0))),
    )
    bad = {
        "gap": good_batch(b"5", producer=(pid, 0, 5)),
        "overlap": good_batch(b"3", producer=(pid, 0, 3)),
        "part of the first": good_batch(b"0", producer=(pid, 0, 0)),
        "negative sequence": good_batch(b"x", producer=(pid, 0, -1)),
        "negative epoch": good_batch(b"x", producer=(pid, -1, 4)),
        "new epoch, late sequence": good_batch(b"x", producer=(pid, 1, 4)),
        "negative id with a sequence": good_batch(b"x", producer=(-2, 0, 4)),
    }
    yield from offered(peer, topic, bad)
    for sequence in range(4, 10):
        peer.produce(topic, good_batch(b"x", producer=(pid, 0, sequence)))
    yield from offered(peer, topic, {"old duplicate": good_batch(b"2", b"3", producer=(pid, 0, 2))})
    yield "new epoch", peer.produce(topic, good_batch(b"0", producer=(pid, 1, 0)))
    yield from offered(peer, topic, {"stale epoch": good_batch(b"x", producer=(pid, 0, 10))})
    yield "end", peer.end_offset(topic)


@compared
def test_a_producer_that_the_broker_does_not_know_may_begin_anywhere(peer: Peer) -> Observations:
    peer.create_topic("unknown-producer")
    yield "any sequence", peer.produce("unknown-producer", good_batch(producer=(900_000, 3, 17)))
    yield "wraps", peer.produce("unknown-producer", good_batch(producer=(900_001, 0, 2**31 - 1)))
    yield "wrapped", peer.produce("unknown-producer", good_batch(producer=(900_001, 0, 0)))


@compared
def test_acks_other_than_three_values_are_refused(peer: Peer) -> Observations:
    peer.create_topic("bad-acks")
    for acks in (2, -2, 32_767):
        yield from offered(peer, "bad-acks", {f"acks {acks}": good_batch()}, acks=acks)
    yield "acks 1", peer.produce("bad-acks", good_batch(), acks=1)


@compared
def test_without_acks_an_error_closes_the_connection(peer: Peer) -> Observations:
    peer.create_topic("no-acks")
    for label, records in (("good", good_batch()), ("bad", batches.with_bad_crc(good_batch()))):
        frame = _produce_frame(peer, "no-acks", records)
        peer.send(frame)
        peer.send(frame)
        # An answer to what comes after shows that the connection is open.
        try:
            answer = peer.call("api_versions", 0)
        except ConnectionError:
            answer = CLOSED
        yield label, answer if answer == CLOSED else "open"
        peer.close()
    # Nobody says when they may be read.
    eventually(lambda: peer.end_offset("no-acks") >= 2)
    yield "end", peer.end_offset("no-acks")


def _produce_frame(peer: Peer, topic: str, records: bytes) -> bytes:
    entity = request(
        "produce",
        9,
        {
            "transactional_id": None,
            "acks": 0,
            "timeout": 1000,
            "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": records}]}],
        },
    )
    return peer.frame(0, 9, write_message(type(entity), entity), is_flexible=True)


@compared
def test_topics_that_are_not_there(peer: Peer) -> Observations:
    peer.create_topic("two-partitions", partitions=2)
    for version in (3, 8, 9, 11, 12):
        yield f"topic, {version}", peer.produce("not-there", good_batch(), version=version)
        yield (
            f"partition, {version}",
            peer.produce("two-partitions", good_batch(), partition=2, version=version),
        )
        yield (
            f"negative partition, {version}",
            peer.produce("two-partitions", good_batch(), partition=-1, version=version),
        )
    yield "by id", peer.produce("not-there", good_batch(), version=13)
    yield "partition by id", peer.produce("two-partitions", good_batch(), partition=2, version=13)
    yield "invalid name", peer.produce("a/b", good_batch())
    yield "empty name", peer.produce("", good_batch())
    found = peer.call(
        "metadata", 12, topics=[{"name": "not-there"}], allow_auto_topic_creation=False
    )
    yield "not created", found["topics"]


@compared
def test_internal_topics_are_not_for_clients_to_write(peer: Peer) -> Observations:
    peer.call("find_coordinator", 3, key="any", key_type=0)
    peer.await_topic("__consumer_offsets", partitions=4)
    yield "group offsets", peer.produce("__consumer_offsets", good_batch(b"v", key=b"k"))


@compared
def test_one_partition_of_many_that_is_wrong_does_not_fail_the_rest(peer: Peer) -> Observations:
    peer.create_topic("some-wrong", partitions=3)
    answer = peer.call(
        "produce",
        9,
        transactional_id=None,
        acks=-1,
        timeout=5000,
        topic_data=[
            {
                "name": "some-wrong",
                "partition_data": [
                    {"index": 0, "records": good_batch()},
                    {"index": 1, "records": batches.with_bad_crc(good_batch())},
                    {"index": 2, "records": good_batch(b"a", b"b")},
                ],
            },
            {"name": "some-missing", "partition_data": [{"index": 0, "records": good_batch()}]},
        ],
    )
    yield "answer", answer
    yield "ends", [peer.end_offset("some-wrong", index) for index in range(3)]


@compared
def test_a_partition_named_twice(peer: Peer) -> Observations:
    peer.create_topic("named-twice")
    part = {"index": 0, "records": good_batch()}
    yield (
        "answer",
        peer.call(
            "produce",
            9,
            transactional_id=None,
            acks=-1,
            timeout=5000,
            topic_data=[{"name": "named-twice", "partition_data": [part, part]}],
        ),
    )


@compared
def test_timestamps_too_far_from_the_clock_are_refused(peer: Peer) -> Observations:
    peer.create_topic("far-times")
    peer.create_topic("near-times", message_timestamp_before_max_ms=str(HOUR_MS))
    peer.create_topic("false-times")
    false = edited(good_batch(), max_timestamp=NOW_MS + 2 * HOUR_MS)
    yield from offered(peer, "false-times", {"only the header is ahead": false})
    bad = {
        "two hours ahead": good_batch(timestamp_ms=NOW_MS + 2 * HOUR_MS),
        "far future": good_batch(timestamp_ms=2**62),
    }
    yield from offered(peer, "far-times", bad)
    yield "far past", peer.produce("far-times", good_batch(timestamp_ms=0))
    yield (
        "half an hour ahead",
        peer.produce("far-times", good_batch(timestamp_ms=NOW_MS + HOUR_MS // 2)),
    )
    yield (
        "no timestamp",
        peer.produce("far-times", edited(good_batch(), base_timestamp=-1, max_timestamp=-1)),
    )
    yield from offered(
        peer, "near-times", {"two hours ago": good_batch(timestamp_ms=NOW_MS - 2 * HOUR_MS)}
    )


@compared
def test_times_that_the_broker_sets_are_not_for_clients_to_set(peer: Peer) -> Observations:
    peer.create_topic("broker-time", message_timestamp_type="LogAppendTime")
    peer.create_topic("client-time")
    stamped = edited(good_batch(), attributes=0x08)
    yield from offered(peer, "client-time", {"stamped by a client": stamped})
    yield "any time is taken", peer.produce("broker-time", good_batch(timestamp_ms=2**62))
    yield "stamped by a client, broker's time", peer.produce("broker-time", stamped)


@compared
def test_compacted_topics_need_keys(peer: Peer) -> Observations:
    peer.create_topic("compacted", cleanup_policy="compact")
    bad = {
        "no key": good_batch(),
        "no key, zstd": good_batch(compression=CompressionType.ZSTD),
        "no key, three records": good_batch(b"a", b"b", b"c"),
    }
    yield from offered(peer, "compacted", bad)
    yield from offered(peer, "compacted", {"version 7": good_batch()}, version=7)
    yield "key", peer.produce("compacted", good_batch(key=b"k"))
    yield "tombstone", peer.produce("compacted", good_batch(None, key=b"k"))

"""Produce requests that wait to be appended: how many may, for what, and what changes meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from tidelog_core.config import TopicConfig
from tidelog_core.log.append_checks import check_produced
from tidelog_core.metadata.records import put
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import CompressionType, Record, build_batch
from tidelog_node.answers import HeldReply
from tidelog_node.handlers.produce import waits as produce_waits
from tidelog_node.handlers.produce.handler import ProduceHandler
from tidelog_node.transactions.produce_gate import ProduceGate
from tidelog_node.wire.produce import ProduceRequest

from tests.node.replication.led_node import PRODUCE_VERSION, TOPIC, LedNode, _answer, led_node
from tests.support.request_contexts import context_of

HEAVY_RECORDS = 5_000
VERY_HEAVY_RECORDS = 100_000
NOW_MS = time.time_ns() // 1_000_000


def send(node: LedNode, *, key: bytes | None = b"k", acks: int = 1) -> Any:
    records = [Record(offset, 1_000, key, b"", ()) for offset in range(HEAVY_RECORDS)]
    batch = memoryview(bytearray(build_batch(records, compression=CompressionType.ZSTD)))
    request = ProduceRequest(None, acks, 30_000, [(TOPIC.encode(), [(0, batch)])])
    return node.produce.handle(request, context_of(PRODUCE_VERSION, api_key=0))


class Coordinator:
    """Confirms every batch, once ``before`` has been waited for."""

    def __init__(self, before: Callable[[], Awaitable[None]]) -> None:
        self.before = before

    async def get(self) -> Any:
        return self

    async def ask(
        self, _: str, __: int, ___: int, partitions: Collection[TopicPartition], *, adds: bool
    ) -> dict[TopicPartition, ErrorCode]:
        del adds
        await self.before()
        return dict.fromkeys(partitions, ErrorCode.none)


async def nothing() -> None:
    pass


def transactional_handler(
    node: LedNode, before: Callable[[], Awaitable[None]] = nothing
) -> ProduceHandler:
    coordinator: Any = Coordinator(before)
    return ProduceHandler(
        node.context,
        replicas=node.replicas,
        flusher=node.flusher,
        inspector=node.inspector,
        gate=ProduceGate(coordinator.get),
    )


def transactional_batch(count: int, *, key: bytes | None = b"k") -> memoryview:
    records = [Record(offset, NOW_MS, key, b"", ()) for offset in range(count)]
    batch = build_batch(
        records,
        compression=CompressionType.ZSTD,
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    return memoryview(bytearray(batch))


async def send_transactional(handler: ProduceHandler, batch: memoryview) -> Any:
    request = ProduceRequest(b"txn", -1, 30_000, [(TOPIC.encode(), [(0, batch)])])
    answer = handler.handle(request, context_of(PRODUCE_VERSION, api_key=0))
    return await _answer(0, PRODUCE_VERSION, answer)


def a_batch_of(count: int, first_value: bytes = b"") -> memoryview:
    records = [Record(0, NOW_MS, b"k", first_value, ())]
    records += [Record(offset, NOW_MS, b"k", b"", ()) for offset in range(1, count)]
    return memoryview(bytearray(build_batch(records, compression=CompressionType.ZSTD)))


async def change_topic(node: LedNode, **configs: str) -> None:
    topic = node.view.image.topics[TOPIC]
    await node.store.commit([put(dataclasses.replace(topic, configs=configs))])
    await node.view.refresh()


def produce_each(handler: ProduceHandler, *batches: memoryview) -> Any:
    """Send the batches for the topic's one partition, in one request."""
    request = ProduceRequest(None, 1, 30_000, [(TOPIC.encode(), [(0, b) for b in batches])])
    return handler.handle(request, context_of(PRODUCE_VERSION, api_key=0))


def errors_of(reply: Any) -> list[ErrorCode]:
    data = b"".join(reply)
    response, _ = entity_reader(load_response_schema(0, PRODUCE_VERSION))(memoryview(data), 9)
    results = response.responses[0].partition_responses
    return [ErrorCode(result.error_code) for result in results]


def error_of(answer: Any) -> ErrorCode:
    return ErrorCode(answer.error_code)


async def test_what_waits_is_bounded_and_the_rest_is_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_waits, "HELD_BYTES_MAX", 1_000)

    async with led_node(tmp_path) as node:
        await node.create_topic(replicas=(1,), **{"cleanup.policy": "compact"})
        first = send(node)
        assert isinstance(first, HeldReply)
        refused = _answer(0, PRODUCE_VERSION, send(node))
        assert error_of(refused) is ErrorCode.request_timed_out
        assert error_of(await _answer(0, PRODUCE_VERSION, first)) is ErrorCode.none
        await asyncio.sleep(0)
        # One is always let through, however large.
        assert error_of(await _answer(0, PRODUCE_VERSION, send(node))) is ErrorCode.none
        assert node.replica().log.log_end_offset == 2 * HEAVY_RECORDS


async def test_a_topic_that_becomes_compacted_meanwhile_has_the_batch_looked_at_again(
    tmp_path: Path,
) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic(replicas=(1,), **{"compression.type": "gzip"})
        waiting = send(node, key=None)
        assert isinstance(waiting, HeldReply)
        await change_topic(node, **{"cleanup.policy": "compact"})
        answer = await _answer(0, PRODUCE_VERSION, waiting)
        assert error_of(answer) is ErrorCode.invalid_record


async def test_a_leader_that_was_fenced_meanwhile_appends_nothing(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic(replicas=(1,), **{"cleanup.policy": "compact"})
        waiting = send(node)
        node.may_serve = False
        answer = await _answer(0, PRODUCE_VERSION, waiting)
        assert error_of(answer) is ErrorCode.not_leader_or_follower
        assert node.replica().log.log_end_offset == 0


async def test_a_heavy_batch_that_begins_a_transaction_is_looked_at_elsewhere_only(
    tmp_path: Path,
) -> None:
    """However long the coordinator takes: the loop's thread looks at no record."""
    async with led_node(tmp_path) as node:
        await node.create_topic(replicas=(1,), **{"cleanup.policy": "compact"})
        handler, batch = transactional_handler(node), transactional_batch(VERY_HEAVY_RECORDS)
        config = TopicConfig(cleanup_policy=("compact",))
        began = time.thread_time()
        check_produced(batch, config, now_ms=NOW_MS)
        of_one_inspection = time.thread_time() - began
        began = time.thread_time()
        answer = await send_transactional(handler, batch)
        assert time.thread_time() - began < of_one_inspection / 2
        assert error_of(answer) is ErrorCode.none
        assert node.replica().log.log_end_offset == VERY_HEAVY_RECORDS
        handler.close()


@pytest.mark.parametrize(
    ("count", "expected"),
    [(10, ErrorCode.invalid_record), (VERY_HEAVY_RECORDS, ErrorCode.request_timed_out)],
)
@pytest.mark.parametrize("codec", ["producer", "gzip"])  # with gzip it is looked at before, too
async def test_what_was_found_out_under_other_settings_does_not_count(
    tmp_path: Path, count: int, expected: ErrorCode, codec: str
) -> None:
    """A batch without keys never gets into a compacted log, and a heavy one is not looked at."""
    async with led_node(tmp_path) as node:
        await node.create_topic(replicas=(1,), **{"compression.type": codec})

        async def become_compacted() -> None:
            await change_topic(node, **{"cleanup.policy": "compact"})

        handler = transactional_handler(node, become_compacted)
        answer = await send_transactional(handler, transactional_batch(count, key=None))
        assert error_of(answer) is expected
        assert node.replica().log.log_end_offset == 0
        handler.close()


@pytest.mark.parametrize("fault", ["size", "crc"])
async def test_a_heavy_batch_that_its_header_refuses_waits_for_nobody(
    tmp_path: Path, fault: str
) -> None:
    async with led_node(tmp_path) as node:
        configs = {"cleanup.policy": "compact", "max.message.bytes": "20000"}
        await node.create_topic(replicas=(1,), **configs)
        batch, expected = a_batch_of(HEAVY_RECORDS, b"x"), ErrorCode.corrupt_message
        if fault == "size":
            batch = a_batch_of(HEAVY_RECORDS, os.urandom(20_000))
            expected = ErrorCode.message_too_large
        batch[-1] ^= 1
        answer = produce_each(node.produce, batch)
        assert isinstance(answer, list)
        assert errors_of(answer) == [expected]


@pytest.mark.parametrize("codec", ["producer", "gzip"])
async def test_of_a_batch_that_is_too_large_no_copy_is_made_for_those_that_wait(
    tmp_path: Path, codec: str
) -> None:
    async with led_node(tmp_path) as node:
        configs = {"cleanup.policy": "compact", "compression.type": codec}
        await node.create_topic(replicas=(1,), **configs)
        large = [a_batch_of(1, os.urandom(3_000_000)) for _ in range(2)]
        batches = [large[0], a_batch_of(HEAVY_RECORDS), large[1]]
        tracemalloc.start()
        answer = produce_each(node.produce, *batches)
        assert isinstance(answer, HeldReply)
        reply = await answer
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        too_large = ErrorCode.message_too_large
        assert errors_of(reply) == [too_large, ErrorCode.none, too_large]
        assert most_bytes < 2_000_000
        assert node.replica().log.log_end_offset == HEAVY_RECORDS


async def test_for_a_client_that_has_left_nothing_is_looked_into_unless_it_wants_no_answer(
    tmp_path: Path,
) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic(replicas=(1,), **{"cleanup.policy": "compact"})
        under_way, *behind = [send(node) for _ in range(6)]
        without_answer = send(node, acks=0)
        await asyncio.sleep(0.05)
        for held in (under_way, *behind, without_answer):
            held.give_up()  # as the connection does when it is closed
        assert error_of(await _answer(0, PRODUCE_VERSION, send(node))) is ErrorCode.none
        assert node.replica().log.log_end_offset == 2 * HEAVY_RECORDS

"""Produce requests whose batches are looked into elsewhere: how many may wait, and for what."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.metadata.records import put
from tidelog_core.records.batch import CompressionType, Record, build_batch
from tidelog_node.handlers import produce
from tidelog_node.held_reply import HeldReply
from tidelog_node.wire.produce import ProduceRequest

from tests.node.replication.led_node import PRODUCE_VERSION, TOPIC, LedNode, _answer, led_node

HEAVY_RECORDS = 5_000


def send(node: LedNode, *, key: bytes | None = b"k", acks: int = 1) -> Any:
    records = [Record(offset, 1_000, key, b"", ()) for offset in range(HEAVY_RECORDS)]
    batch = memoryview(bytearray(build_batch(records, compression=CompressionType.ZSTD)))
    request = ProduceRequest(None, acks, 30_000, [(TOPIC.encode(), [(0, batch)])])
    return node.produce.handle(request, PRODUCE_VERSION, 1)


def error_of(answer: Any) -> ErrorCode:
    return ErrorCode(answer.error_code)


def test_what_waits_is_bounded_and_the_rest_is_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with led_node(tmp_path) as node:
            await node.create_topic(replicas=(1,), **{"cleanup.policy": "compact"})
            first = send(node)
            assert isinstance(first, HeldReply)
            monkeypatch.setattr(produce, "HELD_BYTES_MAX", 1_000)
            refused = _answer(0, PRODUCE_VERSION, send(node))
            assert error_of(refused) is ErrorCode.request_timed_out
            assert error_of(await _answer(0, PRODUCE_VERSION, first)) is ErrorCode.none
            await asyncio.sleep(0)
            # One is always let through, however large.
            assert error_of(await _answer(0, PRODUCE_VERSION, send(node))) is ErrorCode.none
            assert node.replica().log.log_end_offset == 2 * HEAVY_RECORDS

    asyncio.run(main())


def test_a_topic_that_becomes_compacted_meanwhile_has_the_batch_looked_at_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with led_node(tmp_path) as node:
            await node.create_topic(replicas=(1,), **{"compression.type": "gzip"})
            waiting = send(node, key=None)
            assert isinstance(waiting, HeldReply)
            topic = node.view.image.topics[TOPIC]
            changed = {"cleanup.policy": "compact"}
            await node.store.commit([put(dataclasses.replace(topic, configs=changed))])
            await node.view.refresh()
            answer = await _answer(0, PRODUCE_VERSION, waiting)
            assert error_of(answer) is ErrorCode.invalid_record

    asyncio.run(main())


def test_a_leader_that_was_fenced_meanwhile_appends_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with led_node(tmp_path) as node:
            await node.create_topic(replicas=(1,), **{"cleanup.policy": "compact"})
            waiting = send(node)
            node.may_serve = False
            answer = await _answer(0, PRODUCE_VERSION, waiting)
            assert error_of(answer) is ErrorCode.not_leader_or_follower
            assert node.replica().log.log_end_offset == 0

    asyncio.run(main())

"""A partition may know a hundred thousand producers: no turn of the loop goes through them all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kio.schema.describe_producers.v0 import request as producers_messages
from tidelog_core.log.producers.producer_state import ProducerEntry, RetainedBatch
from tidelog_node.fairness import request_turns
from tidelog_node.handlers.transactions.producers import ProducersHandler
from tidelog_node.wire.messages import build

from tests.node.coordinator.lines import lines_of
from tests.node.replication.led_node import TOPIC, LedNode, led_node
from tests.support.batches import batch_of
from tests.support.hand_chain import DISKLESS, HandChain
from tests.support.request_contexts import context_of

COUNT = 2_000


async def enter(node: LedNode) -> None:
    """Lead a partition whose log knows many producers, as from a snapshot."""
    await node.create_topic(replicas=(1,), **DISKLESS)
    HandChain().enter(node.replicas, node.replica(), 0)
    log = node.replica().log
    for producer_id in range(COUNT):
        before = RetainedBatch(last_sequence=0, last_offset=-1, offset_delta=0, timestamp_ms=0)
        log.producers.state.load(producer_id, ProducerEntry(epoch=0, batches=[before]))


async def test_the_end_of_a_lead_looks_at_those_alone_that_have_appended(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await enter(node)
        answers = [
            node.send_batch(batch_of(b"%d" % number, producer=(COUNT + number, 0, 0)))
            for number in range(3)
        ]
        assert lines_of(lambda: node.replicas.end_lead(node.replica())) < COUNT
        await asyncio.gather(*answers)
        assert len(node.produce._refused._broken) == 3


async def test_producers_are_described_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_turns, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(request_turns, "REST_SECONDS", 0.0)
    async with led_node(tmp_path) as node:
        await enter(node)
        handler = ProducersHandler(node.context, replicas=node.replicas)
        asked = build(producers_messages.TopicRequest, name=TOPIC, partition_indexes=(0,))
        request = build(producers_messages.DescribeProducersRequest, topics=(asked,))
        turns, is_over = 0, False

        async def count_turns() -> None:
            nonlocal turns
            while not is_over:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        answer = await handler.describe_producers(request, context_of(0, api_key=61))
        is_over = True
        await counting
        found = answer.topics[0].partitions[0].active_producers
        assert [one.producer_id for one in found] == list(range(COUNT))
        assert turns >= COUNT // request_turns.ITEMS_PER_CHECK

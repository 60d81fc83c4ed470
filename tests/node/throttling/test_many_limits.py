"""DescribeQuotaUse on a node with very many limits never keeps the loop for all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tidelog_core.quota_messages import USES_MAX, DescribeQuotaUseRequest
from tidelog_core.quotas.quota_keys import QuotaKey
from tidelog_core.wire_messages import build
from tidelog_node.handlers.admin.client_quotas import QuotaHandlers

from tests.node.throttling.test_throttle import World
from tests.support.loop_turns import loop_turns
from tests.support.node_context import node_context
from tests.support.request_contexts import context_of

COUNT = 10_000


async def test_no_turn_is_about_all_limits(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(COUNT):
        limit = world.throttle._meters.limit(QuotaKey.PRODUCER_BYTE_RATE, ("", f"c{number}"))
        limit.quota = limit.rate = 1_000.0
        limit.count(number + 1, world.now_ms)
    handlers = QuotaHandlers(node_context(world.store, world.view), throttle=world.throttle)
    request = build(DescribeQuotaUseRequest, count=USES_MAX)
    with loop_turns() as turns:
        # A task of its own: its last turn counts too.
        answer = await asyncio.create_task(handlers.describe_use(request, context_of(0)))
    assert [one.client_id for one in answer.uses[:2]] == [f"c{COUNT - 1}", f"c{COUNT - 2}"]
    assert len(answer.uses) == USES_MAX
    assert turns.longest_seconds < 0.5 * turns.total_seconds, turns

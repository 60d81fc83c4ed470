"""A led partition is taken over again for a swap that arrives while it is being taken over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from tidelog_core.metadata.store import ALL_KEYS, Item, KeyRange
from tidelog_core.model import TopicPartition
from tidelog_node.tier.copier import Copier
from tidelog_node.tier.led_partition import LedPartition
from tidelog_node.tier.remote_log import RemoteLog, RemoteReader

from tests.node.coordinator.memory_store import MemoryMetadataStore


def test_a_swap_during_a_take_over_has_the_partition_taken_over_again() -> None:
    class Store(MemoryMetadataStore):
        swap_count = 1

        async def list(
            self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
        ) -> list[Item]:
            if self.swap_count:
                self.swap_count -= 1
                led.note_swap()
            return await super().list(collection, prefix=prefix, keys=keys)

    unused: Any = None
    reader = RemoteReader(
        cluster_id="c",
        store=Store(latency=0),
        client=unused,
        indexes=unused,
        open_chunks=unused,
        executor=unused,
        inspector=unused,
        chunk_bytes=1,
        ahead_chunks_max=1,
    )
    replica: Any = SimpleNamespace(
        log=SimpleNamespace(log_start_offset=0, log_end_offset=0, set_tiered_up_to=lambda _: None),
        held_since=0.0,
    )
    led = LedPartition(replica, unused, RemoteLog(reader, uuid4(), TopicPartition("t", 0)))
    copier = Copier(
        store=unused,
        client=unused,
        view=unused,
        node_config=unused,
        clock_ms=lambda: 0,
        may_expire=lambda: True,
        has_own_clock=True,
    )

    async def run() -> None:
        await copier.take_over(led)
        assert not led.is_taken_over
        await copier.take_over(led)
        assert led.is_taken_over

    asyncio.run(run())

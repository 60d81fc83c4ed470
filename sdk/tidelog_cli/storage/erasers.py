"""Who erases a key for ``tidelog erase``: this process by the stores, or the admin API."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from tidelog_cli.failures import CommandFailed
from tidelog_cli.output import note
from tidelog_cli.storage.admin_api import AdminApi
from tidelog_cli.stores import StoreLocations, opened_metadata

if TYPE_CHECKING:
    from tidelog_core.tier_compaction.partition_tier import PartitionTier


@dataclass(frozen=True, slots=True)
class Erased:
    """The result for people and programs, and the receipt with every offset."""

    summary: Mapping[str, Any]
    receipt: Mapping[str, Any] | None  # None: the summary has to do


class Eraser(Protocol):
    """Erases a key. Both methods tell their steps on stderr, and raise for an unknown topic."""

    def find(self, topic: str, key: bytes) -> list[dict[str, Any]]:
        """Return a row with the number of the key's tiered records for each partition."""

    def erase(self, topic: str, key: bytes, *, wait_seconds: float, has_receipt: bool) -> Erased:
        """Erase it; waits so long for leaders and replicas."""


@dataclass(frozen=True, slots=True)
class StoreEraser:
    """Erases by the cluster's stores."""

    locations: StoreLocations

    def find(self, topic: str, key: bytes) -> list[dict[str, Any]]:
        """Return a row for each partition."""
        return asyncio.run(self._find(topic, key))

    def erase(
        self,
        topic: str,
        key: bytes,
        *,
        wait_seconds: float,
        has_receipt: bool,  # noqa: ARG002  It costs nothing here.
    ) -> Erased:
        """Erase it."""
        return asyncio.run(self._erase(topic, key, wait_seconds))

    async def _find(self, topic: str, key: bytes) -> list[dict[str, Any]]:
        from tidelog_core.erasure.tier import find_in_tier

        async with self._tiers(topic) as tiers:
            found = [(tier.partition, await find_in_tier(tier, key)) for tier in tiers]
        return [
            {
                "topic": topic,
                "partition": partition,
                "records": one.record_count,
                "segments": one.holding_count,
                "searched_segments": one.segment_count,
            }
            for partition, one in found
        ]

    async def _erase(self, topic: str, key: bytes, wait_seconds: float) -> Erased:
        from tidelog_core.erasure.topic import erase_key

        async with self._tiers(topic) as tiers:
            receipt = await erase_key(
                tiers, key, erasure_id=uuid4(), wait_seconds=wait_seconds, on_step=note
            )
        return Erased(receipt.summary(), receipt.document())

    @asynccontextmanager
    async def _tiers(self, topic: str) -> AsyncIterator[list[PartitionTier]]:
        from tidelog_core.metadata.stored_cluster import select_topics
        from tidelog_core.tier_compaction.targets import rewrite_targets

        metadata, objects = self.locations.metadata, self.locations.objects
        async with opened_metadata(metadata) as (_, image):
            select_topics(image, [topic])
            targets = rewrite_targets(image, topic, metadata=metadata, objects=objects)
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(target.opened()) for target in targets]


@dataclass(frozen=True, slots=True)
class ApiEraser:
    """Erases by a job of the admin API."""

    api: AdminApi

    def find(self, topic: str, key: bytes) -> list[dict[str, Any]]:
        """Return a row for each partition."""
        rows: list[dict[str, Any]] = self._run(topic, key, dry_run=True)[1]["found"]
        return rows

    def erase(self, topic: str, key: bytes, *, wait_seconds: float, has_receipt: bool) -> Erased:
        """Erase it."""
        job_id, result = self._run(topic, key, timeout_seconds=int(wait_seconds))
        receipt = None
        if has_receipt:
            try:
                receipt = self.api.ask("GET", f"/jobs/{job_id}/receipt")
            except CommandFailed as error:  # The key is erased nevertheless.
                note(f"{error}; the file has a summary")
        return Erased(result, receipt)

    def _run(self, topic: str, key: bytes, **options: object) -> tuple[str, dict[str, Any]]:
        self.api.topics([topic])
        body = {"topic": topic, "key_base64": b64encode(key).decode(), **options}
        return self.api.run_job("/erasures", body)

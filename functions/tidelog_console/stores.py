"""The console's reads of the stores. It never writes to them.

The metadata store has no ACLs of its own: pages ask a node first whether the visitor may describe
the topic or the cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import NodeConfig, topic_config
from tidelog_core.cost.document import cost_document
from tidelog_core.cost.overview import CostReader
from tidelog_core.cost.report import Period
from tidelog_core.errors import CorruptItem, InvalidConfig, TidelogError
from tidelog_core.metadata.admin_jobs import AdminJob
from tidelog_core.metadata.erasures import (
    KEY_ERASURE_COLLECTION,
    LOCAL_ERASURE_COLLECTION,
    KeyErasure,
    LocalErasure,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.node_config import effective_node_config
from tidelog_core.metadata.record import Record
from tidelog_core.metadata.records import Partition, SegmentMeta, Topic, segment_collection
from tidelog_core.metadata.rewrite_claims import RewriteClaim, rewrite_claim_key
from tidelog_core.metadata.store import Item, MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.objects.location import open_object_store
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import topic_prefix
from tidelog_functions.admin_jobs.store import JobStore

from tidelog_console.receipts import LISTED_SECONDS, Receipt, Receipts

R = TypeVar("R", bound=Record)

LISTS_AT_ONCE_MAX = 8
REFRESH_SECONDS, AWS_REFRESH_SECONDS = 5, 30
REQUESTS_MAX = 500
AWS_TIER_SECONDS = 10.0  # for which a partition's segments are kept, however many visitors ask
# Of the partitions kept. Those of one page are kept in any case: they cost most to read again.
SEGMENTS_KEPT_MAX = 200_000
PARTITIONS_KEPT_MIN, PARTITIONS_KEPT_MAX = 25, 500


class NoStore(TidelogError):
    """The console was started without the store."""


@dataclass(frozen=True, slots=True)
class PartitionTier:
    """A partition as the stores know it."""

    partition: Partition
    segments: Sequence[SegmentMeta]  # in every state, by base offset
    unreadable_count: int  # items of segments, and the claim
    is_tiered: bool  # remote.storage.enable
    claim: RewriteClaim | None  # of the last process that rewrote segments, maybe expired


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """An erasure's request to a partition's replicas."""

    topic: str  # "": the topic is deleted
    partition: int
    what: str
    done_count: int
    replica_count: int


class Stores:
    """The stores of the cluster, opened when they are needed."""

    def __init__(
        self, metadata_url: str | None, objects_url: str | None, static_config: NodeConfig
    ) -> None:
        """``static_config`` has the settings with which the nodes were started."""
        self._metadata_url, self._objects_url = metadata_url, objects_url
        self._static_config = static_config
        self._costs: CostReader | None = None
        self._receipts: Receipts | None = None
        self._metadata: MetadataStore | None = None
        self._view: ClusterView | None = None
        self._objects: ObjectStore | None = None
        # By topic id and partition: when it was read, and what. The longest unused first.
        self._tiers: dict[tuple[UUID, int], tuple[float, PartitionTier]] = {}
        self._tier_seconds = 0.0 if self._is_here else AWS_TIER_SECONDS
        self._reading_tiers = asyncio.Lock()

    @property
    def has_metadata(self) -> bool:
        """Whether the metadata store is known."""
        return self._metadata_url is not None

    @property
    def has_objects(self) -> bool:
        """Whether the object store is known, and other processes can read it."""
        return self._objects_url is not None and not self._objects_url.startswith("memory:")

    @property
    def refresh_seconds(self) -> int:
        """The interval at which a page reads them again: on AWS each reading costs."""
        return REFRESH_SECONDS if self._is_here else AWS_REFRESH_SECONDS

    @property
    def _is_here(self) -> bool:
        """Whether the metadata store is a file, so that reading it costs nothing."""
        return (self._metadata_url or "").startswith("sqlite:")

    @property
    def urls(self) -> tuple[str, str]:
        """The URLs of both stores. Raises ``NoStore``."""
        if self._metadata_url is None or self._objects_url is None or not self.has_objects:
            raise NoStore("the console was started without --metadata and --objects")
        return self._metadata_url, self._objects_url

    async def image(self) -> ClusterImage:
        """Return the cluster as the metadata store has it now. Raises ``NoStore``."""
        if self._metadata_url is None:
            raise NoStore("the console was started without --metadata")
        if self._view is None:
            self._metadata = open_metadata_store(self._metadata_url, may_be_new=True)
            self._view = ClusterView(self._metadata)
        return await self._view.refresh()

    async def tier_of(self, topic: str, numbers: Sequence[int]) -> list[PartitionTier]:
        """Return some partitions of a topic; fewer if they are not there. Raises ``NoStore``."""
        image = await self.image()
        found = image.topics.get(topic)
        if found is None:
            return []
        is_tiered = self._is_tiered(found)
        wanted = set(numbers)
        partitions = [one for one in image.partitions(topic) if one.partition in wanted]
        limit = asyncio.Semaphore(LISTS_AT_ONCE_MAX)

        async def read(partition: Partition) -> PartitionTier:
            async with limit:
                return await self._kept_tier(partition, is_tiered=is_tiered)

        async with self._reading_tiers:  # Those who wait find what this one reads.
            return list(await asyncio.gather(*map(read, partitions)))

    async def receipts(self, topic: str) -> list[Receipt]:
        """Return the receipts of the topic's erasures, the newest first.

        Raises ``NoStore`` and the object store's errors.
        """
        image = await self.image()
        found = image.topics.get(topic)
        if found is None or not self.has_objects:
            return []
        if self._receipts is None:
            is_here = self.urls[1].startswith("file:")  # Then listing costs nothing.
            seconds = 0.0 if is_here else LISTED_SECONDS
            self._receipts = Receipts(self._object_store(), listed_seconds=seconds)
        return await self._receipts.of_topic(topic_prefix(image.cluster_id, topic, found.topic_id))

    async def erasure_requests(self) -> list[ErasureRequest]:
        """Return the erasures that replicas have not done yet, without damaged items.

        Raises ``NoStore``.
        """
        image = await self.image()
        assert self._metadata is not None
        names = {topic.topic_id: name for name, topic in image.topics.items()}
        found: list[ErasureRequest] = []
        for key in _readable(KeyErasure, await self._metadata.list(KEY_ERASURE_COLLECTION)):
            done = sum(one.is_done for one in key.replicas)
            found.append(_request(image, names, key, "erase the key from their logs", done))
        for local in _readable(LocalErasure, await self._metadata.list(LOCAL_ERASURE_COLLECTION)):
            what = "drop local segments, which the tier has without the key"
            found.append(_request(image, names, local, what, len(local.honoured)))
        return found[:REQUESTS_MAX]

    async def admin_jobs(self) -> list[AdminJob]:
        """Return the admin API's jobs, the newest first. Raises ``NoStore``."""
        await self.image()
        assert self._metadata is not None
        return await JobStore(self._metadata, wall_clock_ms).list()

    async def costs(
        self, period: Period, *, topics_max: int, sees_topic: Callable[[str], bool]
    ) -> dict[str, Any]:
        """Return the cluster's costs, as the admin API shows them.

        Raises ``NoStore``, and ``InvalidConfig`` for a price file that cannot be read.
        """
        await self.image()  # Budgets may be set while nodes run.
        assert self._metadata is not None
        if self._costs is None:
            self._costs = CostReader(self._metadata, self._node_config)
        return cost_document(
            await self._costs.overview(),
            self._costs.prices(),
            period,
            topics_max=topics_max,
            is_on_aws=(self._metadata_url or "").startswith("dynamodb:"),
            sees_topic=sees_topic,
        )

    async def close(self) -> None:
        """Release the stores."""
        if self._metadata is not None:
            await self._metadata.close()
        if self._objects is not None:
            await self._objects.close()

    def _node_config(self) -> NodeConfig:
        image = ClusterImage() if self._view is None else self._view.image
        return effective_node_config(self._static_config, image, None)

    def _is_tiered(self, topic: Topic) -> bool:
        if topic.is_internal:
            return False
        return topic_config(topic.configs, self._node_config()).remote_storage_enable

    def _object_store(self) -> ObjectStore:
        if self._objects is None:
            try:
                self._objects = open_object_store(self.urls[1])
            except InvalidConfig as error:
                raise NoStore(f"--objects: {error}") from error
        return self._objects

    async def _kept_tier(self, partition: Partition, *, is_tiered: bool) -> PartitionTier:
        """Return a partition's segments, on AWS as they were a short time ago."""
        key, now = (partition.topic_id, partition.partition), time.monotonic()
        known = self._tiers.pop(key, None)
        if known is None or now - known[0] >= self._tier_seconds:
            known = (now, await self._tier(partition, is_tiered=is_tiered))
        if self._tier_seconds > 0:
            self._tiers[key] = known
            self._forget_tiers()
        return replace(known[1], partition=partition, is_tiered=is_tiered)

    def _forget_tiers(self) -> None:
        segment_count = sum(len(tier.segments) for _, tier in self._tiers.values())
        while len(self._tiers) > PARTITIONS_KEPT_MIN and (
            len(self._tiers) > PARTITIONS_KEPT_MAX or segment_count > SEGMENTS_KEPT_MAX
        ):
            _, tier = self._tiers.pop(next(iter(self._tiers)))
            segment_count -= len(tier.segments)

    async def _tier(self, partition: Partition, *, is_tiered: bool) -> PartitionTier:
        assert self._metadata is not None
        topic_id, number = partition.topic_id, partition.partition
        items = await self._metadata.list(segment_collection(topic_id, number))
        metas = _readable(SegmentMeta, items)
        claim_item = await self._metadata.get(rewrite_claim_key(topic_id, number))
        claims = [] if claim_item is None else _readable(RewriteClaim, [claim_item])
        unreadable = len(items) - len(metas) + (claim_item is not None) - len(claims)
        return PartitionTier(partition, metas, unreadable, is_tiered, claims[0] if claims else None)


def _readable(kind: type[R], items: Iterable[Item]) -> list[R]:
    """Return the records of the items, without those that are damaged."""
    found = []
    for item in items:
        with suppress(CorruptItem):
            found.append(kind.from_item(item))
    return found


def _request(
    image: ClusterImage,
    names: Mapping[UUID, str],
    request: KeyErasure | LocalErasure,
    what: str,
    done_count: int,
) -> ErasureRequest:
    topic = names.get(request.topic_id, "")
    partition = image.partition(TopicPartition(topic, request.partition))
    replicas = () if partition is None else partition.replicas
    return ErasureRequest(topic, request.partition, what, done_count, len(replicas))

"""Evicts tiered local segments while their records are being erased from the tier.

The leader starts a request: it rolls its active segment, and once all records below are committed
it writes the offset into the request. Then each replica rolls too, waits until the copier has
tiered the segments that it rolled, evicts them, and reports so in the request. Records above the
offset are never touched.

A follower's segments end at other offsets than the leader's: in the request it asks the leader to
roll behind the follower's end. A replica that was down reads the requests before its node serves.
It deletes all that it then has below the offset, whether or not the tier has the same bytes: the
tier's records count.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection

from tidelog_core.errors import OutcomeUnknown, TidelogError, VersionConflict
from tidelog_core.log.local_log import LocalLog
from tidelog_core.metadata import records
from tidelog_core.metadata.erasures import LOCAL_ERASURE_COLLECTION, LocalErasure
from tidelog_core.metadata.store import ItemKey
from tidelog_core.model import TopicPartition
from tidelog_core.tier.contents import read_tiered_end

from tidelog_node.erasure.committed_ends import CommittedEnds
from tidelog_node.erasure.stored_requests import StoredRequests
from tidelog_node.node_context import NodeContext
from tidelog_node.tier.led_partition import ReplicaSource, TieredReplica, known_tiered_end

logger = logging.getLogger(__name__)


class EvictingEraser:
    """Carries out the requests for this node's replicas. For the tasks of one event loop."""

    def __init__(self, node: NodeContext, *, replicas: ReplicaSource) -> None:
        self._node = node
        self._replicas = replicas
        self._ends = CommittedEnds(node.store, node.broker_id)
        self._requests = StoredRequests(
            node.store, LOCAL_ERASURE_COLLECTION, LocalErasure.from_item
        )
        node.view.watch(LOCAL_ERASURE_COLLECTION, self._on_changed)

    async def honour(self) -> None:
        """Take every step of every request that is possible now; the next call tries the others."""
        await self._requests.refresh()
        for request in self._requests:
            if self._node.broker_id in request.honoured and not self._rolls(request):
                continue
            try:
                await self._honour(request)
            except (VersionConflict, OutcomeUnknown):
                self._requests.note_change()  # Another replica has written it.
            except (TidelogError, OSError) as error:
                logger.warning(
                    "erasure not honoured yet, will retry",
                    extra={"partition": request.item_id.key, "reason": str(error)},
                )

    def _on_changed(self, keys: Collection[ItemKey]) -> None:  # noqa: ARG002
        self._requests.note_change()

    def _rolls(self, request: LocalErasure) -> bool:
        """Whether this node leads, and others wait for its next segment."""
        replica = self._replica(request)
        return (
            replica is not None
            and replica.is_leader
            and replica.log.active_segment_base_offset < request.roll_to
        )

    def _replica(self, request: LocalErasure) -> TieredReplica | None:
        topic = self._node.view.image.topic_by_id(request.topic_id)
        if topic is None:
            return None
        replica = self._replicas.get(TopicPartition(topic.name, request.partition))
        return None if replica is None or replica.topic_id != request.topic_id else replica

    async def _honour(self, request: LocalErasure) -> None:
        replica = self._replica(request)
        if replica is None or replica.log.is_offline:
            return
        log = replica.log
        if not request.is_taken_up:
            if replica.is_leader:
                await self._take_up(request, replica)
            return
        roll_to = max(request.up_to, request.roll_to if replica.is_leader else 0)
        if log.active_segment_base_offset < roll_to:
            log.roll()
            replica.note_changed()
        await self._evict(request, log)

    async def _take_up(self, request: LocalErasure, replica: TieredReplica) -> None:
        found = await self._ends.end_for(request.item_id, request.version, replica)
        if found is None:
            return
        up_to, is_led = found
        taken_up = dataclasses.replace(request, up_to=up_to, roll_to=up_to, honoured=())
        await self._node.store.commit([records.put(taken_up)], checks=[is_led])
        self._ends.forget(request.item_id)
        self._requests.note_change()

    async def _evict(self, request: LocalErasure, log: LocalLog) -> None:
        if log.is_filling:
            return  # The records may be among those that are still to be filled in.
        segments = [s for s in log.sealed_segments() if s.base_offset < request.up_to]
        if segments:
            end_offset = segments[-1].end_offset
            tiered_end = await read_tiered_end(
                self._node.store, request.topic_id, request.partition, known_tiered_end(log)
            )
            if tiered_end < end_offset:
                if end_offset > request.roll_to:
                    await self._write(dataclasses.replace(request, roll_to=end_offset))
                return
            log.set_tiered_up_to(tiered_end)
            log.evict_local(end_offset)
        is_behind = log.active_segment_base_offset < request.up_to
        if not is_behind and self._node.broker_id not in request.honoured:
            honoured = tuple(sorted({*request.honoured, self._node.broker_id}))
            await self._write(dataclasses.replace(request, honoured=honoured))

    async def _write(self, request: LocalErasure) -> None:
        await self._node.store.commit([records.put(request)])
        self._requests.note_change()

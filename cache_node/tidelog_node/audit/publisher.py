"""Publishes a node's events to the audit topic, as a client of whichever node leads a partition.

The first node that records anything creates the topic. A node writes to a partition that it leads,
if there is one, with acks=all, and goes on with the next events once these are acknowledged. Events
whose write failed or was not answered are written again, so one may be in the topic twice, with the
same ``metadata.uid``.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from kio.schema.produce.v12.request import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.connection import Connection
from tidelog.wire.requests import PRODUCE
from tidelog_core.admin.topics.topic_admin import TopicAdmin
from tidelog_core.admin.topics.topic_plans import NewTopic
from tidelog_core.audit.events import AUDIT_TOPIC, EventSource, encode_event
from tidelog_core.errors import (
    ErrorCode,
    LeaderNotAvailable,
    StorageError,
    TidelogError,
    TopicAlreadyExists,
)
from tidelog_core.model import NO_LEADER
from tidelog_core.records.codecs import CompressionType
from tidelog_core.records.encode import build_batch
from tidelog_core.records.record import Record

from tidelog_node.audit.audit_log import AuditLog, Pending
from tidelog_node.node_context import NodeContext
from tidelog_node.wire.messages import build

logger = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
EVENTS_AT_ONCE_MAX = 500
WRITE_SECONDS_MAX = 10.0
LAST_SECONDS_MAX = 2.0  # for the events that are left when the node stops
REMIND_SECONDS = 60.0  # between two lines about failures
TOPIC_CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "31536000000",  # a year
    "segment.ms": "3600000",  # so that Spark finds events after an hour
}


class AuditPublisher:
    """The one writer of a node's events."""

    def __init__(
        self, node: NodeContext, log: AuditLog, admin: TopicAdmin, *, partition_count: int
    ) -> None:
        self._node = node
        self.log = log
        self._admin = admin
        self._partition_count = partition_count
        self._connection: tuple[int, Connection] | None = None  # to this broker
        self._logged_at = -REMIND_SECONDS

    async def run(self) -> None:
        """Publish once a second, for ever."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            await self._publish_all()

    async def close(self) -> None:
        """Publish the events that are left, if that is possible immediately."""
        self.log.end_sums()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS_MAX):
                await self._publish_all()
        if self.log.pending_count:
            extra = {"event_count": self.log.pending_count}
            logger.warning("events of the audit log are lost", extra=extra)
        await self._disconnect()

    async def _publish_all(self) -> None:
        """Publish events until none are left, or a write fails."""
        try:
            if self._node.view.image.topic(AUDIT_TOPIC) is None:
                await self._create_topic()
            while events := self.log.take(EVENTS_AT_ONCE_MAX):
                try:
                    await self._write(events)
                except BaseException:
                    self.log.put_back(events)
                    raise
        except (TidelogError, OSError, TimeoutError) as error:
            await self._disconnect()
            self._log_failure(error)

    async def _write(self, events: Sequence[Pending]) -> None:
        """Append the events to the topic, on all replicas in sync. Raises if that is not sure."""
        partition, leader = self._choose()
        source = EventSource(self._node.view.image.cluster_id, self._node.broker_id)
        batch = build_batch(
            [
                Record(0, event.end_ms, None, encode_event(event, source, uid))
                for uid, event in events
            ],
            compression=CompressionType.LZ4,
        )
        data = build(PartitionProduceData, index=partition, records=batch)
        request = build(
            ProduceRequest,
            acks=-1,
            timeout=datetime.timedelta(seconds=WRITE_SECONDS_MAX),
            topic_data=(build(TopicProduceData, name=AUDIT_TOPIC, partition_data=(data,)),),
        )
        connection = await self._connect(leader)
        answer = await connection.request(PRODUCE, request, timeout_s=2 * WRITE_SECONDS_MAX)
        result = answer.responses[0].partition_responses[0]
        if result.error_code is not ErrorCode.none:
            raise StorageError(f"partition {partition}: {result.error_code.name}")

    async def _create_topic(self) -> None:
        new = NewTopic(
            name=AUDIT_TOPIC, partition_count=self._partition_count, configs=TOPIC_CONFIGS
        )
        with suppress(TopicAlreadyExists):
            await self._admin.create_topic(new)

    def _choose(self) -> tuple[int, int]:
        """Return a partition and its leader, which is this node if it leads any."""
        leaders = [
            (one.partition, one.leader)
            for one in self._node.view.image.partitions(AUDIT_TOPIC)
            if one.leader != NO_LEADER
        ]
        if not leaders:
            raise LeaderNotAvailable(f"no partition of {AUDIT_TOPIC} has a leader")
        own = [one for one in leaders if one[1] == self._node.broker_id]
        return own[0] if own else leaders[self._node.broker_id % len(leaders)]

    async def _connect(self, broker_id: int) -> Connection:
        if self._connection is not None:
            known_id, connection = self._connection
            if known_id == broker_id and connection.is_open:
                return connection
            await self._disconnect()
        broker = self._node.view.image.brokers.get(broker_id)
        if broker is None:
            raise LeaderNotAvailable(f"broker {broker_id} is not registered")
        connection = await self._node.dialer.dial(broker, timeout_s=WRITE_SECONDS_MAX)
        self._connection = broker_id, connection
        return connection

    async def _disconnect(self) -> None:
        if self._connection is not None:
            connection = self._connection[1]
            self._connection = None
            await connection.close()

    def _log_failure(self, error: Exception) -> None:
        """Log the failure, but not with every attempt."""
        if monotonic() - self._logged_at < REMIND_SECONDS:
            return
        self._logged_at = monotonic()
        logger.warning(
            "audit log not written, will retry",
            extra={
                "reason": repr(error),
                "waiting_event_count": self.log.pending_count,
                "lost_event_count": self.log.lost_count,
            },
        )

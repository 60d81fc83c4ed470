"""Keeps a producer's batches in order when this node refuses one that may be accepted later.

A log accepts any sequence first from a producer that it does not know. If it accepted a producer's
second batch, librdkafka would count the first one as delivered. So every refusal of an idempotent
batch that its producer will repeat passes ``RefusedBatches.note``, also while another node leads:
this node may lead when the next batch comes. Later batches of the producer are refused until the
first one is repeated (``BrokenProducers``). A log that knows the producer refuses them by itself.

    refused     the batch is noted
    appended    when this node stops leading, uncommitted batches may be truncated: they are noted
    damaged     its header cannot be trusted: for a time, producers that the log does not know must
                begin with sequence 0 (``MissedBatches``, ``UnknownProducers``)

This node may stop leading a partition at any time. As a gateway it then gets the batches sent after
the refused one, so the gateway must know of it, too. When the node begins to lead, the batches that
it took as a gateway come first.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import (
    CorruptRecordBatch,
    NotLeaderOrFollower,
    RequestTimedOut,
    TidelogError,
)

from tidelog_node.diskless.gateway.broken_producers import (
    PRODUCERS_MAX,
    BehindLost,
    BrokenProducers,
    ProducerBatch,
)
from tidelog_node.diskless.gateway.missed_batches import MissedBatches
from tidelog_node.diskless.gateway.unknown_producers import UnknownProducers, client_source
from tidelog_node.handlers.produce.batch import idempotent_batch
from tidelog_node.handlers.produce.gateway_handoff import GatewayHandoff
from tidelog_node.handlers.produce.partitions import NO_REPLICAS, led_replicas
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext
from tidelog_node.requests.session import Session
from tidelog_node.wire.produce import TOPIC_ID_FROM, ProduceRequest


class BehindRefused(RequestTimedOut):
    """An earlier batch of the producer was refused, and has not come again."""


class RefusedBatches:
    """The refused batches of this node's partitions. For the node's event loop only."""

    def __init__(
        self,
        replicas: ReplicaManager,
        gateway_handoff: GatewayHandoff,
        unknown_producers: UnknownProducers,
        now_s: Callable[[], float],
    ) -> None:
        """``unknown_producers`` is the node's table, which gateways' requests use too."""
        self._replicas = replicas
        self._gateway_handoff = gateway_handoff
        self._broken = BrokenProducers(now_s)
        self._damaged = MissedBatches(now_s)
        self._unknown_producers = unknown_producers
        replicas.roles.ending_lead.subscribe(self._note_uncommitted)

    def note_request(self, request: ProduceRequest, context: RequestContext) -> None:
        """Note that all batches of the request are refused."""
        error = RequestTimedOut("the request is refused")
        for name, partitions in request.topics:
            for index, records in partitions:
                self.note(context, name, index, records, error=error)

    def note(
        self,
        context: RequestContext,
        name: bytes,
        index: int,
        records: memoryview | None,
        *,
        error: TidelogError,
    ) -> None:
        """Note a batch that was refused with this error, if its producer will repeat it."""
        if not error.retriable or isinstance(error, BehindRefused | BehindLost):
            return
        is_id = context.api_version >= TOPIC_ID_FROM
        partition = self._replicas.leaders.partition_of(name, index, is_id=is_id)
        if partition is None:
            return
        where = PartitionName(partition.topic_id, index)
        if isinstance(error, CorruptRecordBatch):
            self._damaged.note(where)
            return
        producer = idempotent_batch(where, records)
        if producer is None:
            return
        replica = led_replicas(self._replicas, context).get(name, NO_REPLICAS).get(index)
        if replica is None or not _is_known(replica, producer):
            self._broken.lose(producer, 0)
        if partition.is_diskless:
            self._tell_gateway(producer, is_led=replica is not None)

    def require_takes(
        self, replica: Replica, records: memoryview | None, session: Session, *, can_serve: bool
    ) -> None:
        """Raise unless a led replica may append the client's batch, before its content is checked.

        Raises ``NotLeaderOrFollower``, and ``RequestTimedOut`` if an earlier batch of its producer
        was refused and has not come again.
        """
        if not (can_serve or replica.is_diskless):
            raise NotLeaderOrFollower("this node has lost touch with the cluster")
        gateway = self._gateway_handoff.gateway if _may_have_gateways(replica) else None
        if not (self._broken or self._damaged) and gateway is None:
            return
        where = replica.name
        producer = idempotent_batch(where, records)
        if producer is None:
            return
        if gateway is not None and gateway.has_pending(producer):
            # This node has just begun to lead: what it took before as a gateway comes first.
            self._broken.lose(producer, 0)
            raise NotLeaderOrFollower("earlier batches of the producer are on their way")
        if self._broken.blocks(producer, 0):
            # Another node may have led since, and have appended it.
            log = replica.log
            self._broken.note_log(producer, 0, log.producers.state, log.log_end_offset)
        is_behind = gateway is not None and gateway.has_lost_before(producer, replica.log)
        if is_behind or self._broken.blocks(producer, 0):
            raise BehindRefused("an earlier batch of the producer was refused")
        if not _is_known(replica, producer):
            self._require_may_begin(producer, session, has_gateway=gateway is not None)
        if gateway is not None:
            gateway.has_come(producer)
        self._broken.has_come(producer)

    def _require_may_begin(
        self, producer: ProducerBatch, session: Session, *, has_gateway: bool
    ) -> None:
        """Raise ``BehindRefused`` if an earlier batch of an unknown producer may still come."""
        is_damaged = self._damaged.has(producer.partition)
        if not (is_damaged or has_gateway):
            return
        source = client_source(session)
        if self._unknown_producers.may_take(producer, source, is_behind_unknown=is_damaged):
            return
        if is_damaged:
            raise BehindRefused("an earlier batch of the partition was damaged")
        raise BehindRefused("an earlier batch of the producer may be with a gateway")

    def _note_uncommitted(self, replica: Replica) -> None:
        """Note the uncommitted batches of a partition that this node stops leading.

        They may be truncated. A log may know a hundred thousand producers: only those that have
        appended such batches are visited.
        """
        log = replica.opened_log
        if log is None or log.log_end_offset <= log.high_watermark:
            return
        where, end_offset = replica.name, log.high_watermark
        producers = log.producers.state
        for producer_id, entry in producers.uncommitted(end_offset, count_max=PRODUCERS_MAX):
            for one in entry.batches:
                if one.last_offset >= end_offset:
                    lost = ProducerBatch(where, producer_id, entry.epoch, one.first_sequence)
                    self._broken.lose(lost, 0)
                    if replica.is_diskless:
                        self._tell_gateway(lost, is_led=True)
                    break

    def _tell_gateway(self, producer: ProducerBatch, *, is_led: bool) -> None:
        gateway = self._gateway_handoff.gateway
        if gateway is not None and not (is_led and gateway.has_pending(producer)):
            gateway.refuse(producer)


def _may_have_gateways(replica: Replica) -> bool:
    """Return whether gateways take batches of the partition, or have done so a moment ago.

    Its item names chains for a while after it has become replicated again.
    """
    followed = replica.followed
    return replica.is_diskless or (followed is not None and bool(followed.wal))


def _is_known(replica: Replica, producer: ProducerBatch) -> bool:
    """Return whether the log knows the producer, and so checks its sequences."""
    log = replica.opened_log
    return log is not None and log.producers.state.entry(producer.producer_id) is not None

"""Keeps a producer's batches in order when this node refuses one that may be taken later.

A log takes any sequence as the first one of a producer that it does not know. If it took a
producer's second batch, librdkafka would take the first one for delivered. So a refused batch is
remembered (``BrokenProducers``), and later ones of its producer are refused until it comes again.

This node may stop leading a partition in the next turn. As a gateway it then takes what was sent
behind the refused batch, so the gateway must know of it, too; and when the node begins to lead, the
batches that it took as a gateway come first.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.errors import NotLeaderOrFollower, RequestTimedOut, TidelogError

from tidelog_node.diskless.gateway.broken_producers import BrokenProducers
from tidelog_node.handlers.passed_batches import PassedBatches
from tidelog_node.handlers.produce_batch import idempotent_batch
from tidelog_node.handlers.produce_partitions import NO_REPLICAS, followed_replicas, led_replicas
from tidelog_node.inspection.inspector import NotInspected
from tidelog_node.replica import Replica
from tidelog_node.replicas import ReplicaManager
from tidelog_node.routes import RequestContext
from tidelog_node.wire.produce import ProduceRequest


class RefusedBatches:
    """The refused batches of led partitions. For the node's event loop only."""

    def __init__(
        self, replicas: ReplicaManager, passed: PassedBatches, now_s: Callable[[], float]
    ) -> None:
        self._replicas = replicas
        self._passed = passed
        self._broken = BrokenProducers(now_s)

    def note_request(self, request: ProduceRequest, context: RequestContext) -> None:
        """Note that all batches of the request are refused."""
        led_by = led_replicas(self._replicas, context)
        followed_by = followed_replicas(self._replicas, context)
        gateway = self._passed.gateway
        for name, partitions in request.topics:
            for index, records in partitions:
                self._note_led(led_by.get(name, NO_REPLICAS).get(index), records)
                followed = followed_by.get(name, NO_REPLICAS).get(index)
                producer = idempotent_batch(followed, records)
                if producer is not None and gateway is not None:
                    gateway.refuse(producer)

    def note(
        self, replica: Replica | None, records: memoryview | None, error: TidelogError
    ) -> None:
        """Note a batch that was refused with this error, unless its log has the order itself."""
        if isinstance(error, NotInspected):
            self._note_led(replica, records)
        elif replica is not None and isinstance(error, NotLeaderOrFollower):
            self._tell_gateway(replica, records)

    def require_takes(
        self, replica: Replica, records: memoryview | None, *, can_serve: bool
    ) -> None:
        """Raise what keeps a led replica from taking the batch, whatever is in it.

        ``NotLeaderOrFollower``, and ``RequestTimedOut`` if an earlier batch of its producer was
        refused and has not come again.
        """
        if not (can_serve or replica.is_diskless):
            raise NotLeaderOrFollower("this node has lost touch with the cluster")
        gateway = self._passed.gateway if replica.is_diskless else None
        if not self._broken and gateway is None:
            return
        producer = idempotent_batch(replica, records)
        if producer is None:
            return
        if gateway is not None and gateway.owes(producer):
            # This node has just begun to lead: what it took before as a gateway comes first.
            self._broken.lose(producer, 0)
            raise NotLeaderOrFollower("earlier batches of the producer are on their way")
        if self._broken.blocks(producer, 0):
            # Another node may have led meanwhile, and have appended it.
            log = replica.log
            self._broken.note_log(producer, 0, log.producers.state, log.log_end_offset)
        is_behind = gateway is not None and gateway.has_lost_before(producer, replica.log)
        if is_behind or self._broken.blocks(producer, 0):
            raise RequestTimedOut("an earlier batch of the producer was refused")
        self._broken.has_come(producer)
        if gateway is not None:
            gateway.has_come(producer)

    def watch(self, replica: Replica, records: memoryview | None, required_offset: int) -> None:
        """Have the gateway know of a batch of a chain if the lead ends before its commit."""
        gateway = self._passed.gateway
        if gateway is not None:
            producer = idempotent_batch(replica, records)
            if producer is not None:
                gateway.watch(producer, replica, required_offset)

    def _note_led(self, replica: Replica | None, records: memoryview | None) -> None:
        producer = idempotent_batch(replica, records)
        if producer is not None:
            self._broken.lose(producer, 0)

    def _tell_gateway(self, replica: Replica, records: memoryview | None) -> None:
        gateway = self._passed.gateway
        if gateway is None or not replica.is_diskless:
            return
        producer = idempotent_batch(replica, records)
        if producer is not None and not gateway.owes(producer):
            gateway.refuse(producer)

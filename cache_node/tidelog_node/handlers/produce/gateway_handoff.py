"""Batches that this node takes as a gateway, for partitions that other zones' nodes lead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog_node.diskless.gateway.produce_parameters import ProduceParameters
from tidelog_node.handlers.produce.batch import require_batch
from tidelog_node.handlers.produce.partitions import NO_REPLICAS, followed_replicas
from tidelog_node.handlers.produce.pending_answers import GATEWAY_WAIT, PendingAck
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext
from tidelog_node.wire.produce import TOPIC_ID_FROM, ProduceRequest, ProduceResult

if TYPE_CHECKING:
    from tidelog_node.diskless.gateway.gateway import Gateway


class GatewayHandoff:
    """Hands batches to the node's gateway. For its event loop only."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self.gateway: Gateway | None = None  # None: records of other leaders are refused

    def replica_of(self, context: RequestContext, name: bytes, index: int) -> Replica | None:
        """Return the replica whose records this node takes for another leader, if it does."""
        gateway = self.gateway
        if gateway is None:
            return None
        replica = followed_replicas(self._replicas, context).get(name, NO_REPLICAS).get(index)
        return replica if replica is not None and gateway.takes(replica) else None

    def take(  # noqa: PLR0917
        self,
        request: ProduceRequest,
        context: RequestContext,
        name: bytes,
        index: int,
        records: memoryview | None,
        results: list[ProduceResult],
    ) -> list[PendingAck]:
        """Take the records and add a result. Return the acks that the answer waits for.

        Raises ``NotLeaderOrFollower`` or another error if this node does not take them.
        """
        version = context.api_version
        replica, gateway = self.replica_of(context, name, index), self.gateway
        if replica is None or gateway is None:
            raise self._replicas.leaders.refusal(name, index, is_id=version >= TOPIC_ID_FROM)
        batch = require_batch(records, request, version, None)
        transactional_id = request.transactional_id
        produced = ProduceParameters(
            version,
            request.acks,
            request.timeout_ms,
            None if transactional_id is None else bytes(transactional_id),
        )
        ack = PendingAck(replica, GATEWAY_WAIT, results, len(results))
        gateway.take(replica, batch, produced, ack if request.acks else None)
        results.append(ProduceResult(index, log_start_offset=_log_start(replica)))
        return [ack] if request.acks else []


def _log_start(replica: Replica) -> int:
    log = replica.opened_log
    return -1 if log is None else log.log_start_offset

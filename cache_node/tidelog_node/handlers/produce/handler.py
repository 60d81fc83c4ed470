"""Produce: appends the batches from the receive buffer, and answers with the results.

A request goes through these steps. The usual one goes through all of them in one call, which
returns the answer.

    admission   requests for diskless partitions wait for room in the chain (``diskless_admission``)
    access      topics that the client may not write are left out (``access``)
    inspection  some topics want their records inspected: small batches here, all others in another
                process (``inspection``); a transaction is verified (``waits``)
    append      the batches of led partitions (``appends``), each checked on its own
                (``batch``); a gateway takes those of others (``gateway_handoff``)
    answer      at once, or after other replicas, the chain or a flush (``pending_answers``)

On diskless partitions ``acks=1`` is ``acks=all``, and waits for the partition's chain. With
``acks=0`` there is no answer: an error closes the connection, and so makes the producer look for
the leader again. The client's next request is handled after the batches of this one are in the log.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidelog_core.errors import ErrorCode

from tidelog_node.answers import Answer, CloseConnection
from tidelog_node.authorization.access import Access
from tidelog_node.diskless.gateway.unknown_producers import UnknownProducers
from tidelog_node.handlers.produce.access import authorized_part
from tidelog_node.handlers.produce.answers import ProduceAnswers
from tidelog_node.handlers.produce.appends import ProduceAppends
from tidelog_node.handlers.produce.batch import ACKS_ALL
from tidelog_node.handlers.produce.diskless_admission import DisklessAdmission
from tidelog_node.handlers.produce.gateway_handoff import GatewayHandoff
from tidelog_node.handlers.produce.inspection import (
    InspectionResults,
    ProduceInspector,
    checks_schemas,
    needs_inspection,
)
from tidelog_node.handlers.produce.late_schemas import LateSchemas
from tidelog_node.handlers.produce.partitions import (
    followed_replicas,
    has_diskless,
    led_replicas,
)
from tidelog_node.handlers.produce.refused_batches import RefusedBatches
from tidelog_node.handlers.produce.waits import ProduceWaits
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import HotRoute, RequestContext
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.transactions.produce_gate import ProduceGate
from tidelog_node.upkeep.flusher import Flusher
from tidelog_node.wire import produce
from tidelog_node.wire.produce import ProduceRequest, parse_produce

if TYPE_CHECKING:
    from tidelog_node.audit.transfers import TransferRecorder
    from tidelog_node.diskless.gateway.gateway import Gateway

# Kafka 4 no longer serves versions 0 to 2 but still lists them: librdkafka before 2.8
# compresses only for brokers that do. Source: KAFKA-18659.
ADVERTISED_MIN_VERSION = 0


class ProduceHandler:
    """Serves Produce on the partitions that this node leads."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        flusher: Flusher,
        inspector: BatchInspector,
        gate: ProduceGate | None = None,
        access: Access | None = None,
        throttle: Throttle | None = None,
        record: TransferRecorder | None = None,
        admission: DisklessAdmission | None = None,
    ) -> None:
        """Without a ``gate`` no transaction can begin here, without ``access`` all may write.

        Without a ``throttle`` there are no quotas. ``record`` records who produces to what.
        ``admission`` knows when requests for diskless partitions must wait.
        """
        self._admission = admission or DisklessAdmission()
        self._access = access
        self._throttle = throttle
        self._record = record
        self._replicas = replicas
        self._counters = node.counters
        self._inspector = ProduceInspector(inspector)
        self._gateway_handoff = GatewayHandoff(replicas)
        now_s = asyncio.get_running_loop().time
        self.unknown_producers = UnknownProducers(now_s)  # those of gateways' requests as well
        self._refused = RefusedBatches(
            replicas, self._gateway_handoff, self.unknown_producers, now_s
        )
        self._answers = ProduceAnswers(
            replicas, self._gateway_handoff, counters=node.counters, throttle=throttle
        )
        self._appends = ProduceAppends(
            node,
            replicas=replicas,
            flusher=flusher,
            gateway_handoff=self._gateway_handoff,
            refused=self._refused,
            answers=self._answers,
            access=access,
        )
        self._waits = ProduceWaits(
            node,
            replicas=replicas,
            inspector=self._inspector,
            schemas=LateSchemas(node, inspector),
            gate=gate,
            appends=self._appends,
            refused=self._refused,
            answers=self._answers,
        )

    @property
    def gateway(self) -> Gateway | None:
        """The gateway for records of other leaders, ``None`` if they are refused."""
        return self._gateway_handoff.gateway

    @gateway.setter
    def gateway(self, gateway: Gateway | None) -> None:
        self._gateway_handoff.gateway = gateway

    def close(self) -> None:
        """Answer the waiting requests with a time-out."""
        self._appends.close()
        self._waits.close()

    def hot_route(self) -> HotRoute:
        """Return the route."""
        return HotRoute(
            api_key=produce.API_KEY,
            min_version=produce.VERSION_MIN,
            max_version=produce.VERSION_MAX,
            flexible_from=produce.FLEXIBLE_FROM,
            parse=parse_produce,
            handle=self.handle,
            advertised_min_version=ADVERTISED_MIN_VERSION,
        )

    def handle(self, request: ProduceRequest, context: RequestContext) -> Answer:
        """Append the request's batches and return the answer.

        Raises ``CloseConnection``, and ``NotYet`` if the request must wait for room in the chain.
        """
        if self._admission.is_active and not self._is_admitted(request, context):
            return self._refuse_late(request, context)
        if self._throttle is not None and self._throttle.is_active:
            # When it has come, not when it is answered: no later request is read in between.
            self._throttle.produced(context, context.size_bytes)
        if self._access is not None:
            request = authorized_part(request, context, self._access, self._counters)
        if self._record is not None:
            is_id = context.api_version >= produce.TOPIC_ID_FROM
            for topic, _ in request.topics:
                self._record.note(context.session, topic, is_id=is_id)
        if not ACKS_ALL <= request.acks <= 1:
            return self._answers.refuse(request, context, ErrorCode.invalid_required_acks)
        inspected: InspectionResults | None = None
        led_by = led_replicas(self._replicas, context)
        if needs_inspection(request, led_by):
            inspected = self._inspector.inspect(request, led_by)
            if inspected.is_spent or checks_schemas(request, led_by):
                return self._waits.inspect(request, context, inspected)
        return self._waits.carry_out(request, context, inspected)

    def _is_admitted(self, request: ProduceRequest, context: RequestContext) -> bool:
        if not (
            has_diskless(request, led_replicas(self._replicas, context))
            or (
                self._gateway_handoff.gateway is not None
                and has_diskless(request, followed_replicas(self._replicas, context))
            )
        ):
            return True
        return self._admission.admit(context.session, request.timeout_ms)

    def _refuse_late(self, request: ProduceRequest, context: RequestContext) -> Answer:
        """Refuse a request that has waited too long for room in the chain."""
        if not request.acks:
            raise CloseConnection("the object store takes no records", is_expected=True)
        if self._access is not None:
            # Others must not have the batches of a topic's producers refused.
            request = authorized_part(request, context, self._access, self._counters)
        self._refused.note_request(request, context)
        return self._answers.refuse(request, context, ErrorCode.request_timed_out)

"""Makes requests to leaders of a gateway's committed batches, each of one object of its chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidelog_core.metadata.records import Broker

from tidelog_node.diskless.gateway.gateway_batches import GatewayBatch
from tidelog_node.diskless.gateway.gateway_objects import GatewayObject
from tidelog_node.wire.gateway_append import BYTES_MAX, SLICES_MAX, GatewayAppend, GatewaySlice


class LeaderRequests:
    """Requests in the order in which their first batches were added."""

    def __init__(self) -> None:
        self._all: list[tuple[Broker, GatewayObject, list[GatewayBatch]]] = []
        # The last request to each leader about each object, and its bytes.
        self._last: dict[tuple[int, GatewayObject], tuple[list[GatewayBatch], int]] = {}

    def __iter__(self) -> Iterator[tuple[Broker, GatewayObject, list[GatewayBatch]]]:
        """Yield the requests."""
        return iter(self._all)

    def add(self, batch: GatewayBatch, leader: Broker) -> bool:
        """Add a committed batch; return whether it is the first one of a request."""
        made = batch.gateway_object
        assert made is not None
        key = leader.broker_id, made
        last = self._last.get(key)
        if last is not None:
            batches, size_bytes = last
            size_bytes += batch.size_bytes
            if len(batches) < SLICES_MAX and size_bytes <= BYTES_MAX:
                batches.append(batch)
                self._last[key] = batches, size_bytes
                return False
        batches = [batch]
        self._last[key] = batches, batch.size_bytes
        self._all.append((leader, made, batches))
        return True


def request_of(gateway_object: GatewayObject, batches: Sequence[GatewayBatch]) -> GatewayAppend:
    """Return the request that says where the object has the batches."""
    chain = gateway_object.chain
    return GatewayAppend(
        chain.name.chain_id,
        chain.committed_end,
        gateway_object.sequence,
        list(map(_slice_of, batches)),
    )


def _slice_of(one: GatewayBatch) -> GatewaySlice:
    produced = one.produced
    return GatewaySlice(
        *one.name,
        one.position,
        one.size_bytes,
        one.crc,
        produced.version,
        produced.acks,
        produced.timeout_ms,
        produced.transactional_id,
        one.header_rest,
    )

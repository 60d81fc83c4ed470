"""Takes records of diskless partitions that another zone's node leads: the bytes stay in the zone.

    take       the batch is checked, and kept in a spool file
    chain      it becomes a foreign slice of this node's next object
    forward    once that object is committed, the leader gets the slice's position in it
    leader     reads it from the bucket, appends it, and puts a reference into its own chain
    answer     comes when the reference is committed, with the offsets

Batches are forwarded in the order of the chain, so a producer's batches stay in order. If the
leader no longer leads, or does not answer, the batches of the partition wait in order, at most as
long as their requests (``ParkedBatches``). If nobody knows whether a leader has appended a batch,
its producer gets NOT_LEADER_OR_FOLLOWER, and sends it again; an idempotent producer gets the old
offset.

**A log must not get a batch whose predecessor was lost** (``BrokenProducers``). So only one leader
process at a time has a partition's batches (``Forwarder``). Once a batch is lost, the later ones of
its producer are refused until it is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from crc32c import crc32c
from tidelog_core.errors import (
    CorruptRecordBatch,
    ErrorCode,
    InvalidRequest,
    RequestTimedOut,
    TidelogError,
)
from tidelog_core.log.append_checks import check_headers
from tidelog_core.log.local_log import LocalLog
from tidelog_core.model import NO_LEADER_EPOCH
from tidelog_core.records.batch import parse_header
from tidelog_core.records.header import patch

from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.diskless.gateway.broken_producers import (
    BehindLost,
    ProducerBatch,
    producer_batch,
)
from tidelog_node.diskless.gateway.forwarder import Forwarder
from tidelog_node.diskless.gateway.gateway_batches import GatewayBatch, GatewayWaiter
from tidelog_node.diskless.gateway.gateway_chain import GatewayChain
from tidelog_node.diskless.gateway.gateway_objects import GatewayObjects, LogEnds
from tidelog_node.diskless.gateway.gateway_topics import may_pass
from tidelog_node.diskless.gateway.pending_batches import PendingBatches
from tidelog_node.diskless.gateway.produce_parameters import ProduceParameters
from tidelog_node.diskless.gateway.spool import GatewaySpool
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.wire.gateway_append import (
    TRANSACTIONAL_ID_BYTES_MAX,
    GatewayAppend,
    GatewayResult,
    header_rest,
)


class Gateway:
    """The batches that this node takes for other leaders. For the node's event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        spool: GatewaySpool,
        own_chain: Callable[[], Awaitable[OwnedChain]],
        send: Callable[[int, GatewayAppend], asyncio.Future[list[GatewayResult]]],
        append_here: Callable[[int, GatewayAppend], Awaitable[list[GatewayResult]]],
        log_ends: LogEnds,
    ) -> None:
        """``send`` sends a request to the broker of that id, as ``LeaderLinks.send``.

        ``append_here`` appends batches that the broker of that id has forwarded to this node as a
        leader. ``log_ends`` asks leaders for their log ends, as ``LeaderLogEnds.of``.
        """
        self._node = node
        self._spool = spool
        self._overlaps = node.static_config.diskless_gateways_overlap_enable
        self._now_s = asyncio.get_running_loop().time
        self._number = 0
        self._objects = GatewayObjects(node, log_ends)
        self._batches = PendingBatches(
            node.counters.gateway,
            spool=spool,
            objects=self._objects,
            bytes_max=node.static_config.diskless_buffer_max_bytes,
            now_s=self._now_s,
        )
        self._broken = self._batches.broken
        self.fullness = self._batches.fullness
        self._forwarding = Forwarder(node, self._batches, send=send, append_here=append_here)
        self._chain = GatewayChain(
            self._batches,
            spool=spool,
            objects=self._objects,
            own_chain=own_chain,
            on_committed=self._forwarding.forward,
        )
        self._is_closed = False
        self._unsubscribe = node.membership.subscribe(self._on_membership)

    @property
    def is_full(self) -> bool:
        """Whether requests of clients must wait."""
        return self._batches.is_full

    def takes(self, replica: Replica) -> bool:
        """Whether producers may write to this replica, which another node leads.

        Without disk or object store they would wait here, if the leader has both.
        """
        is_passed = replica.is_diskless and replica.is_follower and may_pass(replica)
        return is_passed and not self._has_fitter_leader(replica)

    def _has_fitter_leader(self, replica: Replica) -> bool:
        membership, followed = self._node.membership, replica.followed
        if membership.can_store and membership.is_disk_fit:
            return False
        return followed is not None and followed.leader not in membership.unfit

    def take(
        self,
        replica: Replica,
        batch: memoryview,
        produced: ProduceParameters,
        waiter: GatewayWaiter | None,
    ) -> None:
        """Take one batch, which is changed in place. ``waiter`` gets the outcome later, once.

        Raises the errors of ``check_headers``, ``StorageError``, ``RequestTimedOut`` if too many
        batches wait, ``NotLeaderOrFollower`` if an earlier batch of the producer is lost and has
        not come again, and ``InvalidRequest`` if no leader would read the transactional id.
        """
        name = replica.name
        producer = producer_batch(name, parse_header(batch))
        self._number += 1
        number = self._number
        if producer is not None:
            self._broken.take(producer, number)
            log = replica.opened_log
            if log is not None and self._broken.blocks(producer, number):
                self._broken.note_log(producer, number, log.producers.state, log.high_watermark)
            if self._broken.blocks(producer, number):
                raise BehindLost("an earlier batch of the producer is missing")
        try:
            offset_count = self._check(replica, batch, produced)
            place = self._spool.write(batch)
        except TidelogError as error:
            # Nobody knows the producer of a damaged batch.
            if producer is not None and not isinstance(error, CorruptRecordBatch):
                self._broken.lose(producer, number)
            raise
        one = GatewayBatch(
            number,
            replica,
            produced,
            waiter,
            producer,
            place,
            offset_count,
            crc32c(batch),
            self._now_s(),
            header_rest=header_rest(batch) if self._overlaps else None,
        )
        self._batches.add(one)
        self._chain.note(one)

    def _check(self, replica: Replica, batch: memoryview, produced: ProduceParameters) -> int:
        """Turn the batch into a foreign slice; return the number of its offsets."""
        transactional_id = produced.transactional_id
        if transactional_id is not None and len(transactional_id) > TRANSACTIONAL_ID_BYTES_MAX:
            # The leader would close the connection, on which other batches wait for answers.
            raise InvalidRequest(
                f"the transactional id has {len(transactional_id)} bytes,"
                f" through a gateway it may have {TRANSACTIONAL_ID_BYTES_MAX}"
            )
        if self._is_closed or self._batches.are_too_many:
            raise RequestTimedOut("too many batches wait for their leaders")
        ((_, header),) = check_headers(batch, replica.config, now_ms=self._node.clock_ms())
        patch(batch, 0, base_offset=0, leader_epoch=NO_LEADER_EPOCH)
        return header.last_offset_delta + 1

    # -- batches that this node gets as a leader: its role may change between two of a producer --

    def has_pending(self, producer: ProducerBatch) -> bool:
        """Whether batches of the producer and partition are on their way to a leader.

        Those that a former leader has had for too long are lost by this call.
        """
        if self._batches.has_of(producer):
            self._forwarding.give_up_late(producer.partition)
        return self._batches.has_of(producer)

    def has_lost_before(self, producer: ProducerBatch, log: LocalLog) -> bool:
        """Whether an earlier batch was lost here, is not in the led log, and has not come again."""
        self._number += 1
        if self._broken.blocks(producer, self._number):
            self._broken.note_log(producer, self._number, log.producers.state, log.log_end_offset)
        return self._broken.blocks(producer, self._number)

    def has_come(self, producer: ProducerBatch) -> None:
        """Note that this node appends the batch as the leader."""
        self._broken.has_come(producer)

    def refuse(self, producer: ProducerBatch) -> None:
        """Note a batch that was refused before it came here, or is lost with this node's lead."""
        self._number += 1
        self._broken.lose(producer, self._number)

    # -- its life --

    def _on_membership(self) -> None:
        """If the store cannot be written from here, give back the batches that it lacks."""
        if not self._node.membership.can_store:
            self._chain.give_up(lambda one: self._has_fitter_leader(one.replica))

    def on_deposed(self, chain: OwnedChain) -> None:
        """Put uncommitted batches into the next chain: nobody can have seen them."""
        self._chain.on_deposed(chain)

    async def close(self) -> None:
        """Give up the pending batches."""
        self._is_closed = True
        self._unsubscribe()
        self._forwarding.close()
        self._chain.close()
        for one in self._batches:
            self._batches.end(one, ErrorCode.not_leader_or_follower, "this node is stopping")
        await self._objects.close()
        self._spool.close()

"""Batches of gateways that a leader appends before it has read their records.

The request has the batch's header. The leader appends the header with zeros for the records, and
puts a reference into its chain, while it reads the gateway's object.

    append      the log has the header; the high watermark stays at or below the batch. If the
                gateway's last objects were not whole, it is read first (``TrustedGateways``)
    read        the records are checked against the header, and written to their place in the log
    not read    the read is repeated for as long as this node leads, and the partition waits: the
                batch has its offsets, so no other can replace it. Gateways are refused until then
    lead ends   the log is truncated before the first batch that was not read: no log keeps zeros

The gateway's object was committed before the gateway sent the request, so its bytes exist even if
the gateway fails. The next leader reads them by the reference, as it reads all slices that it
lacks.

The records above the high watermark are provisional: they are not served or tiered, and they are
compared with the chains before this node leads or follows again, also after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from tidelog_core.errors import (
    CorruptObject,
    CorruptRecordBatch,
    RequestTimedOut,
    StorageError,
    TidelogError,
)
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.records.batch import HEADER_SIZE, check_crc, parse_header

from tidelog_node.counters import GatewayTraffic
from tidelog_node.diskless.chain.chain_partition import ChainPartition
from tidelog_node.diskless.gateway.gateway_reads import READ_SECONDS_MAX, GatewayReads
from tidelog_node.diskless.gateway.read_slots import ReadSlots
from tidelog_node.diskless.gateway.trusted_gateways import TrustedGateways
from tidelog_node.diskless.recovery.slice_reads import SlicePlace
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.replicas.role import AckWaiter
from tidelog_node.wire.gateway_append import GatewaySlice, header_rest

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0  # until the next try, and twice as long each time
AGAIN_SECONDS_MAX = 10.0
LATE_MAX = 1_000  # requests whose batches could not be read at once


class UnreadBatch(NamedTuple):
    """A batch whose header alone is in the log."""

    partition: ChainPartition
    base_offset: int
    header: bytes  # as the log has it
    place: SlicePlace  # in the gateway's object
    waiter: AckWaiter  # gets an error if the batch cannot be read at once

    @property
    def is_wanted(self) -> bool:
        """Whether the log still waits for the records."""
        partition = self.partition
        return partition.replica.chain is partition and self.base_offset in partition.unread


class UnreadBatches:
    """Writes the records of one node's unread batches into their logs. For its event loop."""

    def __init__(
        self,
        replicas: ReplicaManager,
        reads: GatewayReads,
        slots: ReadSlots,
        *,
        trusted: TrustedGateways,
        traffic: GatewayTraffic,
    ) -> None:
        self._replicas = replicas
        self._trusted = trusted
        self._traffic = traffic
        self._reads = reads
        self._slots = slots
        self._partitions: dict[Replica, ChainPartition] = {}  # that have unread batches
        self._late: set[asyncio.Task[None]] = set()
        self._is_closed = False
        # After ``RefusedBatches``, which looks at what the log has above the high watermark.
        replicas.roles.ending_lead.subscribe(self._cut)

    async def close(self) -> None:
        """End the reads. The logs are truncated when this node stops leading."""
        self._is_closed = True
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)

    def require_room(self, partition: ChainPartition) -> None:
        """Raise ``RequestTimedOut`` while earlier batches of the partition cannot be read."""
        if len(self._late) >= LATE_MAX:
            raise RequestTimedOut("too many gateways' batches cannot be read")
        since_s = next(iter(partition.unread.values()), None)
        now_s = asyncio.get_running_loop().time()
        if since_s is not None and now_s - since_s > READ_SECONDS_MAX:
            raise RequestTimedOut("an earlier batch of a gateway cannot be read")

    def note(self, partition: ChainPartition) -> None:
        """Note that the partition has unread batches."""
        self._partitions[partition.replica] = partition

    async def fill(self, gateway: ChainName, key: str, batches: Sequence[UnreadBatch]) -> None:
        """Read the batches of one object into their logs, at once or later.

        The caller holds a slot of the gateway.
        """
        try:
            left = await self._try(gateway, key, batches)
        except BaseException:  # Above all: the gateway waits for no answer any more.
            self.fill_later(gateway, key, batches)
            raise
        if left:
            self.fill_later(gateway, key, left, delay_s=AGAIN_SECONDS)
            for one in left:  # So nothing that came with it waits for it.
                one.waiter.on_ack(RequestTimedOut("the batch cannot be read now"))

    def fill_later(
        self, gateway: ChainName, key: str, batches: Sequence[UnreadBatch], *, delay_s: float = 0.0
    ) -> None:
        """Read the batches once there is a slot, as often as it takes."""
        if self._is_closed:
            return
        task = asyncio.create_task(self._fill_later(gateway, key, batches, delay_s))
        self._late.add(task)
        self._traffic.late_count += 1
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._late.discard(task)
        self._traffic.late_count -= 1

    async def _fill_later(
        self, gateway: ChainName, key: str, batches: Sequence[UnreadBatch], delay_s: float
    ) -> None:
        while batches:
            await asyncio.sleep(delay_s)
            delay_s = min(max(2 * delay_s, AGAIN_SECONDS), AGAIN_SECONDS_MAX)
            async with self._slots.of(gateway.broker_id):
                try:
                    batches = await self._try(gateway, key, batches)
                except Exception:  # Otherwise the partitions would wait for ever.
                    logger.exception("the read of a gateway's object broke, it is tried again")

    async def _try(
        self, gateway: ChainName, key: str, batches: Sequence[UnreadBatch]
    ) -> list[UnreadBatch]:
        """Return the batches that are still unread, and wanted."""
        wanted = self._wanted_of(batches)
        if not wanted:
            return []
        left, was_whole = await self._read(key, wanted)
        if was_whole:
            self._trusted.note_whole(gateway)
        else:
            self._trusted.note_broken(gateway)
        return left

    def _wanted_of(self, batches: Sequence[UnreadBatch]) -> list[UnreadBatch]:
        wanted = [one for one in batches if one.is_wanted]
        for partition in {one.partition for one in batches} - {one.partition for one in wanted}:
            # Others may have unread batches of other requests, or of a chain that has ended before
            # the lead: the log is cut before them.
            if partition.replica.is_dropped or not partition.unread:
                self._forget(partition)
        return wanted

    async def _read(
        self, key: str, wanted: Sequence[UnreadBatch]
    ) -> tuple[list[UnreadBatch], bool]:
        """Return the batches that are still unread, and whether the object had all of them."""
        try:
            parts = await self._reads.read(key, [one.place for one in wanted])
        except (TidelogError, TimeoutError) as error:
            if isinstance(error, CorruptObject) and len(wanted) > 1:
                left: list[UnreadBatch] = []
                for one in wanted:  # Others may be whole.
                    if again := self._wanted_of([one]):
                        left += (await self._read(key, again))[0]
                return left, False
            logger.warning(
                "a gateway's object cannot be read, its partitions wait until it can",
                extra={"key": key, "reason": repr(error), "count": len(wanted)},
            )
            return [one for one in wanted if one.is_wanted], False
        left = [
            one for one, data in zip(wanted, parts, strict=True) if not self._take(one, data, key)
        ]
        return left, not left

    def _take(self, one: UnreadBatch, data: bytearray, key: str) -> bool:
        """Write a batch's records into the log; return false if they do not match its header."""
        if not one.is_wanted:
            return True
        try:
            _require_rest(data, header_rest(one.header))
            check_crc(data, 0, parse_header(data))
        except CorruptRecordBatch as error:
            logger.error(
                "a gateway's object has other records than were announced, its partition waits"
                " until it has them: restore the object, or remove the topic",
                extra={
                    "key": key,
                    "partition": str(one.partition.replica.partition),
                    "offset": one.base_offset,
                    "reason": str(error),
                },
            )
            return False
        data[:HEADER_SIZE] = one.header
        self._complete(one, data)
        return True

    def _complete(self, one: UnreadBatch, data: bytearray) -> None:
        replica, is_there = one.partition.replica, False
        try:
            is_there = replica.log.complete(one.base_offset, data)
        except StorageError as error:
            replica.note_failure(error)
        if is_there:
            one.partition.note_read(one.base_offset)
            if not one.partition.unread:
                self._forget(one.partition)
        else:  # The log has lost it. The next takeover compares log and chains.
            self._replicas.end_lead(replica)

    def _forget(self, partition: ChainPartition) -> None:
        if self._partitions.get(partition.replica) is partition:
            del self._partitions[partition.replica]

    def _cut(self, replica: Replica) -> None:
        """Truncate the log of a partition before its unread batches, once it is no longer led."""
        partition = self._partitions.pop(replica, None)
        log = replica.opened_log
        if partition is None or log is None or not partition.unread:
            return
        offset = next(iter(partition.unread))
        partition.unread.clear()
        if log.high_watermark <= offset < log.log_end_offset and not log.is_offline:
            try:
                log.truncate_to(offset)
            except StorageError as error:
                replica.note_failure(error)


def require_announced(slices: Sequence[GatewaySlice], parts: Sequence[bytearray]) -> None:
    """Raise ``CorruptRecordBatch`` unless these are the batches whose headers were announced."""
    for one, data in zip(slices, parts, strict=True):
        if one.header_rest is not None:
            _require_rest(data, one.header_rest)


def _require_rest(data: bytearray, rest: bytes) -> None:
    if header_rest(data) != rest:
        raise CorruptRecordBatch("it is not the batch that the gateway has announced")

"""A gateway's batches, and the interface of the requests that wait for them."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from tidelog_core.errors import ErrorCode
from tidelog_core.model import NO_LEADER_EPOCH

from tidelog_node.diskless.gateway.broken_producers import ProducerBatch
from tidelog_node.diskless.gateway.gateway_objects import GatewayObject
from tidelog_node.diskless.gateway.produce_parameters import ProduceParameters
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.wal_messages import FileRange, SliceFiles

WAIT_SECONDS_MAX = 30.0  # for another leader


class GatewayWaiter(Protocol):
    """Waits for the outcome of a batch."""

    def on_placed(self, base_offset: int) -> None:
        """Take the batch's base offset: it is committed."""

    def fail(self, code: ErrorCode, message: str) -> None:
        """Take the batch's error: it has failed, or nobody knows."""


class GatewayBatch:
    """A batch from the request that brings it to its answer."""

    __slots__ = (
        "crc",
        "files",
        "gateway_object",
        "header_rest",
        "name",
        "number",
        "offset_count",
        "place",
        "position",
        "produced",
        "producer",
        "replica",
        "taken_s",
        "waiter",
    )

    def __init__(  # noqa: PLR0917
        self,
        number: int,
        replica: Replica,
        produced: ProduceParameters,
        waiter: GatewayWaiter | None,
        producer: ProducerBatch | None,
        place: FileRange,
        offset_count: int,
        crc: int,
        taken_s: float,
        *,
        header_rest: bytes | None,
    ) -> None:
        """``header_rest`` is for a leader that is to read the batch later, see ``GatewaySlice``."""
        self.number = number
        self.replica = replica
        self.name = replica.name
        self.produced = produced
        self.waiter = waiter
        self.producer = producer
        self.place = place
        self.files = SliceFiles(*self.name, NO_LEADER_EPOCH, -1, offset_count, (place,), True)
        self.offset_count = offset_count
        self.crc = crc
        self.header_rest = header_rest
        self.taken_s = taken_s  # the loop's time
        self.gateway_object: GatewayObject | None = None  # the committed object that has it
        self.position = 0  # there

    @property
    def deadline_s(self) -> float:
        """The time until which it waits for a leader, by the loop's clock."""
        return self.taken_s + min(max(self.produced.timeout_ms, 0) / 1000, WAIT_SECONDS_MAX)

    @property
    def size_bytes(self) -> int:
        """The bytes of the batch."""
        return self.place.end - self.place.start


class SentBatches:
    """The batches of a partition that one leader process has and has not answered."""

    __slots__ = ("batches", "leader", "left_s")

    def __init__(self, leader: UUID) -> None:
        self.leader = leader
        self.batches: dict[int, GatewayBatch] = {}  # by number
        self.left_s: float | None = None  # since when another process leads, by the loop's time

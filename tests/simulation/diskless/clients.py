"""Idempotent and transactional producers, which repeat what is not acknowledged.

Now and then one goes on in the next epoch: it repeats there what is not acknowledged, and what it has
sent before may still arrive. A transaction may be ended in the next epoch, as by KIP-890.
"""

from __future__ import annotations

from random import Random

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.records.control import ControlType

from tests.simulation.diskless.checker import Entry
from tests.simulation.diskless.leader_log import make_batch
from tests.simulation.diskless.node import Setup

TIMEOUT_MS = 120.0
IN_FLIGHT_MAX = 3
BURST_MS, BURST_EVERY_MS = 50.0, 160.0
BUMP_CHANCE, BUMPING_END_CHANCE = 0.03, 0.5


class Client:
    """One producer of one partition."""

    def __init__(
        self,
        producer_id: int,
        partition: PartitionName,
        setup: Setup,
        random: Random,
        *,
        is_elsewhere: bool = False,
        is_transactional: bool = False,
        is_bursty: bool = False,
    ) -> None:
        self.producer_id = producer_id
        self.partition = partition
        self.is_elsewhere = is_elsewhere  # in another zone than the leader
        self.is_transactional = is_transactional
        self.is_bursty = is_bursty
        self.is_stopped = False
        self.acked = 0
        self._setup, self._random = setup, random
        self._epoch = 0
        self._end_epoch = 0  # of the marker that is pending
        self._next = 0  # sequence
        self._waiting: dict[int, float] = {}  # sequence: when it was sent last
        self._ending: ControlType | None = None
        self._ended_ms = 0.0
        self._arrives_ms = 0.0
        self._in_transaction = 0  # records
        setup.world.after(random.random() * 10, self._turn)

    def _turn(self) -> None:
        world = self._setup.world
        world.after(6.0 + self._random.random() * 12, self._turn)
        now = world.now_ms
        for sequence in sorted(self._waiting):
            if now - self._waiting[sequence] > TIMEOUT_MS:
                for later in sorted(self._waiting):  # in order, from the first on
                    self._send(later)
                break
        if self._ending is not None:
            if now - self._ended_ms > TIMEOUT_MS:
                self._end()
            return
        if self.is_stopped:
            if self.is_transactional and not self._waiting and self._in_transaction:
                self._begin_end()
            return
        if self.is_bursty and now % BURST_EVERY_MS > BURST_MS:
            return
        # A log that does not know the producer takes any sequence as its first one.
        if self.acked and not self.is_transactional and self._random.random() < BUMP_CHANCE:
            self._begin_epoch(self._epoch + 1)
        # A log takes any first sequence of a producer that it does not know.
        # It retains a producer's last batches only, so no more than these are ever open.
        first = min(self._waiting, default=self._next)
        if self._next - first < (IN_FLIGHT_MAX if self.acked else 1):
            self._next += 1
            self._in_transaction += 1
            self._send(self._next - 1)
        if self.is_transactional and self._in_transaction >= 4:
            self._begin_end()

    @property
    def is_waiting(self) -> bool:
        """Whether something is pending to it."""
        return bool(self._waiting) or self._ending is not None

    def _send(self, sequence: int) -> None:
        self._waiting[sequence] = self._setup.world.now_ms
        data = make_batch(
            self.producer_id, self._epoch, sequence, is_transactional=self.is_transactional
        )
        self._ask("produce", self, self.partition, data)

    def _begin_epoch(self, epoch: int) -> None:
        count = len(self._waiting)
        self._epoch, self._next = epoch, count
        self._waiting.clear()
        for sequence in range(count):
            self._send(sequence)

    def _begin_end(self) -> None:
        self._ending = ControlType.ABORT if self._random.random() < 0.4 else ControlType.COMMIT
        self._end_epoch = self._epoch + (self._random.random() < BUMPING_END_CHANCE)
        self._end()

    def _end(self) -> None:
        self._ended_ms = self._setup.world.now_ms
        if not self._waiting:
            producer = self.producer_id, self._end_epoch
            self._ask("end_transaction", self, self.partition, producer, self._ending)
        else:
            self._ended_ms -= TIMEOUT_MS - 15.0

    def _ask(self, handler: str, *args: object) -> None:
        leader = self._setup.items.items[self.partition].chains[-1].chain.broker_id
        target = leader
        if self.is_elsewhere and handler == "produce":
            target = (leader + 1 + self.producer_id % (len(self._setup.nodes) - 1)) % len(
                self._setup.nodes
            )
        # A connection keeps the order.
        world = self._setup.world
        self._arrives_ms = max(
            self._arrives_ms + 0.01, world.now_ms + 1 + self._random.random() * 3
        )
        world.at(
            self._arrives_ms,
            self._setup.nodes[target].deliver,
            handler,
            args,
        )

    def on_ack(self, entry: Entry) -> None:
        """A record is acknowledged."""
        if entry.epoch == self._epoch and self._waiting.pop(entry.sequence, None) is not None:
            self.acked += 1

    def on_ended(self) -> None:
        """The transaction has ended."""
        if self._ending is None:
            return
        self._ending = None
        self._in_transaction = 0
        if self._end_epoch != self._epoch:
            self._begin_epoch(self._end_epoch)

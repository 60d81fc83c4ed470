"""Clients: idempotent producers that retry until they are acknowledged, others, a consumer."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from tidelog_core.errors import ErrorCode

from tests.simulation.node import SimNode
from tests.simulation.world import CLIENT, Handler, Network, World
from tests.support.sim_log import NOT_IDEMPOTENT, Entry

REQUEST_TIMEOUT_MS = 200.0
RETRY_BACKOFF_MS = 25.0
POLL_INTERVAL_MS = 90.0


class Client:
    """Sends one request at a time to the broker that it believes in."""

    broker_id = CLIENT

    def __init__(
        self, nodes: Sequence[SimNode], world: World, network: Network, random: Random
    ) -> None:
        self._nodes, self._world, self._network, self._random = nodes, world, network, random
        self._node = random.choice(nodes)
        self._attempt = 0

    def deliver(self, handler: Handler, args: tuple[Any, ...]) -> None:
        """Take an answer."""
        handler(*args)

    def _find_leader(self) -> None:
        """Ask any broker who leads, as Metadata would tell."""
        asked = self._random.choice([node for node in self._nodes if node.is_up] or self._nodes)
        partition = asked.state.partition if asked.is_up else None
        if partition is not None and partition.leader >= 0:
            self._node = next(n for n in self._nodes if n.broker_id == partition.leader)
        else:
            self._node = asked


class Producer(Client):
    """Produces its numbers in order, each until it is acknowledged."""

    def __init__(
        self, producer_id: int, *, is_all: bool, interval_ms: float, **shared: Any
    ) -> None:
        super().__init__(**shared)
        self._producer_id = producer_id if is_all else producer_id + NOT_IDEMPOTENT
        self._is_all = is_all
        self._interval_ms = interval_ms
        self._sequence = 0
        self.acked_count = 0
        self.is_stopped = False
        self._world.after(self._random.random() * 50, self._send)

    @property
    def is_waiting(self) -> bool:
        """Whether a record is neither acknowledged nor given up."""
        return self._sequence > self.acked_count

    def _send(self) -> None:
        if self.is_stopped:
            return
        self._sequence += 1
        self._try()

    def _try(self) -> None:
        self._attempt += 1
        attempt, node = self._attempt, self._node
        self._world.after(REQUEST_TIMEOUT_MS, self._on_timeout, attempt)
        payload = (self._producer_id, self._sequence - 1)

        def reply(error: ErrorCode) -> None:
            self._network.send(node.broker_id, self, self._on_answer, attempt, error)

        self._network.send(CLIENT, node, node.on_produce, payload, self._is_all, reply)

    def _on_answer(self, attempt: int, error: ErrorCode) -> None:
        if attempt != self._attempt:
            return
        self._attempt += 1
        if error is ErrorCode.none or (
            error is ErrorCode.out_of_order_sequence_number  # possible after a loss only
        ):
            self.acked_count = self._sequence
            self._world.after(self._interval_ms * (0.5 + self._random.random()), self._send)
            return
        self._retry()

    def _on_timeout(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._attempt += 1
            self._retry()

    def _retry(self) -> None:
        if not self._is_all:
            self._sequence += 1  # Without sequence numbers a retry is another record.
        self._find_leader()
        self._world.after(RETRY_BACKOFF_MS, self._try)


class Consumer(Client):
    """Reads everything from the start, from leaders and followers alike."""

    def __init__(self, **shared: Any) -> None:
        super().__init__(**shared)
        self.position = 0
        self._awaits_answer = False
        self._world.after(50, self._poll)

    def _poll(self) -> None:
        if self._random.random() < 0.3:
            self._node = self._random.choice(self._nodes)
        self._attempt += 1
        self._awaits_answer = True
        attempt, node = self._attempt, self._node
        self._world.after(POLL_INTERVAL_MS, self._on_timeout, attempt)

        def reply(error: ErrorCode, entries: list[Entry]) -> None:
            self._network.send(node.broker_id, self, self._on_answer, attempt, error, entries)

        self._network.send(CLIENT, node, node.on_consume, self.position, reply)

    def _on_answer(self, attempt: int, error: ErrorCode, entries: list[Entry]) -> None:
        if attempt == self._attempt and self._awaits_answer:
            self._awaits_answer = False  # The network may bring it twice.
            self.position += len(entries)
            if error is ErrorCode.offset_out_of_range:
                self.position = 0
            elif error is not ErrorCode.none:
                self._find_leader()

    def _on_timeout(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._poll()

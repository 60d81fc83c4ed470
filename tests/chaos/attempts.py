"""Transactions that are under way, and what sessions that have them have in common."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.history import PIPED, Outcome, PartitionKey, Transaction
from tests.chaos.scene import Scene

SESSION_SECONDS = 4.0, 20.0
PIPELINE_GROUP = "pipeline"
PIPELINE_SESSION_TIMEOUT_MS = 6_000
TRANSACTION_TIMEOUT_MS = 8_000
RECORDS_MAX = 8  # of one transaction
ABORTED_PART = 0.2  # of the transactions are given up on purpose


@dataclass(slots=True)
class Attempt:
    """A transaction under way: it is noted in the history when it ends."""

    scene: Scene
    session: str
    number: int
    invoked_s: float
    values: list[tuple[str, int, str]]

    @classmethod
    def begin(cls, scene: Scene, session: str, number: int) -> Attempt:
        """Return one that has no records yet."""
        return cls(scene, session, number, scene.clock_s(), [])

    def record(self, name: PartitionKey, text: str) -> bytes:
        """Return the value of the next record, which is about to be sent to the partition."""
        value = f"{text}{PIPED}{self.session}.{self.number}.{len(self.values)}"
        self.values.append((name.topic, name.partition, value))
        return value.encode()

    def end(self, outcome: Outcome, problem: object = "") -> None:
        """Note what became of it."""
        if self.values:
            self.scene.history.add(self.told(outcome, problem))

    def told(self, outcome: Outcome, problem: object = "") -> Transaction:
        """Return it as it is noted if this is what becomes of it now."""
        return Transaction(
            self.session,
            self.number,
            tuple(self.values),
            self.invoked_s,
            self.scene.clock_s(),
            outcome,
            str(problem),
        )

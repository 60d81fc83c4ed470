"""The consumer group that reads the tail of all topics, checks every record, and commits.

Order: ``until <end offset of each partition of tail>``; the client ends there, or at ``stop``. In
``tail`` a record's number is its offset, which shows lost, duplicate and disordered records at
once. In the other topics numbers only rise, and none is of an aborted transaction: the group reads
committed records.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import Consumer, KafkaException, Message

from bench.soak.client import Orders, Reporter
from bench.soak.shape import ABORTED, LEDGER, TABLE, TAIL, TAIL_PARTITIONS, read_value

GROUP = "soak"
COMMIT_SECONDS = 1.0
MEASURED_EVERY = 8
PROBLEMS_MAX = 10
POLL_RECORDS = 500


class Group:
    """The only member of the group: a rebalance would deliver records twice."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 65_536,
                "fetch.wait.max.ms": 100,
            }
        )
        self._consumer.subscribe([TAIL, TABLE, LEDGER])
        self._orders = Orders()
        self._reporter = Reporter()
        self._next = [0] * TAIL_PARTITIONS
        self._newest = {TABLE: -1, LEDGER: -1}
        self._until: list[int] | None = None
        self._count = self._commits = 0
        self._problems: list[str] = []

    def run(self) -> None:
        """Consume until stopped, or up to the ordered end offsets."""
        commit_at = time.monotonic() + COMMIT_SECONDS
        while not self._orders.is_stopped:
            order = self._orders.take()
            if order is not None:
                self._until = [int(word) for word in order[1:]]
            for message in self._consumer.consume(POLL_RECORDS, 0.1):
                self._take(message)
            if time.monotonic() >= commit_at and self._count:
                self._consumer.commit(asynchronous=True)
                self._commits += 1
                commit_at = time.monotonic() + COMMIT_SECONDS
            if self._reporter.is_due():
                self._tell()
            if self._until is not None and self._until == self._next:
                break
        if self._count:
            self._commit_rest()
        self._consumer.close()
        self._tell(final=True)

    def _commit_rest(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as problem:
            if problem.args[0].name() != "_NO_OFFSET":
                raise
            # Earlier asynchronous commits had all offsets; the ends are checked later.

    def _take(self, message: Message) -> None:
        if message.error() is not None:
            self._complain(str(message.error()))
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        try:
            number, due_ns = read_value(message.value() or b"")
        except ValueError as problem:
            self._complain(f"{topic}-{partition} offset {offset}: {problem}")
            return
        self._count += 1
        if topic == TAIL:
            if number != offset or offset != self._next[partition]:
                expected = self._next[partition]
                self._complain(
                    f"{topic}-{partition}: offset {offset} has number {number}, expected {expected}"
                )
            self._next[partition] = offset + 1
            if self._count % MEASURED_EVERY == 0:
                self._reporter.note("end to end", (time.monotonic_ns() - due_ns) / 1e6)
            return
        if number & ABORTED:
            self._complain(f"{topic} offset {offset} is of an aborted transaction")
        elif number <= self._newest[topic]:
            self._complain(f"{topic} offset {offset}: {number} after {self._newest[topic]}")
        else:
            self._newest[topic] = number

    def _complain(self, problem: str) -> None:
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(problem)

    def _tell(self, *, final: bool = False) -> None:
        self._reporter.tell(
            {
                "next": self._next,
                "consumed": self._count,
                "commits": self._commits,
                "problems": self._problems,
                "final": final,
            }
        )


if __name__ == "__main__":
    Group(sys.argv[1]).run()

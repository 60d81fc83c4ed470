"""The short-lived clients: readers from the start of the log, and visitors.

Every ``ROUND_SECONDS`` a new consumer reads one partition of ``tail`` from its earliest record to
its end at that time. Retention may delete records during the read; a wrong record is an error.
Between the rounds a visitor writes a record, joins a group, reads the record, commits and leaves,
each with a new producer id and member id.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.soak.client import Orders, Reporter
from bench.soak.shape import TAIL, TAIL_PARTITIONS, VISITORS, read_value

ROUND_SECONDS = 30.0
VISIT_SECONDS = 5.0
READ_SECONDS_MAX = 120.0
JOIN_SECONDS_MAX = 30.0


class Cold:
    """Runs read rounds and visits in turn."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._orders = Orders()
        self._reporter = Reporter()
        self._rounds = self._visits = self._bytes = self._skips = 0
        self._problems: list[str] = []

    def run(self) -> None:
        """Read rounds and visits at their intervals until stopped."""
        round_at = visit_at = time.monotonic() + VISIT_SECONDS
        while not self._orders.is_stopped:
            if time.monotonic() >= round_at:
                self._read(self._rounds % TAIL_PARTITIONS)
                self._rounds += 1
                round_at = time.monotonic() + ROUND_SECONDS
            elif time.monotonic() >= visit_at:
                self._visit()
                visit_at = time.monotonic() + VISIT_SECONDS
            if self._reporter.is_due():
                self._tell()
            time.sleep(0.1)
        self._tell(final=True)

    def _read(self, partition: int) -> None:
        consumer = self._consumer("cold")
        try:
            wanted = TopicPartition(TAIL, partition)
            begin, end = consumer.get_watermark_offsets(wanted, 30)
            consumer.assign([TopicPartition(TAIL, partition, begin)])
            started, expected, read_bytes = time.monotonic(), begin, 0
            while expected < end and not self._orders.is_stopped:
                if time.monotonic() - started > READ_SECONDS_MAX:
                    self._problems.append(f"{TAIL}-{partition}: still at {expected} of {end}")
                    break
                for message in consumer.consume(500, 0.5):
                    if message.error() is not None:
                        self._problems.append(str(message.error()))
                        continue
                    offset, value = message.offset() or 0, message.value() or b""
                    self._check(partition, offset, value)
                    if offset < expected:
                        self._problems.append(f"{TAIL}-{partition}: {offset} after {expected - 1}")
                    self._skips += offset > expected
                    expected = offset + 1
                    read_bytes += len(value)
            self._bytes += read_bytes
            if read_bytes:
                seconds = time.monotonic() - started
                self._reporter.note("cold read of 100 MB", seconds * 1e8 / read_bytes * 1000)
        finally:
            consumer.close()

    def _check(self, partition: int, offset: int, value: bytes) -> None:
        try:
            number, _ = read_value(value)
        except ValueError as problem:
            self._problems.append(f"{TAIL}-{partition} offset {offset}: {problem}")
            return
        if number != offset:
            self._problems.append(f"{TAIL}-{partition}: {offset} has number {number}")

    def _visit(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True})
        text = str(self._visits)
        producer.produce(VISITORS, text, partition=0)
        if producer.flush(JOIN_SECONDS_MAX):
            self._problems.append(f"visit {text}: not acknowledged")
            return
        consumer = self._consumer(VISITORS)
        try:
            consumer.subscribe([VISITORS])
            deadline = time.monotonic() + JOIN_SECONDS_MAX
            while (message := consumer.poll(0.5)) is None or message.error() is not None:
                if time.monotonic() > deadline:
                    self._problems.append(f"visit {text}: nothing came")
                    return
            if message.value() != text.encode():
                self._problems.append(f"visit {text}: read {message.value()!r}")
            consumer.commit(message=message, asynchronous=False)
            self._visits += 1
        finally:
            consumer.close()

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "queued.max.messages.kbytes": 32_768,
            }
        )

    def _tell(self, *, final: bool = False) -> None:
        self._reporter.tell(
            {
                "rounds": self._rounds,
                "visits": self._visits,
                "cold bytes": self._bytes,
                "skips": self._skips,
                "problems": self._problems[:10],
                "final": final,
            }
        )


if __name__ == "__main__":
    Cold(sys.argv[1]).run()

"""The client that fills ``tail``: as fast as it can, or at a fixed pace.

Orders: ``pace <bytes a second>``, ``pace max``, ``pace 0``. With a pace every record has a due
time, from which its latency counts: a stalled node also delays the records that could not be sent.
The delay of this process itself is reported too, as the machine's part of the latency.
"""

from __future__ import annotations

import sys
import time
from functools import partial

from confluent_kafka import KafkaError, Message, Producer

from bench.soak.client import Orders, Reporter
from bench.soak.shape import TAIL, TAIL_PARTITIONS, TAIL_RECORD_BYTES, make_value

TICK_SECONDS = 0.005
BURST_MAX = 256  # records per tick, before orders and acknowledgements are handled
MEASURED_EVERY = 8  # records of each partition; measuring all of them would cost too much
QUEUE_KBYTES_MAX = 131_072
FLUSH_SECONDS_MAX = 120


class Load:
    """Produces to every partition in turn, numbered by partition."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.size": 1_000_000,
                "queue.buffering.max.kbytes": QUEUE_KBYTES_MAX,
                "queue.buffering.max.messages": 1_000_000,
                "message.timeout.ms": FLUSH_SECONDS_MAX * 1000,
            }
        )
        self._orders = Orders()
        self._reporter = Reporter()
        self._sent = 0
        self._failed = 0
        self._bytes_per_second: float | None = 0.0  # None: as fast as possible
        self._began_s = time.monotonic()
        self._paced = 0  # records since that time

    def run(self) -> None:
        """Produce until stopped, then wait for every acknowledgement."""
        while not self._orders.is_stopped:
            order = self._orders.take()
            if order is not None:
                self._bytes_per_second = None if order[1] == "max" else float(order[1])
                self._began_s, self._paced = time.monotonic(), 0
            is_behind = self._tick()
            self._producer.poll(0)
            if self._reporter.is_due():
                self._tell()
            if not is_behind:
                time.sleep(TICK_SECONDS)
        left = self._producer.flush(FLUSH_SECONDS_MAX)
        self._failed += left
        self._tell(final=True)

    def _tick(self) -> bool:
        """Send the records due now; return whether more are due already."""
        if self._bytes_per_second is None:
            for _ in range(BURST_MAX):
                self._send(time.monotonic_ns())
            return True
        rate = self._bytes_per_second / TAIL_RECORD_BYTES
        due = int((time.monotonic() - self._began_s) * rate) - self._paced
        for _ in range(min(due, BURST_MAX)):
            self._paced += 1
            self._send(int((self._began_s + self._paced / rate) * 1e9))
        return due > BURST_MAX

    def _send(self, due_ns: int) -> None:
        number, partition = divmod(self._sent, TAIL_PARTITIONS)
        value = make_value(number, due_ns, TAIL_RECORD_BYTES)
        is_measured = number % MEASURED_EVERY == 0
        if is_measured:
            self._reporter.note("load late", (time.monotonic_ns() - due_ns) / 1e6)
        noted = partial(self._on_delivery, due_ns if is_measured else None)
        while True:
            try:
                self._producer.produce(TAIL, value, partition=partition, on_delivery=noted)
                break
            except BufferError:
                self._producer.poll(0.01)
        self._sent += 1

    def _on_delivery(self, due_ns: int | None, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed += 1
        elif due_ns is not None:
            self._reporter.note("produce", (time.monotonic_ns() - due_ns) / 1e6)

    def _tell(self, *, final: bool = False) -> None:
        counts = [
            (self._sent + TAIL_PARTITIONS - 1 - partition) // TAIL_PARTITIONS
            for partition in range(TAIL_PARTITIONS)
        ]
        self._reporter.tell(
            {
                "sent": self._sent,
                "acknowledged": self._sent - self._failed - len(self._producer),
                "failed": self._failed,
                "counts": counts,
                "final": final,
            }
        )


if __name__ == "__main__":
    Load(sys.argv[1]).run()

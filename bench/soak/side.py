"""The client that steadily writes a few records to the compacted topics.

An idempotent producer writes ``table``. ``ledger`` is written in transactions, and every fifth one
is aborted. The last report has the newest number of every key, which a reader must find.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import KafkaError, Message, Producer

from bench.soak.client import Orders, Reporter
from bench.soak.shape import (
    ABORTED,
    LEDGER,
    LEDGER_KEYS,
    SMALL_RECORD_BYTES,
    TABLE,
    TABLE_KEYS,
    make_value,
)

TICK_SECONDS = 0.1
TABLE_RECORDS_OF_TICK = 50
LEDGER_RECORDS_OF_TICK = 20
ABORTED_EVERY = 5  # transactions
SECONDS_MAX = 60.0


class Side:
    """In each tick writes a few records of the table and one transaction."""

    def __init__(self, bootstrap: str) -> None:
        common = {"bootstrap.servers": bootstrap, "linger.ms": 5}
        self._table = Producer({**common, "enable.idempotence": True})
        self._ledger = Producer({**common, "transactional.id": "soak"})
        self._ledger.init_transactions(SECONDS_MAX)
        self._orders = Orders()
        self._reporter = Reporter()
        self._table_count = self._ledger_count = self._transaction_count = 0
        self._failed = 0

    def run(self) -> None:
        """Write until stopped."""
        due = time.monotonic()
        while not self._orders.is_stopped:
            self._fill_table()
            self._run_transaction()
            if self._reporter.is_due():
                self._tell()
            due = max(due + TICK_SECONDS, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
        self._failed += self._table.flush(SECONDS_MAX)
        self._tell(final=True)

    def _fill_table(self) -> None:
        for _ in range(TABLE_RECORDS_OF_TICK):
            number = self._table_count
            value = make_value(number, time.monotonic_ns(), SMALL_RECORD_BYTES)
            key = str(number % TABLE_KEYS)
            self._table.produce(TABLE, value, key, partition=0, on_delivery=self._on_delivery)
            self._table_count += 1
        self._table.poll(0)

    def _run_transaction(self) -> None:
        is_aborted = self._transaction_count % ABORTED_EVERY == ABORTED_EVERY - 1
        started = time.monotonic()
        self._ledger.begin_transaction()
        for index in range(LEDGER_RECORDS_OF_TICK):
            number = self._ledger_count + index
            key = str(number % LEDGER_KEYS)
            value = make_value(
                number | ABORTED if is_aborted else number,
                time.monotonic_ns(),
                SMALL_RECORD_BYTES,
            )
            self._ledger.produce(LEDGER, value, key, partition=0, on_delivery=self._on_delivery)
        if is_aborted:
            self._ledger.flush(SECONDS_MAX)  # without it the client drops unsent records
            self._ledger.abort_transaction(SECONDS_MAX)
        else:
            self._ledger.commit_transaction(SECONDS_MAX)
            self._ledger_count += LEDGER_RECORDS_OF_TICK
        self._transaction_count += 1
        self._reporter.note("transaction", (time.monotonic() - started) * 1000)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        self._failed += error is not None

    def _tell(self, *, final: bool = False) -> None:
        self._reporter.tell(
            {
                "table": self._table_count,
                "ledger": self._ledger_count,
                "transactions": self._transaction_count,
                "failed": self._failed,
                "final": final,
            }
        )


if __name__ == "__main__":
    Side(sys.argv[1]).run()

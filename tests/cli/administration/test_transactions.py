"""``tidelog transaction`` over a real broker."""

from __future__ import annotations

import time

from tidelog import Admin, Consumer, Producer

from tests.support.command import called


def test_open_transaction_is_listed_described_and_aborted(bootstrap: str) -> None:
    name = "hanging"
    with (
        Admin(bootstrap).sync() as admin,
        Producer(bootstrap, transactional_id=name).sync() as producer,
        Consumer(bootstrap, isolation_level="read_committed").sync() as consumer,
    ):
        admin.create_topic(name, partition_count=2)
        with producer.transaction():
            producer.send_and_wait(name, b"v", partition=1)
            rows = called("transaction", "list", "--json", bootstrap=bootstrap).document
            (row,) = [row for row in rows if row["transactional_id"] == name]
            assert row["state"] == "Ongoing"
            rows = called(
                *("transaction", "list", "--state", "Empty", "--json"), bootstrap=bootstrap
            ).document
            assert name not in [row["transactional_id"] for row in rows]
            (document,) = called(
                "transaction", "describe", name, "--json", bootstrap=bootstrap
            ).document
            assert document["partitions"] == [{"topic": name, "partition": 1}]
            assert 0 <= document["open_for_ms"] < 60_000
            lines = called("transaction", "describe", name, bootstrap=bootstrap).lines
            assert lines[0].startswith(f"{name}, Ongoing, open for ")
            assert lines[2].split() == [name, "1"]
            hanging = called(
                *("transaction", "hanging", name, "--silent-for", 0, "--json"), bootstrap=bootstrap
            )
            assert hanging.document == []
            where = (f"{name}:1", "--start-offset")
            refused = called("transaction", "abort", *where, 1, bootstrap=bootstrap, status=1)
            assert "no transaction open since offset 1" in refused.errors
            called("transaction", "abort", *where, 0, bootstrap=bootstrap)
            deadline = time.monotonic() + 60
            while consumer.end_offsets([(name, 1)]) != {(name, 1): 2}:
                assert time.monotonic() < deadline
                time.sleep(0.02)


def test_partition_to_abort_in_must_be_one() -> None:
    for wrong in ("topic", "topic:1,2", "topic:x"):
        outcome = called("transaction", "abort", wrong, "--start-offset", 0, status=2)
        assert wrong in outcome.errors

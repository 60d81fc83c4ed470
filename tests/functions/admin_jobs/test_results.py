"""What jobs keep in their items has a size that fits, whatever they find."""

from __future__ import annotations

import json
from uuid import UUID

from tidelog_core.erasure.receipt import ErasureReceipt, PartitionErasure
from tidelog_core.metadata.stores.commit import BODY_SIZE_BYTES_MAX
from tidelog_functions.admin_jobs.key_count import _kept_rows
from tidelog_functions.admin_jobs.result_rows import ROWS_MAX, bounded_summary, fitting_rows

TOPIC = "t" * 249


def summary(partitions: int, problems: tuple[str, ...]) -> dict[str, object]:
    receipt = ErasureReceipt(
        erasure_id=UUID(int=1),
        topic=TOPIC,
        topic_id=UUID(int=2),
        key_sha256="ab" * 32,
        requested_ms=1,
        ended_ms=2,
        partitions=tuple(
            PartitionErasure(
                partition=number,
                up_to=None,
                erased=(),
                replicas=(),
                problems=problems if number % 2 else (),
            )
            for number in range(partitions)
        ),
    )
    return bounded_summary(receipt.summary())


def test_the_result_of_an_erasure_with_many_problems_fits_into_an_item() -> None:
    problems = tuple(f"broker {n} has not released its local records" for n in range(12))
    for partitions in (3, ROWS_MAX, 10_000):
        found = summary(partitions, problems)
        text = json.dumps({"result": json.dumps(found)})
        assert len(text) < BODY_SIZE_BYTES_MAX * 2 // 3
        assert found["partition_count"] == partitions
        rows = found["partitions"]
        assert isinstance(rows, list)
        assert len(rows) == partitions or all(row["problems"] for row in rows)
        assert rows


def test_of_too_many_counted_partitions_those_with_records_are_kept() -> None:
    rows: list[list[int]] = []
    for done in range(1, 10_001):
        rows = _kept_rows([*rows, [done - 1, int(done % 4 == 0), 0, 5]], done)
        assert len(rows) <= ROWS_MAX
    assert [row[0] for row in rows] == list(range(3, 4_000, 4))
    named = [{"topic": TOPIC, "partition": row[0], "records": row[1]} for row in rows]
    shown = fitting_rows(named, lambda row: row["partition"] % 3 == 0)
    assert 100 < len(shown) < len(named)
    assert len(json.dumps(shown)) < BODY_SIZE_BYTES_MAX * 2 // 3
    assert fitting_rows(named[:10], lambda _: False) == named[:10]

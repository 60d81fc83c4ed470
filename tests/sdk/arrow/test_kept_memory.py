"""Parts of columns: views, unless these would keep much more in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tidelog.arrow.kept_memory import VIEW_PART, first_items, part_of

ROW_COUNT = 3_000


@pytest.fixture
def batch() -> pa.RecordBatch:
    headers = [
        [{"key": "h", "value": b"%d" % row}] if row % 2 else None for row in range(ROW_COUNT)
    ]
    return pa.RecordBatch.from_pydict(
        {
            "value": [b"value %d" % row if row % 3 else None for row in range(ROW_COUNT)],
            "offset": list(range(ROW_COUNT)),
            "headers": headers,
        }
    )


@pytest.mark.parametrize("count", [0, 1, 999, 1_000, 2_999, ROW_COUNT])
def test_a_part_has_the_rows_of_a_slice_and_keeps_no_others(
    batch: pa.RecordBatch, count: int
) -> None:
    for start in {0, ROW_COUNT - count}:
        part = part_of(batch, start, count)
        assert part.equals(batch.slice(start, count))
        part.validate(full=True)
        assert part.get_total_buffer_size() <= part.nbytes + 1_000


@pytest.mark.parametrize("count", [0, 1, 33, 34, 100])
def test_the_first_items_are_a_view_or_a_copy(count: int) -> None:
    both = np.arange(200).reshape(2, 100)
    items = first_items(both, count)
    assert items.tolist() == both[:, :count].tolist()
    assert np.shares_memory(items, both) == (count * VIEW_PART >= 100)

from __future__ import annotations

import pytest
from tidelog_core.batched import batched


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, []), (1, [1]), (3, [3]), (4, [3, 1]), (6, [3, 3]), (7, [3, 3, 1])]
)
def test_every_item_is_in_one_batch_in_order(count: int, sizes: list[int]) -> None:
    batches = list(batched(range(count), 3))
    assert [len(one) for one in batches] == sizes
    assert [item for one in batches for item in one] == list(range(count))


def test_batches_are_of_the_type_of_the_sequence() -> None:
    assert list(batched([1, 2, 3], 2)) == [[1, 2], [3]]
    assert list(batched((1, 2, 3), 2)) == [(1, 2), (3,)]

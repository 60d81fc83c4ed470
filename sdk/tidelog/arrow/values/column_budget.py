"""Bounds what values take as columns, before the columns are made.

A few bytes may stand for much: an empty object in an array has a place in each column of its
schema, and a number the whole name of an enum's symbol. So a schema tells what a value takes at
most, by its size: as much as one without items, and so much for each of its bytes. Batches are
split by that. Where a single value may take too much, its items are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

BATCH_BYTES_MAX = 64 << 20  # of the columns of one batch of values
JSON_ITEM_BYTES_MIN = 2  # an item of an array, and its comma


class ColumnCost(NamedTuple):
    """What a value takes at most, in bytes of columns."""

    fixed: float  # without the items of its lists
    per_byte: float

    def of(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what values of these sizes take."""
        return (self.fixed + sizes * self.per_byte).astype(np.float64)


def width_of(kind: pa.DataType) -> float:
    """Return the bytes of one value in its columns, without contents of text and lists."""
    if pa.types.is_null(kind):
        return 0.0
    if pa.types.is_struct(kind):
        return 1.0 + sum(width_of(field.type) for field in kind)
    if _is_list(kind) or _is_text(kind):
        return 5.0
    bits: int = kind.bit_width
    return 1.0 + bits / 8


def cost_of_json(kind: pa.DataType) -> ColumnCost:
    """Return what JSON values of a type take."""
    return ColumnCost(width_of(kind), 1.0 + _per_byte(kind))


def _per_byte(kind: pa.DataType) -> float:
    """Return what items take for each byte of theirs."""
    if pa.types.is_struct(kind):
        return max((_per_byte(field.type) for field in kind), default=0.0)
    if not pa.types.is_list(kind):
        return 0.0
    return width_of(kind.value_type) / JSON_ITEM_BYTES_MIN + _per_byte(kind.value_type)


class ColumnCounter:
    """Counts what single values of a type take."""

    def __init__(self, kind: pa.DataType) -> None:
        self._width = width_of(kind)
        self._count = _items_counter(kind)

    def bytes_of(self, value: Any, size_bytes: int) -> float:
        """Return what a value of that size takes: a dict, as ``pa.array`` takes it."""
        items = 0.0 if self._count is None else self._count(value)
        return self._width + items + size_bytes


def _items_counter(kind: pa.DataType) -> Callable[[Any], float] | None:
    """Return what counts the bytes of a value's items; ``None``: the type has no lists."""
    if pa.types.is_struct(kind):
        counters = [(field.name, _items_counter(field.type)) for field in kind]
        inner = [(name, count) for name, count in counters if count is not None]

        def count_fields(value: Any) -> float:
            if not isinstance(value, dict):
                return 0.0
            return sum(count(value.get(name)) for name, count in inner)

        return count_fields if inner else None
    if not _is_list(kind):
        return None
    is_map = pa.types.is_map(kind)
    item_type = kind.item_type if is_map else kind.value_type
    width = width_of(item_type) + (width_of(kind.key_type) if is_map else 0.0)
    count_item = _items_counter(item_type)

    def count_items(value: Any) -> float:
        if not isinstance(value, list):
            return 0.0
        total = len(value) * width
        if count_item is not None:
            total += sum(count_item(item[1] if is_map else item) for item in value)
        return total

    return count_items


def ranges_of(costs: NDArray[np.float64], bytes_max: float) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows ``[start, end)`` that take no more, or one row each."""
    ends = np.cumsum(costs)
    start, before = 0, 0.0
    while start < len(costs):
        end = max(int(np.searchsorted(ends, before + bytes_max, side="right")), start + 1)
        yield start, end
        start, before = end, float(ends[end - 1])


def _is_list(kind: pa.DataType) -> bool:
    is_list: bool = pa.types.is_list(kind) or pa.types.is_map(kind)
    return is_list


def _is_text(kind: pa.DataType) -> bool:
    is_text: bool = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return is_text

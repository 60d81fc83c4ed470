"""What Avro's values take as columns at most."""

from __future__ import annotations

from typing import NamedTuple

from tidelog_core.schemas.avro.types import AvroType
from tidelog_core.schemas.values.avro_reading import EMPTY_ITEMS_MAX

from tidelog.arrow.values.column_budget import ColumnCost

_ITEM_BYTES = 16  # of an item beside its columns, while it is read
_WIDTHS = {"null": 0.0, "boolean": 1.0, "int": 9.0, "long": 9.0, "float": 5.0, "double": 9.0}
_SIZES = {"null": 0, "float": 4, "double": 8}  # others have a byte at least
_TEXT_WIDTH = 5.0
_DECIMAL_WIDTH = 32.0


class _Cost(NamedTuple):
    width: float  # of one value, without items
    per_byte: float  # of items
    size_min: int  # in the value's bytes
    empty_width: float  # of the widest item that takes no byte of its value


def cost_of_avro(of: AvroType) -> ColumnCost:
    """Return what values take. The type's columns are limited already."""
    found = _cost(of)
    # A value may have so many parts without a byte, whatever its size.
    empty = EMPTY_ITEMS_MAX * found.empty_width
    return ColumnCost(found.width + empty, 1.0 + found.per_byte)


def _cost(of: AvroType) -> _Cost:
    if of.is_record:
        return _together([_cost(field.type) for field in of.fields])
    if of.kind == "union":
        inner = [_cost(one) for one in of.branches]
        found = _together(inner)
        return found._replace(size_min=1 + min((one.size_min for one in inner), default=0))
    if of.kind in ("array", "map"):
        assert of.items is not None
        return _list_cost(_cost(of.items), is_map=of.kind == "map")
    return _scalar_cost(of)


def _scalar_cost(of: AvroType) -> _Cost:
    width, size_min = _WIDTHS.get(of.kind, _TEXT_WIDTH), _SIZES.get(of.kind, 1)
    if of.kind == "fixed":
        width, size_min = width + of.size, of.size
    elif of.kind == "enum":
        width += max((len(one.encode()) for one in of.symbols), default=0)
    if of.properties.get("logicalType") == "decimal":
        width += _DECIMAL_WIDTH
    return _Cost(width, 0.0, size_min, 0.0)


def _together(parts: list[_Cost]) -> _Cost:
    """Return the cost of a struct. Each byte is of one part, so the most costly one counts."""
    return _Cost(
        1.0 + sum(one.width for one in parts),
        max((one.per_byte for one in parts), default=0.0),
        sum(one.size_min for one in parts),
        max((one.empty_width for one in parts), default=0.0),
    )


def _list_cost(item: _Cost, *, is_map: bool) -> _Cost:
    width = item.width + _ITEM_BYTES + (_TEXT_WIDTH if is_map else 0.0)
    size_min = item.size_min + is_map
    if not size_min:
        return _Cost(_TEXT_WIDTH, item.per_byte, 1, max(width, item.empty_width))
    return _Cost(_TEXT_WIDTH, width / size_min + item.per_byte, 1, item.empty_width)

"""Single Avro values as ``pa.array`` takes them, and how Arrow has decimals."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from tidelog_core.schemas.avro.types import AvroType
from tidelog_core.schemas.values.framing import UnreadableValue


def plain_value(of: AvroType, value: Any) -> Any:  # noqa: PLR0911
    """Return a value of Avro's JSON as ``pa.array`` takes it."""
    if value is None:
        return None
    match of.kind:
        case "union":
            (branch,) = (one for one in of.branches if one.kind != "null")
            return plain_value(branch, next(iter(value.values())))
        case "record" | "error":
            return {one.name: plain_value(one.type, value[one.name]) for one in of.fields}
        case "array":
            assert of.items is not None
            return [plain_value(of.items, one) for one in value]
        case "map":
            assert of.items is not None
            return [(name, plain_value(of.items, one)) for name, one in value.items()]
        case "bytes" | "fixed":
            data = value.encode("latin-1")
            decimal = decimal_type(of)
            return (
                data
                if decimal is None
                else scaled_decimal(int.from_bytes(data, "big", signed=True), decimal)
            )
        case "float" | "double":
            return float(value)
    return value


def content_size(value: Any) -> int:
    """Return the size of all texts and bytes in a value: an enum's are not its own."""
    size, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str | bytes):
            size += len(one)
        elif isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)
    return size


def decimal_type(of: AvroType) -> pa.DataType | None:
    """Return the Arrow type of a decimal, ``None`` for other bytes."""
    if of.properties.get("logicalType") != "decimal" or of.kind == "string":
        return None
    precision, scale = of.properties.get("precision"), of.properties.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        return None
    if not (1 <= precision <= 76 and 0 <= scale <= precision):
        return None
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def scaled_decimal(value: int, kind: pa.DataType) -> Decimal:
    if abs(value) >= 10**kind.precision:
        raise UnreadableValue(f"a decimal has more than {kind.precision} digits")
    return Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -kind.scale))

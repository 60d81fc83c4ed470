"""Avro values as Arrow columns: a field of all values at a time, by numpy.

Values that ``avro_readers`` marks as damaged are read again, one by one, by core's reader. So
nothing is done in Python for all others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from tidelog_core.schemas.avro.types import AvroType
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.values.avro_reading import reader_of
from tidelog_core.schemas.values.framing import UnreadableValue

from tidelog.arrow.values.arrays import numbers
from tidelog.arrow.values.avro_cost import cost_of_avro
from tidelog.arrow.values.avro_cursors import Cursors
from tidelog.arrow.values.avro_plain_values import content_size, plain_value
from tidelog.arrow.values.avro_readers import column_count, column_reader
from tidelog.arrow.values.column_budget import ColumnCounter
from tidelog.arrow.values.payloads import Payloads


class AvroColumns:
    """Reads values of one schema, which must be a record, as structs."""

    def __init__(self, of: AvroType) -> None:
        """Raises ``InvalidSchema`` if no columns can have the values."""
        if not of.is_record:
            raise InvalidSchema(f"columns need a record, the schema is {of.kind}")
        column_count(of)
        self.type, self._read = column_reader(of)
        self.cost = cost_of_avro(of)
        self._counter = ColumnCounter(self.type)
        self._of = of
        self._read_one = reader_of(of)

    def bytes_of(self, payload: bytes) -> float:
        """Return what a value takes as columns; 0 for one that cannot be read."""
        try:
            value = plain_value(self._of, self._read_one(payload))
        except UnreadableValue:
            return 0.0
        return self._counter.bytes_of(value, content_size(value))

    def read(self, values: Payloads) -> tuple[pa.Array, dict[int, str]]:
        """Return the structs, and what is wrong with values; of those any struct is returned."""
        data = values.data if len(values.data) else np.zeros(1, np.uint8)
        cursors = Cursors(data, values.starts, values.ends)
        found = self._read(cursors, np.arange(len(values.starts)))
        marked = np.flatnonzero(cursors.is_bad | (cursors.at != cursors.ends)).tolist()
        if not marked:
            return found, {}
        problems: dict[int, str] = {}
        kept: list[Any] = []
        for row in marked:
            try:
                kept.append(plain_value(self._of, self._read_one(values.payload(row))))
            except UnreadableValue as error:
                problems[row] = str(error)
                kept.append(None)
        places = np.arange(len(found))
        places[marked] = len(found) + np.arange(len(marked))
        others = pa.array(kept, self.type)
        return pa.concat_arrays([found, others]).take(numbers(places, pa.int64())), problems

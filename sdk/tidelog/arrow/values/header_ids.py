"""Values whose schemas are named in headers of their records, as values that name them.

Each such value gets in front of it what its header has after the schema's id, and as many bytes as
a frame has. Its schema gets a number that no id has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tidelog_core.schemas.values.framing import (
    HEAD,
    VALUE_HEADER,
    SchemaFrame,
    UnreadableValue,
    split_named,
)

HEADERS = "headers"
FIRST_NUMBER = 2**31  # above all ids of schemas
NUMBERS_MAX = 10_000  # different headers that are known, beside those of the newest batch
UNREADABLE = -1


class ValuesOfHeaders(NamedTuple):
    """A column of values, and the rows whose schemas headers name."""

    column: pa.Array
    rows: NDArray[np.int64]
    numbers: NDArray[np.int64]  # of their schemas
    problems: dict[int, str]  # by row, of those whose number is ``UNREADABLE``


class HeaderIds:
    """The schemas that headers name. For one thread at a time."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}  # by header
        self._frames: dict[int, SchemaFrame] = {}
        self._next_number = FIRST_NUMBER

    def frame(self, number: int) -> SchemaFrame | None:
        """Return what a header says, without its value; ``None``: it is forgotten."""
        return self._frames.get(number)

    def values_of(self, batch: pa.RecordBatch, column: pa.Array) -> ValuesOfHeaders | None:
        """Return the values in ``column``; ``None`` if no header names the schema of any."""
        found = _last_headers(batch)
        if found is None:
            return None
        # Between batches, so that no row of this one loses its schema.
        while len(self._numbers) >= NUMBERS_MAX:
            del self._frames[self._numbers.pop(next(iter(self._numbers)))]
        headers = found.dictionary_encode()
        numbers_of: list[int] = []
        prefixes: list[bytes] = []
        texts: list[str] = []
        for header in headers.dictionary.to_pylist():
            number, prefix, text = self._known(header)
            numbers_of.append(number)
            prefixes.append(prefix)
            texts.append(text)
        is_named = pc.and_(headers.is_valid(), column.is_valid())
        rows = np.flatnonzero(is_named.to_numpy(zero_copy_only=False))
        places = headers.indices.take(pa.array(rows)).to_numpy()
        numbers = np.array(numbers_of, np.int64)[places]
        problems = {
            int(row): texts[place]
            for row, place in zip(rows[numbers < 0], places[numbers < 0], strict=True)
        }
        before = pa.array(prefixes, pa.binary()).take(headers.indices)
        framed = pc.binary_join_element_wise(before, column, pa.scalar(b"", pa.binary()))
        return ValuesOfHeaders(pc.if_else(is_named, framed, column), rows, numbers, problems)

    def _known(self, header: bytes) -> tuple[int, bytes, str]:
        """Return the header's number, what goes before its values, and what is wrong with it."""
        try:
            frame = split_named(b"", header)
        except UnreadableValue as error:
            return UNREADABLE, b"", f"its header {VALUE_HEADER}: {error}"
        number = self._numbers.get(header)
        if number is None:
            number, self._next_number = self._next_number, self._next_number + 1
            self._numbers[header], self._frames[number] = number, frame
        return number, bytes(HEAD.size) + (frame.head or b""), ""


def _last_headers(batch: pa.RecordBatch) -> pa.Array | None:
    """Return for each row the last header that names a schema; ``None``: no row has one."""
    index = batch.schema.get_field_index(HEADERS)
    if index < 0:
        return None
    headers = batch.column(index)
    if headers.null_count == len(headers):
        return None
    every = pc.list_flatten(headers)
    is_wanted = pc.fill_null(pc.equal(pc.struct_field(every, "key"), VALUE_HEADER), False)
    places = np.flatnonzero(is_wanted.to_numpy(zero_copy_only=False))
    if not len(places):
        return None
    last = np.full(len(headers), -1, np.int64)
    parents = pc.list_parent_indices(headers).to_numpy()
    last[parents[places]] = places  # Of several places of a row the last one stays.
    return pc.struct_field(every, "value").take(pa.array(last, mask=last < 0))

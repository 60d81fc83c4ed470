"""Decodes the values of Arrow batches into columns, by the schemas of a registry.

One version of a subject gives the columns, whatever schemas the values were written with: fields
are found by their names, numbers are widened, fields that a value's schema does not have are null
or have the default of Avro. What columns take is limited before they are made (``column_budget``).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tidelog_core.errors import InvalidRecord
from tidelog_core.schemas.avro.parsing import parse_avro
from tidelog_core.schemas.avro.types import AvroType
from tidelog_core.schemas.model import SchemaType
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.values.framing import HEAD, MAGIC, SchemaFrame, UnreadableValue

from tidelog.arrow.schemas.found_schemas import FoundSchema, SchemaSource
from tidelog.arrow.schemas.registry_source import RegistrySource
from tidelog.arrow.values.avro_columns import AvroColumns
from tidelog.arrow.values.column_budget import BATCH_BYTES_MAX, ColumnCost, ranges_of, width_of
from tidelog.arrow.values.column_fitting import fitted
from tidelog.arrow.values.header_ids import HeaderIds, ValuesOfHeaders
from tidelog.arrow.values.json_columns import JsonColumns
from tidelog.arrow.values.payloads import Payloads
from tidelog.errors import InvalidConfig

READERS_MAX = 500
MISSING_SECONDS = 5.0  # until a schema that is not there is asked for again
MISSING_MAX = 100  # schemas of one batch; if more are not there, no others are asked for
VALUE = "value"


class ColumnReader(Protocol):
    """Reads values of one schema."""

    type: pa.DataType
    cost: ColumnCost

    def bytes_of(self, payload: bytes) -> float:
        """Return what one value takes as columns; 0 if it cannot be read."""

    def read(self, values: Payloads) -> tuple[pa.Array, dict[int, str]]:
        """Return the structs, and what is wrong with values."""


class _Fitting(NamedTuple):
    """What reads the values of a schema, and what they take beside its columns."""

    reader: ColumnReader
    added_bytes: float  # for each value, to fit into the columns


class _Group(NamedTuple):
    """The rows of one schema."""

    rows: NDArray[np.int64]
    schema: int | str  # its id, or its guid
    fitting: _Fitting


class SchemaDecoder:
    """Makes a struct column of ``value``. For one thread at a time.

    ``errors="raise"``: a value that cannot be decoded raises ``InvalidRecord``; ``"null"``: it is
    null, as a tombstone is.
    """

    def __init__(
        self,
        source: SchemaSource | str,
        subject: str,
        *,
        errors: Literal["raise", "null"] = "raise",
        batch_bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        """The newest version of ``subject`` gives the columns; a URL is a registry's.

        A batch whose values may take more than ``batch_bytes_max`` as columns is split, and a value
        that takes more alone cannot be decoded.

        Raises ``InvalidConfig`` and ``ConnectionFailed``.
        """
        if errors not in ("raise", "null"):
            raise InvalidConfig([f"errors must be 'raise' or 'null', not {errors!r}"])
        if batch_bytes_max <= 0:
            raise InvalidConfig([f"batch_bytes_max must be above zero, is {batch_bytes_max}"])
        self._batch_bytes_max = batch_bytes_max
        self._source = source = RegistrySource(source) if isinstance(source, str) else source
        self._errors = errors
        self._reader = found = source.latest(subject)
        try:
            self.type = _columns(found).type
        except (ValueError, pa.ArrowException) as error:
            raise InvalidConfig([f"the schema of {subject} gives no columns: {error}"]) from None
        self._avro: AvroType | None = None  # of the columns
        if found.schema_type is SchemaType.AVRO:
            self._avro, _ = parse_avro(found.text, [text for _, text in found.known])
        self._headers = HeaderIds()
        # By id or guid: a million different headers may name one schema.
        self._readers: dict[int | str, _Fitting | str] = {}
        self._missing: dict[int | str, float] = {}  # schemas, and when they were asked for

    def schema(self, plain: pa.Schema) -> pa.Schema:
        """Return the schema of decoded batches."""
        return plain.set(plain.get_field_index(VALUE), pa.field(VALUE, self.type))

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with values as structs. Raises ``InvalidRecord``.

        It is also raised if they take more than ``batch_bytes_max``: ``parts`` splits the batch.
        """
        found = list(itertools.islice(self.parts(batch), 2))
        if len(found) > 1:
            row = found[0].num_rows
            raise InvalidRecord(
                f"the records before offset {batch.column('offset')[row]} of {_place(batch, row)} "
                f"fill {self._batch_bytes_max} bytes of columns: decode less of them, call parts, "
                "or raise batch_bytes_max",
                record_indexes=[row],
            )
        return found[0]

    def parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the records with values as structs: a batch, or several if they take much.

        Raises ``InvalidRecord``.
        """
        column = batch.column(VALUE)
        in_headers = self._headers.values_of(batch, column)
        if in_headers is not None:
            column = in_headers.column
            batch = batch.set_column(
                batch.schema.get_field_index(VALUE), batch.schema.field(VALUE), column
            )
        groups, problems = self._groups(column, in_headers)
        costs = self._costs(column, groups, problems)
        ranges = list(ranges_of(costs, self._batch_bytes_max)) or [(0, 0)]
        for start, end in ranges:
            if len(ranges) == 1:
                yield self._decoded(batch, groups, problems, 0)
                return
            some = batch.slice(start, end - start)
            kept = {row - start: text for row, text in problems.items() if start <= row < end}
            yield self._decoded(some, _within(groups, start, end), kept, start)

    def _decoded(
        self,
        batch: pa.RecordBatch,
        groups: Sequence[_Group],
        problems: dict[int, str],
        first_row: int,
    ) -> pa.RecordBatch:
        found = self._column(batch.column(VALUE), groups, problems)
        self._require_none(batch, problems, first_row)
        columns = list(batch.columns)
        columns[batch.schema.get_field_index(VALUE)] = found
        return pa.RecordBatch.from_arrays(columns, schema=self.schema(batch.schema))

    def _require_none(
        self, batch: pa.RecordBatch, problems: dict[int, str], first_row: int
    ) -> None:
        if problems and self._errors == "raise":
            row, reason = min(problems.items())
            raise InvalidRecord(
                f"the value at offset {batch.column('offset')[row]} of {_place(batch, row)} cannot "
                f"be decoded: {reason}",
                record_indexes=[first_row + row],
            )

    def _groups(
        self, column: pa.Array, in_headers: ValuesOfHeaders | None
    ) -> tuple[list[_Group], dict[int, str]]:
        """Return the rows by their schemas, and the rows without one that can be read."""
        ids, problems = _ids(Payloads.of(column))
        if in_headers is not None:
            ids[in_headers.rows] = in_headers.numbers
            for row in in_headers.rows.tolist():
                problems.pop(row, None)
            problems |= in_headers.problems
        for row in list(problems):
            if not column[row].is_valid:
                del problems[row]
        # Rows of one schema are one group, whatever headers name it: each costs a reading.
        found: dict[int | str, tuple[_Fitting, list[NDArray[np.int64]]]] = {}
        order = np.argsort(ids, kind="stable")
        missing: set[int | str] = set()
        for rows in np.split(order, np.flatnonzero(np.diff(ids[order])) + 1):
            if not len(rows) or ids[rows[0]] < 0:
                continue
            schema_id = int(ids[rows[0]])
            name = self._name_of(schema_id)
            fitting: _Fitting | str = f"more than {MISSING_MAX} schemas are not there"
            if len(missing) < MISSING_MAX or name in missing or name in self._readers:
                fitting = self._fitting_of(name, self._headers.frame(schema_id))
                if name in self._missing:
                    missing.add(name)
            if isinstance(fitting, str):
                problems |= dict.fromkeys(rows.tolist(), fitting)
            else:
                found.setdefault(name, (fitting, []))[1].append(rows)
        groups = [
            _Group(np.sort(np.concatenate(parts), kind="stable"), name, fitting)
            for name, (fitting, parts) in found.items()
        ]
        return groups, problems

    def _costs(
        self, column: pa.Array, groups: Sequence[_Group], problems: dict[int, str]
    ) -> NDArray[np.float64]:
        """Return what each row takes at most, and add those that take too much to the problems."""
        values, bytes_max = Payloads.of(column), self._batch_bytes_max
        costs = np.full(len(column), width_of(self.type))
        for rows, schema, (reader, added_bytes) in groups:
            sizes = values.ends[rows] - values.starts[rows] - HEAD.size
            found = costs[rows] + added_bytes + reader.cost.of(sizes)
            for number in np.flatnonzero(found > bytes_max).tolist():
                row = int(rows[number])
                beside = costs[row] + added_bytes
                exact = beside + reader.bytes_of(values.payload(row)[HEAD.size :])
                found[number] = exact
                if exact > bytes_max:
                    found[number] = beside  # It becomes null, or nothing.
                    problems[row] = (
                        f"it takes {exact:.0f} bytes as columns, {bytes_max} are allowed: raise "
                        f"batch_bytes_max (schema {schema})"
                    )
            costs[rows] = found
        return costs

    def _column(
        self, column: pa.Array, groups: Sequence[_Group], problems: dict[int, str]
    ) -> pa.Array:
        """Return the structs of rows, null for the problems; add what cannot be read to those."""
        places = np.full(len(column), -1, np.int64)
        parts: list[pa.Array] = [pa.array([], self.type)]
        values, at = Payloads.of(column), 0
        for group in groups:
            rows = group.rows
            if problems:
                rows = rows[~np.isin(rows, list(problems))]
            if not len(rows):
                continue
            found, wrong = group.fitting.reader.read(values.after(rows, HEAD.size))
            wrong_rows = {int(rows[row]): text for row, text in wrong.items()}
            parts.append(self._fitted_rows(found, rows, wrong_rows))
            problems |= {row: f"{text} (schema {group.schema})" for row, text in wrong_rows.items()}
            places[rows] = np.arange(at, at + len(rows))
            at += len(rows)
        places[list(problems)] = -1
        validity = np.packbits(places >= 0, bitorder="little")
        buffers = [pa.py_buffer(validity), pa.py_buffer(places)]
        indexes = pa.Array.from_buffers(pa.int64(), len(column), buffers)
        return pa.concat_arrays(parts).take(indexes)

    def _fitted_rows(self, found: pa.Array, rows: Any, problems: dict[int, str]) -> pa.Array:
        """Return structs with the columns' types; add the rows that do not fit to the problems."""
        if found.type == self.type:
            return found
        try:
            return fitted(found, self.type, self._avro)
        except pa.ArrowException as error:
            if len(found) == 1:
                problems.setdefault(int(rows[0]), " ".join(str(error).split())[:300])
                return pa.nulls(1, self.type)
        middle = len(found) // 2
        return pa.concat_arrays(
            [
                self._fitted_rows(found[:middle], rows[:middle], problems),
                self._fitted_rows(found[middle:], rows[middle:], problems),
            ]
        )

    def _name_of(self, schema_id: int) -> int | str:
        """Return a schema's id, or what stands in the headers that name it."""
        frame = self._headers.frame(schema_id)
        return schema_id if frame is None else frame.schema

    def _found(self, name: int | str) -> FoundSchema | None:
        return self._source.by_guid(name) if isinstance(name, str) else self._source.by_id(name)

    def _fitting_of(self, name: int | str, frame: SchemaFrame | None) -> _Fitting | str:
        """Return what reads values of a schema after this header, or why nothing does."""
        fitting = self._reader_of(name)
        if isinstance(fitting, str) or frame is None:
            return fitting
        try:
            frame.payload(self._reader.schema_type)  # The header may go on where it must not.
        except UnreadableValue as error:
            return f"schema {name} does not fit the columns: {error}"
        return fitting

    def _reader_of(self, name: int | str) -> _Fitting | str:
        """Return what reads values of a schema, or why nothing does."""
        known = self._readers.get(name)
        if known is not None:
            return known
        missed_s = self._missing.get(name)
        if missed_s is not None and time.monotonic() - missed_s < MISSING_SECONDS:
            return f"there is no schema {name}"
        found = self._found(name)
        if found is None:
            if len(self._missing) >= READERS_MAX:
                self._missing.pop(next(iter(self._missing)))  # the oldest
            self._missing[name] = time.monotonic()
            return f"there is no schema {name}"
        self._missing.pop(name, None)
        made: _Fitting | str
        if found.schema_type is not self._reader.schema_type:
            made = f"schema {name} is {found.schema_type}, not {self._reader.schema_type}"
        else:
            try:
                reader = _columns(found)
                one = fitted(pa.array([None], reader.type), self.type, self._avro)
                made = _Fitting(reader, one.nbytes)
            except (ValueError, pa.ArrowException) as error:
                made = f"schema {name} does not fit the columns: {error}"
        if len(self._readers) >= READERS_MAX:
            self._readers.pop(next(iter(self._readers)))  # the oldest
        self._readers[name] = made
        return made


def _place(batch: pa.RecordBatch, row: int) -> str:
    return "{}-{}".format(batch.column("topic")[row], batch.column("partition")[row])


def _within(groups: Sequence[_Group], start: int, end: int) -> list[_Group]:
    """Return the groups' rows in ``[start, end)``, counted from there."""
    found = []
    for group in groups:
        rows = group.rows[(group.rows >= start) & (group.rows < end)] - start
        if len(rows):
            found.append(group._replace(rows=rows))
    return found


def _ids(values: Payloads) -> tuple[Any, dict[int, str]]:
    """Return the ids in the frames, -1 where there is none, with the reasons."""
    data = values.data if len(values.data) else np.zeros(1, np.uint8)
    is_long = values.ends - values.starts >= HEAD.size
    starts = np.where(is_long, values.starts, 0)
    places = np.minimum(starts[:, None] + np.arange(HEAD.size), len(data) - 1)
    heads = data[places]
    ids = np.ascontiguousarray(heads[:, 1:]).view(">i4").reshape(-1).astype(np.int64)
    is_framed = is_long & (heads[:, 0] == MAGIC) & (ids >= 0)
    reason = "it does not begin with a schema's id, nor has it one in a header that was read"
    return np.where(is_framed, ids, -1), dict.fromkeys(np.flatnonzero(~is_framed).tolist(), reason)


def _columns(found: FoundSchema) -> ColumnReader:
    """Return what reads values of a schema. Raises ``InvalidSchema``."""
    if found.schema_type is SchemaType.AVRO:
        of, _ = parse_avro(found.text, [text for _, text in found.known])
        return AvroColumns(of)
    if found.schema_type is SchemaType.JSON:
        return JsonColumns(found.text)
    try:
        from tidelog.arrow.values.protobuf_columns import ProtobufColumns
    except ModuleNotFoundError:
        raise InvalidSchema("Protobuf needs a library: pip install 'tidelog[schemas]'") from None
    return ProtobufColumns(found.text, found.known)

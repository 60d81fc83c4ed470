"""Looks into the records of a batch for schemas' ids, and reads their values with the schemas.

A batch of a topic with schema validation has at most ``RECORDS_MAX`` records, and its records at
most ``DECOMPRESSED_BYTES_MAX`` bytes; clients split a larger one. Problems are named for the first
``PROBLEMS_MAX`` records.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog_core.errors import InvalidRecord, MessageTooLarge
from tidelog_core.records.batch import HEADER_SIZE, LOG_OVERHEAD, parse_header
from tidelog_core.records.codecs import DecompressedTooLarge
from tidelog_core.records.decode import decode_batch
from tidelog_core.records.record import Record
from tidelog_core.schemas.model import Reference, SchemaType
from tidelog_core.schemas.parsed import InvalidSchema
from tidelog_core.schemas.values.codecs import ValueCodec, open_codec
from tidelog_core.schemas.values.framing import UnreadableValue, split_frame

RECORDS_MAX = 100_000
DECOMPRESSED_BYTES_MAX = 32 << 20
SCHEMAS_MAX = 64  # of one batch, for its keys and for its values
PROBLEMS_MAX = 100
INDEXES_MAX = 20  # of the records that are named for one schema
CODECS_MAX = 64  # that a process keeps
CODEC_CHARACTERS_MAX = 8_000_000  # of their schemas, with those that these refer to
KEY, VALUE = "key", "value"

Problem = tuple[int, str]  # the record's index in the batch, and what is wrong


class SchemaUse(NamedTuple):
    """A schema that records of a batch have, and the first of those records."""

    part: str
    schema_id: int
    indexes: list[int]


class SchemaSource(NamedTuple):
    """A schema, as a codec is made of it."""

    schema_id: int
    schema_type: str
    text: str
    known: tuple[tuple[Reference, str], ...]

    @property
    def characters(self) -> int:
        """The length of all texts."""
        return len(self.text) + sum(len(text) for _, text in self.known)


class FramesJob(NamedTuple):
    """Find the schemas of a batch's records."""

    size_bytes: int
    parts: tuple[str, ...]


class FramesFound(NamedTuple):
    """The schemas, and the records that name none."""

    uses: list[SchemaUse]
    problems: list[Problem]


class ValuesJob(NamedTuple):
    """Read a batch's keys and values with their schemas."""

    size_bytes: int
    parts: tuple[str, ...]
    schemas: tuple[SchemaSource, ...]


class RecordsRefused(InvalidRecord):
    """Records do not have the schemas that their topic asks for."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0][1] if problems else "schemas are missing"
        super().__init__(
            f"records do not fit the topic's schemas: {first}",
            record_indexes=[index for index, _ in problems],
        )
        self.record_messages = [message for _, message in problems]

    def __reduce__(self) -> tuple[type[RecordsRefused], tuple[list[Problem]]]:
        """Pickle what it is made of, for the way between processes."""
        problems = list(zip(self.record_indexes, self.record_messages, strict=True))
        return type(self), (problems,)


class Codecs:
    """The codecs of schemas that were needed lately."""

    def __init__(self) -> None:
        self._known: OrderedDict[SchemaSource, ValueCodec | InvalidSchema] = OrderedDict()
        self._characters = 0

    def of(self, source: SchemaSource) -> ValueCodec:
        """Return the codec of a schema. Raises ``InvalidSchema`` if there is none."""
        found = self._known.pop(source, None)
        if found is None:
            try:
                found = open_codec(SchemaType(source.schema_type), source.text, source.known)
            except InvalidSchema as error:
                found = InvalidSchema(str(error))  # Without the frames of this one.
            self._characters += source.characters
        self._known[source] = found
        while len(self._known) > CODECS_MAX or (
            self._characters > CODEC_CHARACTERS_MAX and len(self._known) > 1
        ):
            oldest, _ = self._known.popitem(last=False)
            self._characters -= oldest.characters
        if isinstance(found, InvalidSchema):
            raise found.with_traceback(None)
        return found


def frames_of(batch: bytes | bytearray | memoryview, parts: Sequence[str]) -> FramesFound:
    """Return the schemas of the records. Null has none, and needs none.

    Raises ``MessageTooLarge``, ``CorruptRecordBatch``, and ``RecordsRefused`` if there are too
    many schemas.
    """
    records = _records(batch)
    uses: dict[tuple[str, int], list[int]] = {}
    problems: list[Problem] = []
    for part in parts:
        read = _reader_of(part)
        for index, record in enumerate(records):
            data = read(record)
            if data is None:
                continue
            try:
                schema_id, _ = split_frame(data)
            except UnreadableValue as error:
                if len(problems) < PROBLEMS_MAX:
                    problems.append((index, f"the {part} has no schema's id: {error}"))
                continue
            indexes = uses.setdefault((part, schema_id), [])
            if len(indexes) < INDEXES_MAX:
                indexes.append(index)
            if len(uses) > SCHEMAS_MAX:
                raise RecordsRefused([(index, f"a batch has more than {SCHEMAS_MAX} schemas")])
    found = [SchemaUse(part, schema_id, indexes) for (part, schema_id), indexes in uses.items()]
    return FramesFound(found, problems)


def problems_of(
    batch: bytes | bytearray | memoryview, job: ValuesJob, codecs: Codecs
) -> list[Problem]:
    """Return the records whose key or value their schema does not allow.

    Raises ``MessageTooLarge`` and ``CorruptRecordBatch``.
    """
    sources = {source.schema_id: source for source in job.schemas}
    problems: list[Problem] = []
    for part in job.parts:
        read = _reader_of(part)
        for index, record in enumerate(_records(batch)):
            data = read(record)
            if data is None:
                continue
            try:
                schema_id, payload = split_frame(data)
                codecs.of(sources[schema_id]).check(bytes(payload))
            except KeyError:
                problems.append((index, f"the {part}'s schema is not known"))
            except (UnreadableValue, InvalidSchema) as error:
                problems.append((index, f"the {part} is no value of schema {schema_id}: {error}"))
            if len(problems) >= PROBLEMS_MAX:
                return problems
    return problems


def _records(batch: bytes | bytearray | memoryview) -> list[Record]:
    header = parse_header(batch)
    if len(batch) < HEADER_SIZE or LOG_OVERHEAD + header.batch_length != len(batch):
        raise InvalidRecord("the bytes are not one batch")
    if header.record_count > RECORDS_MAX:
        raise MessageTooLarge(
            f"a batch of {header.record_count} records; topics with schema validation take "
            f"{RECORDS_MAX}: lower batch.size of the producer"
        )
    try:
        return decode_batch(batch, 0, header, DECOMPRESSED_BYTES_MAX)
    except DecompressedTooLarge as error:
        # As a corrupt batch the producer would repeat it.
        raise MessageTooLarge(
            f"{error}, as topics with schema validation take: lower batch.size of the producer"
        ) from None


def _reader_of(part: str) -> Callable[[Record], bytes | None]:
    return (lambda record: record.key) if part == KEY else (lambda record: record.value)

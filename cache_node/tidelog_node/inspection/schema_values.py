"""Reads the keys and values of a batch with their schemas, in the schema worker.

Theory of operation. A client that may register a schema and write to a topic can craft both so that
one value takes years to check. So a schema has a limit of the process's CPU time, by the bytes that
it checks, and memory has one too (``schema_worker``). The libraries cannot be interrupted: a timer
of the kernel ends the process, and the node blames the schema that was announced last. Values are
checked schema by schema, so the time of one is never counted for another. A job ends after
``slice_seconds``, and the node asks again from the value where it ended: others come in between.
"""

from __future__ import annotations

import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from tidelog_core.schemas.model import SchemaType
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.values.codecs import ValueCodec, open_codec
from tidelog_core.schemas.values.framing import UnreadableValue

from tidelog_node.inspection.messages import Problem, SchemaBegan
from tidelog_node.inspection.schema_frames import PROBLEMS_MAX, frame_of, read_records, reader_of
from tidelog_node.inspection.schema_messages import (
    NO_MEMORY,
    NO_TIME,
    SchemaSource,
    TooCostly,
    ValueLimits,
    ValuesChecked,
    ValuesJob,
)

CODECS_MAX = 64  # that a process keeps
CODEC_CHARACTERS_MAX = 8_000_000  # of their schemas, with those that these refer to
VALUE_BYTES = 16  # that count for a value beside its own: small ones take time too
RUN_BYTES_MAX = 65_536  # of values that are checked between two looks at the clock

Value = tuple[int, str, bytes]  # the record's index in the batch, "key" or "value", the payload


class Codecs:
    """The codecs of schemas that were needed lately."""

    def __init__(self) -> None:
        self._known: OrderedDict[SchemaSource, ValueCodec | InvalidSchema] = OrderedDict()
        self._characters = 0

    def of(self, source: SchemaSource) -> ValueCodec:
        """Return the codec of a schema. Raises ``InvalidSchema`` if there is none."""
        found = self._known.pop(source, None)
        if found is None:
            found = _opened(source)
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


def check_values(
    batch: bytes | bytearray | memoryview,
    job: ValuesJob,
    codecs: Codecs,
    announce: Callable[[SchemaBegan], None],
) -> ValuesChecked | TooCostly:
    """Return the records whose key or value their schema does not allow.

    The process ends by SIGPROF if a schema takes too long. Raises ``MessageTooLarge`` and
    ``CorruptRecordBatch``.
    """
    sources = {source.schema_id: source for source in job.schemas}
    groups, problems = _by_schema(batch, job.parts, sources)
    if job.start:
        problems = []  # The first job has named those.
    turn = _Turn(job.limits)
    number = 0
    for schema_id, values in groups.items():
        end = number + len(values)
        if end <= job.start:
            number = end
            continue
        if turn.is_over and not turn.is_fresh:
            return ValuesChecked(problems[:PROBLEMS_MAX], number, 0.0)
        done = max(job.start - number, 0)
        spent_seconds = job.spent_seconds if turn.is_fresh else 0.0
        announce(SchemaBegan(schema_id))
        try:
            check = _SchemaCheck(sources.get(schema_id), values, codecs, turn, spent_seconds)
            done = check.go_on(done)
        except MemoryError:
            return TooCostly(schema_id, NO_MEMORY)
        problems += check.problems
        if check.is_too_costly:
            return TooCostly(schema_id, NO_TIME)
        if done < len(values):
            return ValuesChecked(problems[:PROBLEMS_MAX], number + done, check.spent_seconds)
        number = end
        if len(problems) >= PROBLEMS_MAX:
            break
    return ValuesChecked(problems[:PROBLEMS_MAX], None, 0.0)


@contextmanager
def cpu_limited(seconds_max: float) -> Iterator[None]:
    """End the process, by SIGPROF, if the block takes more of its CPU time."""
    signal.setitimer(signal.ITIMER_PROF, seconds_max)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class _Turn:
    """The time of one job."""

    def __init__(self, limits: ValueLimits) -> None:
        self.limits = limits
        self.is_fresh = True  # nothing was done in it yet
        self._used_seconds = 0.0

    @property
    def is_over(self) -> bool:
        """Whether others shall come first."""
        return self._used_seconds >= self.limits.slice_seconds

    @contextmanager
    def measured(self, seconds_max: float) -> Iterator[None]:
        """Count the block's CPU time, and end the process if it takes more."""
        self.is_fresh = False
        before = time.process_time()
        try:
            with cpu_limited(seconds_max):
                yield
        finally:
            self._used_seconds += time.process_time() - before


class _SchemaCheck:
    """Checks the values of one schema."""

    def __init__(
        self,
        source: SchemaSource | None,
        values: Sequence[Value],
        codecs: Codecs,
        turn: _Turn,
        spent_seconds: float,
    ) -> None:
        self._source = source
        self._values = values
        self._codecs = codecs
        self._turn = turn
        self._allowed = turn.limits.allowed(sum(map(_size_of, values)))
        self.spent_seconds = spent_seconds
        self.is_too_costly = False
        self.problems: list[Problem] = []

    def go_on(self, start: int) -> int:
        """Check the values from a number on; return the number of the first that is left."""
        codec = self._opened()
        at = start
        while at < len(self._values) and len(self.problems) < PROBLEMS_MAX:
            if at > start and self._turn.is_over:
                return at
            left = self._allowed - self.spent_seconds
            if left <= 0:
                self.is_too_costly = True
                return at
            end, size_bytes = _run_end(self._values, at)
            before = time.process_time()
            with self._turn.measured(min(left, self._turn.limits.allowed_at_once(size_bytes))):
                self._check(codec, at, end)
            self.spent_seconds += time.process_time() - before
            at = end
        return len(self._values)

    def _opened(self) -> ValueCodec | str:
        """Return the codec, or why there is none."""
        if self._source is None:
            return "is of a schema that is not known"
        with self._turn.measured(self._turn.limits.open_seconds):
            try:
                return self._codecs.of(self._source)
            except InvalidSchema as error:
                return f"is no value of schema {self._source.schema_id}: {error}"

    def _check(self, codec: ValueCodec | str, start: int, end: int) -> None:
        for index, part, payload in self._values[start:end]:
            if len(self.problems) >= PROBLEMS_MAX:
                return
            if isinstance(codec, str):
                self.problems.append((index, f"the {part} {codec}"))
                continue
            try:
                codec.check(payload)
            except (UnreadableValue, InvalidSchema) as error:
                assert self._source is not None
                text = f"the {part} is no value of schema {self._source.schema_id}: {error}"
                self.problems.append((index, text))


def _run_end(values: Sequence[Value], start: int) -> tuple[int, int]:
    """Return the end of a run of values from a number on, and the size of the run."""
    end, size_bytes = start, 0
    while end < len(values) and (size_bytes < RUN_BYTES_MAX or end == start):
        size_bytes += _size_of(values[end])
        end += 1
    return end, size_bytes


def _size_of(value: Value) -> int:
    return VALUE_BYTES + len(value[2])


def _by_schema(
    batch: bytes | bytearray | memoryview,
    parts: Sequence[str],
    sources: Mapping[int, SchemaSource],
) -> tuple[dict[int, list[Value]], list[Problem]]:
    """Return the values of each schema, always in the same order, and the problems of others."""
    types = {one.schema_id: one.schema_type for one in sources.values()}
    ids = {one.guid: one.schema_id for one in sources.values()}
    groups: dict[int, list[Value]] = {}
    problems: list[Problem] = []
    records = read_records(batch)
    for part in parts:
        read = reader_of(part)
        for index, record in enumerate(records):
            data = read(record)
            if data is None:
                continue
            try:
                frame = frame_of(record, part, data)
                named = frame.schema
                schema_id = ids.get(named, 0) if isinstance(named, str) else named
                payload = frame.payload(types.get(schema_id, ""))
            except UnreadableValue as error:
                problems.append((index, f"the {part} has no schema's id: {error}"))
                continue
            groups.setdefault(schema_id, []).append((index, part, payload))
    return groups, problems[:PROBLEMS_MAX]


def _opened(source: SchemaSource) -> ValueCodec | InvalidSchema:
    """Return the codec, or why there is none."""
    try:
        codec = open_codec(SchemaType(source.schema_type), source.text, source.known)
        with suppress(UnreadableValue):
            codec.check(b"")  # Some make what they need at the first value only.
    except InvalidSchema as error:
        return InvalidSchema(str(error))  # Without the frames of this one.
    return codec

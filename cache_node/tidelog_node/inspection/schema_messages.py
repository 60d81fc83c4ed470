"""The messages between a node and its schema worker. Each job is followed by its batch.

The node imports this module, and nothing that works with schemas.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog_core.schemas.model import Reference

from tidelog_node.inspection.messages import Problem, RecordsRefused

MIB = 1 << 20
NO_TIME = "it takes more time than a schema may"
NO_MEMORY = "it takes more memory than a schema may"


class ValueLimits(NamedTuple):
    """The CPU time that one schema may take in a batch: other load does not count.

    An honest schema of 300,000 characters takes 0.3 seconds to open, and one for each MiB at most.
    """

    open_seconds: float = 3.0
    base_seconds: float = 1.0  # for values of any size
    seconds_per_mib: float = 4.0  # of values
    seconds_max: float = 20.0
    run_seconds_max: float = 10.0  # of values between which nothing else can be done
    slice_seconds: float = 1.0  # of one job

    def allowed(self, size_bytes: int) -> float:
        """Return the seconds for values of this size."""
        wanted = self.base_seconds + self.seconds_per_mib * size_bytes / MIB
        return min(wanted, self.seconds_max)

    def allowed_at_once(self, size_bytes: int) -> float:
        """Return the seconds for one value of this size, or for several small ones."""
        return min(self.allowed(size_bytes), self.run_seconds_max)


class SchemaSource(NamedTuple):
    """A schema, as a codec is made of it."""

    schema_id: int
    schema_type: str
    text: str
    known: tuple[tuple[Reference, str], ...]
    guid: str = ""

    @property
    def characters(self) -> int:
        """The length of all texts."""
        return len(self.text) + sum(len(text) for _, text in self.known)


class ValuesJob(NamedTuple):
    """Read a batch's keys and values with their schemas."""

    size_bytes: int
    parts: tuple[str, ...]
    schemas: tuple[SchemaSource, ...]
    limits: ValueLimits
    start: int = 0  # the number of values that earlier jobs have checked
    spent_seconds: float = 0.0  # by the schema of the first value that is left


class ValuesChecked(NamedTuple):
    """The result of a job."""

    problems: list[Problem]
    next_start: int | None  # where the next job goes on; ``None``: all is checked
    spent_seconds: float  # by the schema of that value


class TooCostly(NamedTuple):
    """A schema that takes more time or memory than is allowed."""

    schema_id: int
    reason: str


class NamesJob(NamedTuple):
    """Find the names in a schema. It is parsed for them, and that may take long."""

    size_bytes: int  # of the batch: none
    schema: SchemaSource
    seconds_max: float  # of CPU time


class TooManyNames(RecordsRefused):
    """The messages of a Protobuf file have longer names, together, than are looked at."""

    @classmethod
    def of(cls, schema_id: int, characters_max: int) -> TooManyNames:
        """Return the refusal of records with this schema."""
        text = (
            f"the names of the messages in schema {schema_id} have more than {characters_max}"
            " characters: split its file, or name the subject after the topic"
        )
        return cls([(0, text)])

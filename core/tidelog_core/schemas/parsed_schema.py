"""The interface of a parsed schema of any language, as the registry uses it."""

from __future__ import annotations

from typing import NamedTuple, Protocol, Self

from tidelog_core.schemas.model import SchemaType

DEPTH_MAX = 100  # of nested types in a schema
STEPS_MAX = 50_000  # of one comparison: a second
PARTS_PER_STEP = 5  # symbols, fields and the like, that one pair of types has
PROBLEMS_MAX = 50  # that one comparison names
NEW, OLD = "new", "old"


class InvalidSchema(ValueError):
    """The text is no schema of its language. The message says why, for its writer."""


class TooComplex(InvalidSchema):
    """Comparing the schemas takes longer than a request may."""


class ParsedSchema(Protocol):
    """A schema that was understood. Never changed."""

    @property
    def schema_type(self) -> SchemaType:
        """Its language."""

    @property
    def canonical(self) -> str:
        """The text that is stored. Texts that differ in their spaces have one."""

    def normalized(self) -> Self:
        """Return the schema without the parts that make no difference to data."""

    def formatted(self, wanted: str) -> str:
        """Return the text in a format that a client asks for; unknown ones are ignored."""

    def problems_reading(self, written: Self) -> list[str]:
        """Return why data of another schema cannot be read with this one; empty if it can.

        Each text may have ``%s`` twice: what the reader is called, then the writer. Raises
        ``TooComplex``.
        """


class Problem(NamedTuple):
    """A change after which data may not be readable, as Confluent's ``Difference`` names it."""

    kind: str
    path: tuple[str, ...]  # from the schema to the part that has changed

    @property
    def place(self) -> str:
        """The path as a message names it."""
        return "#/" + "/".join(self.path)

    def message(self, description: str) -> str:
        """Return the message with a description, as Confluent's registry answers it."""
        return f'{{errorType:"{self.kind}", description:"{description}\'}}'


class StepBudget:
    """The steps that one comparison may take."""

    __slots__ = ("_left",)

    def __init__(self, steps_max: int = STEPS_MAX) -> None:
        self._left = steps_max

    def take(self, count: int = 1) -> None:
        """Take steps. Raises ``TooComplex`` after too many."""
        self._left -= count
        if self._left < 0:
            raise TooComplex("it takes too long to check: it nests too many choices or defaults")

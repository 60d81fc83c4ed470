"""Whether data written with one Avro schema can be read with another.

Source: «Schema Resolution» of the specification, and ``SchemaCompatibility`` of Avro Java, whose
kinds of problems, places and messages these are; the texts around them are those of Confluent's
``Difference``.
"""

from __future__ import annotations

from tidelog_core.schemas.avro.types import NO_DEFAULT, AvroField, AvroType
from tidelog_core.schemas.parsed_schema import PARTS_PER_STEP, PROBLEMS_MAX, StepBudget

# The kinds of data that a reader of another kind takes.
_PROMOTIONS = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "bytes": frozenset({"string"}),
    "string": frozenset({"bytes"}),
}


def problems_reading(reader: AvroType, writer: AvroType) -> list[str]:
    """Return why data of the writer cannot be read; empty if it can. Raises ``TooComplex``."""
    return _Comparison().compare(reader, writer, ())


class _Comparison:
    """The pairs that were compared. One that is under way counts as readable, as in Avro Java."""

    def __init__(self) -> None:
        self._budget = StepBudget()
        self._known: dict[tuple[int, int], list[str]] = {}

    def compare(self, reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> list[str]:
        """Return the problems of a pair at a place of the reader."""
        self._budget.take()
        pair = id(reader), id(writer)
        known = self._known.get(pair)
        if known is None:
            self._known[pair] = []  # A record may have itself in a field.
            # Types that have each other more than once would double the list at each level.
            known = self._known[pair] = self._compare(reader, writer, path)[:PROBLEMS_MAX]
        return known

    def _compare(self, reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> list[str]:
        if writer.kind == "union":
            return self._union_written(reader, writer, path)
        if reader.kind == "union":
            if any(not self.compare(one, writer, path) for one in reader.branches):
                return []
            return [_missing_branch(writer, path)]
        if reader.kind == writer.kind or (reader.is_record and writer.is_record):
            return self._same_kind(reader, writer, path)
        if writer.kind in _PROMOTIONS.get(reader.kind, ()):
            return []
        return [_type_mismatch(reader, writer, path)]

    def _union_written(
        self, reader: AvroType, writer: AvroType, path: tuple[str, ...]
    ) -> list[str]:
        """Each branch that may have been written must be read."""
        found: list[str] = []
        if reader.kind == "union":
            for index, one in enumerate(writer.branches):
                if self.compare(reader, one, path):
                    found.append(_missing_branch(one, (*path, str(index))))
            return found
        for one in writer.branches:
            found += self.compare(reader, one, path)
        return found

    def _same_kind(self, reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> list[str]:
        if reader.items is not None and writer.items is not None:
            member = "items" if reader.kind == "array" else "values"
            return self.compare(reader.items, writer.items, (*path, member))
        if not reader.name:
            return []
        parts = (reader.symbols, writer.symbols, reader.fields, writer.fields, reader.aliases)
        self._budget.take(sum(map(len, parts)) // PARTS_PER_STEP)
        found = _name_problems(reader, writer, path)
        if reader.kind == "fixed" and reader.size != writer.size:
            found.append(_size_mismatch(reader, writer, (*path, "size")))
        if reader.kind == "enum" and reader.default is None:
            known = frozenset(reader.symbols)
            missing = [one for one in writer.symbols if one not in known]
            if missing:
                found.append(_missing_symbols(missing, (*path, "symbols")))
        by_name = {one.name: one for one in writer.fields}
        for index, field in enumerate(reader.fields):
            place = (*path, "fields", str(index))
            self._budget.take(len(field.aliases) // PARTS_PER_STEP)
            names = (field.name, *field.aliases)  # The field's own name counts first.
            written = next((by_name[name] for name in names if name in by_name), None)
            if written is not None:
                found += self.compare(field.type, written.type, (*place, "type"))
            elif field.default is NO_DEFAULT:
                found.append(_missing_default(field, place))
        return found


def _name_problems(reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> list[str]:
    if reader.name == writer.name or writer.full_name in reader.aliases:
        return []
    place = _place((*path, "name"))
    text = f"The name of the schema has changed (path '{place}')"
    return [_problem("NAME_MISMATCH", text, f"expected: {writer.full_name}")]


def _type_mismatch(reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> str:
    text = f"The type (path '{_place(path)}') of a field in the %s schema does not match with the"
    more = f"reader type: {reader.type_name} not compatible with writer type: {writer.type_name}"
    return _problem("TYPE_MISMATCH", f"{text} %s schema", more)


def _missing_branch(writer: AvroType, path: tuple[str, ...]) -> str:
    text = f"The %s schema is missing a type inside a union field at path '{_place(path)}' in the"
    more = f"reader union lacking writer type: {writer.type_name}"
    return _problem("MISSING_UNION_BRANCH", f"{text} %s schema", more)


def _missing_symbols(symbols: list[str], path: tuple[str, ...]) -> str:
    shown = f"[{', '.join(symbols)}]"
    text = f"The %s schema is missing enum symbols '{shown}' at path '{_place(path)}' in the"
    return _problem("MISSING_ENUM_SYMBOLS", f"{text} %s schema", shown)


def _size_mismatch(reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> str:
    text = f"The size of FIXED type field at path '{_place(path)}' in the %s schema does not"
    more = f"expected: {writer.size}, found: {reader.size}"
    return _problem("FIXED_SIZE_MISMATCH", f"{text} match with the %s schema", more)


def _missing_default(field: AvroField, path: tuple[str, ...]) -> str:
    text = f"The field '{field.name}' at path '{_place(path)}' in the %s schema has no default"
    return _problem(
        "READER_FIELD_MISSING_DEFAULT_VALUE",
        f"{text} value and is missing in the %s schema",
        field.name,
    )


def _problem(kind: str, text: str, more: str) -> str:
    return f"{{errorType:'{kind}', description:'{text}', additionalInfo:'{more}'}}"


def _place(path: tuple[str, ...]) -> str:
    return "/" + "/".join(path)

"""Declares a record's fields and how they are stored.

A field's type decides how it is stored: a UUID and an enum as text, a tuple as a list, all others
unchanged. Additional rules are in ``Annotated``.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin
from uuid import UUID

from tidelog_core.errors import InvalidConfig
from tidelog_core.metadata.store import JsonValue
from tidelog_core.model import INT64_MAX

T = TypeVar("T")

# Decodes a stored value; the second argument has the fields before it.
Read = Callable[[Any, Mapping[str, Any]], Any]
# Returns the stored value of a field.
Convert = Callable[[Any], JsonValue]

_INT64_MIN = -INT64_MAX - 1
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
# The errors that a field's own function may raise for a value that it cannot read.
_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, zlib.error, InvalidConfig)


class _Rule(Enum):
    IN_KEY = "in key"
    OMITTED = "omitted"
    ADDED = "added"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The least value of a whole number."""

    value: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The functions of a field whose stored form does not follow from its type."""

    read: Read  # may raise any of ``_UNREADABLE``
    write: Callable[[Any], JsonValue] | None  # gets the record; None: only older programs stored it
    name: str = ""  # in the body; empty: the field's


@dataclass(frozen=True, slots=True)
class Checked:
    """A condition on a value in addition to its type."""

    check: Callable[[Any], object]  # raises any of ``_UNREADABLE``


Natural = Annotated[int, AtLeast(0)]
Positive = Annotated[int, AtLeast(1)]
OrMinusOne = Annotated[int, AtLeast(-1)]  # -1: unknown or absent
InKey = Annotated[T, _Rule.IN_KEY]  # not in the body
Omitted = Annotated[T, _Rule.OMITTED]  # not stored while it has its default
Added = Annotated[T, _Rule.ADDED]  # items of older programs lack it


class StoredField(NamedTuple):
    """A field with its stored form."""

    field: dataclasses.Field[Any]
    name: str  # in the body
    type: Any  # without ``None`` and rules
    at_least: int  # of a whole number
    is_optional: bool  # may be ``None``
    is_in_key: bool
    is_stored: bool
    convert: Convert | None  # None: the value unchanged, or ``write``
    write: Callable[[Any], JsonValue] | None  # gets the record
    is_omitted: bool  # not stored while it has its default
    read: Read  # raises ``ValueError``, which names the field
    may_lack: bool  # the stored item need not have it


def stored_field(field: dataclasses.Field[Any], hint: Any) -> StoredField:
    """Return how the field of a record is stored; ``hint`` is its type with the rules."""
    hint, rules = _split(hint)
    is_optional = type(None) in get_args(hint)
    if is_optional:
        hint, more = _split(next(some for some in get_args(hint) if some is not type(None)))
        rules += more
    is_omitted = _Rule.OMITTED in rules
    own = next((rule for rule in rules if isinstance(rule, Stored)), None)
    at_least = next((rule.value for rule in rules if isinstance(rule, AtLeast)), _INT64_MIN)
    name, convert = field.name, None
    if own is not None:
        name = own.name or name
        read = _reported(name, own.read)
    elif _Rule.IN_KEY in rules:
        read = _not_in_body
    else:
        convert, read = _by_type(name, hint, at_least)
        if is_optional and not is_omitted:
            assert convert is None, "no record has such a field yet"
            read = _or_none(read)
    for rule in rules:
        if isinstance(rule, Checked):
            read = _checked(name, read, rule.check)
    return StoredField(
        field=field,
        name=name,
        type=hint,
        at_least=at_least,
        is_optional=is_optional,
        is_in_key=_Rule.IN_KEY in rules,
        is_stored=own is None or own.write is not None,
        convert=convert,
        write=None if own is None else own.write,
        is_omitted=is_omitted,
        read=read,
        may_lack=is_omitted or _Rule.ADDED in rules or (own is not None and own.write is None),
    )


def _split(hint: Any) -> tuple[Any, tuple[object, ...]]:
    """Return the type without ``Annotated``, and the rules in that."""
    if get_origin(hint) is not Annotated:
        return hint, ()
    bare, *rules = get_args(hint)
    return bare, tuple(rules)


def _by_type(name: str, hint: Any, at_least: int) -> tuple[Convert | None, Read]:
    if hint is int:
        return None, _whole_number(name, at_least)
    if hint is str or hint is bool:
        return None, _plain(name, hint, "a string" if hint is str else "true or false")
    if hint is UUID:
        return str, _uuid(name)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return attrgetter("value"), _enum(name, hint)
    return _collection_by_type(name, hint)


def _collection_by_type(name: str, hint: Any) -> tuple[Convert, Read]:
    if hint == tuple[int, ...]:
        return list, _whole_numbers(name)
    if hint == tuple[str, ...]:
        return list, _texts(name)
    if hint == tuple[tuple[int, int], ...]:
        return lambda pairs: [list(pair) for pair in pairs], _pairs(name)
    if get_origin(hint) is Mapping:
        return dict, _mapping(name, get_args(hint)[1])
    raise TypeError(f"nothing says how {name} is stored: {hint}")


def _not_in_body(*_: object) -> Any:
    raise AssertionError("a field of the key is not in the body")


def _or_none(read: Read) -> Read:
    return lambda value, before: None if value is None else read(value, before)


def _checked(name: str, read: Read, check: Callable[[Any], object]) -> Read:
    def read_and_check(value: Any, before: Mapping[str, Any]) -> Any:
        found = read(value, before)
        check(found)
        return found

    return _reported(name, read_and_check)


def _reported(name: str, read: Read) -> Read:
    def reported(value: Any, before: Mapping[str, Any]) -> Any:
        try:
            return read(value, before)
        except _UNREADABLE as error:
            raise ValueError(f"{name} cannot be read: {error}") from None

    return reported


# -- reading by type -----------------------------------------------------------------------


def is_int64(value: object) -> bool:
    """Whether this is a whole number that every program can hold."""
    return type(value) is int and _INT64_MIN <= value <= INT64_MAX


def typed_rows(rows: Any, *types: Any) -> Iterator[Sequence[Any]]:
    """Yield the rows of a list, each with a value of each type. Raises ``ValueError``."""
    if not isinstance(rows, list | tuple):
        raise ValueError(f"{rows!r} is no list")
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) != len(types):
            raise ValueError(f"{row!r} is no row of {len(types)}")
        if not all(map(isinstance, row, types)):
            raise ValueError(f"{row!r} has a value of another type")
        yield row


def _whole_number(name: str, least: int) -> Read:
    def read(value: Any, _: Mapping[str, Any]) -> int:
        if type(value) is int and least <= value <= INT64_MAX:
            return value
        if is_int64(value):
            raise ValueError(f"{name} must be at least {least}, not {value}")
        raise ValueError(f"{name} must be a whole number of 64 bits, not {value!r}")

    return read


def _plain(name: str, of: type, described: str) -> Read:
    def read(value: Any, _: Mapping[str, Any]) -> Any:
        if type(value) is not of:
            raise ValueError(f"{name} must be {described}, not {value!r}")
        return value

    return read


@lru_cache(maxsize=16)  # Items are read topic by topic; segment ids do not repeat.
def _uuid_of(text: str) -> UUID | None:
    return UUID(int=int(text.replace("-", ""), 16)) if _UUID.fullmatch(text) else None


def _uuid(name: str) -> Read:
    def read(value: Any, _: Mapping[str, Any]) -> UUID:
        found = _uuid_of(value) if type(value) is str else None
        if found is None:
            raise ValueError(f"{name} must be a canonical UUID, not {value!r}")
        return found

    return read


def _enum(name: str, of: type[Enum]) -> Read:
    members = {member.value: member for member in of}

    def read(value: Any, _: Mapping[str, Any]) -> Enum:
        if type(value) is not str or value not in members:
            raise ValueError(f"{name} must be one of {', '.join(members)}, not {value!r}")
        return members[value]

    return read


def _whole_numbers(name: str) -> Read:
    def read(value: Any, _: Mapping[str, Any]) -> tuple[int, ...]:
        if not isinstance(value, list | tuple) or not all(map(is_int64, value)):
            raise ValueError(f"{name} must be a list of whole numbers of 64 bits, not {value!r}")
        return tuple(value)

    return read


def _texts(name: str) -> Read:
    def read(value: Any, _: Mapping[str, Any]) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(type(one) is str for one in value):
            raise ValueError(f"{name} must be a list of strings, not {value!r}")
        return tuple(value)

    return read


def _pairs(name: str) -> Read:
    def read(value: Any, _: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
        if isinstance(value, list | tuple) and all(
            isinstance(pair, list | tuple) and len(pair) == 2 and all(map(is_int64, pair))
            for pair in value
        ):
            return tuple((first, second) for first, second in value)
        raise ValueError(f"{name} must be a list of pairs of whole numbers, not {value!r}")

    return read


def _mapping(name: str, of: type) -> Read:
    described = "a string" if of is str else "a whole number of 64 bits"

    def read(values: Any, _: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(values, Mapping):
            raise ValueError(f"{name} must be a mapping, not {values!r}")
        for key, value in values.items():
            if not (type(value) is str if of is str else is_int64(value)):
                raise ValueError(f"{name}.{key} must be {described}, not {value!r}")
        return dict(values)

    return read

"""Declares records of the metadata store: an item's fields and its key, in one place.

    @key_form
    def broker_key(broker_id: int) -> ItemKey:
        return ItemKey("broker", f"{broker_id:010d}")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Broker(Record):
        KEY = broker_key

        broker_id: Natural
        rack: str | None = None

Fields are stored in the order of declaration (``fields`` says how). A default is for callers; the
stored item has the field. The key function's parameters are fields: either only the key has them
(``InKey``), or the body has them too and must agree with the key.

Decoding is strict. A program that meets an unknown field must stop, because its next write would
drop the field.

msgspec and cattrs are not used: their errors name the field without the value, and the key, the
omitted fields and the packed members would still need functions of their own.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from types import FunctionType
from typing import Any, ClassVar, Generic, NamedTuple, ParamSpec, Self, cast, get_type_hints

from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.fields import StoredField, stored_field
from tidelog_core.metadata.store import ABSENT, Body, Item, ItemKey

P = ParamSpec("P")


class KeyForm(Generic[P]):
    """A function that returns the keys of one kind of item, and reads them."""

    def __init__(self, make: Callable[P, ItemKey]) -> None:
        self.make = make

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ItemKey:
        return self.make(*args, **kwargs)

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the function's parameters."""
        code = cast("FunctionType", self.make).__code__
        return code.co_varnames[: code.co_argcount]

    @property
    def text(self) -> ItemKey:
        """Its keys, as people read them: ``<group id>/<page, 6 digits>``."""
        return self._form(
            lambda name, digits: f"<{name.replace('_', ' ')}{digits and f', {digits} digits'}>"
        )

    def parse(self, key: ItemKey) -> dict[str, str]:
        """Return the arguments for which the function returns the key. Raises ``ValueError``."""
        collection = self._patterns[0].fullmatch(key.collection)
        rest = self._patterns[1].fullmatch(key.key)
        if collection is None or rest is None:
            raise ValueError(f"the key is not {self.text.key} in {self.text.collection}")
        return collection.groupdict() | rest.groupdict()

    @functools.cached_property
    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        form = self._form(lambda name, digits: f"(?P<{name}>{'[0-9]+' if digits else '.+'})")
        return re.compile(form.collection, re.DOTALL), re.compile(form.key, re.DOTALL)

    def _form(self, show: Callable[[str, str], str]) -> ItemKey:
        """Return a key, where ``show`` gets the arguments' names and numbers of digits."""
        make = cast("Callable[..., ItemKey]", self.make)
        return make(*(_Argument(name, show) for name in self.parameters))


def key_form(make: Callable[P, ItemKey]) -> KeyForm[P]:
    """Decorate the function that returns the keys of one kind of item."""
    return KeyForm(make)


class _Argument(NamedTuple):
    """A placeholder for an argument in the f-strings of a key function."""

    name: str
    show: Callable[[str, str], str]

    def __format__(self, spec: str) -> str:
        return self.show(self.name, spec.removesuffix("d").lstrip("0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The value of one item.

    ``version`` is the version its item was read at, ``ABSENT`` if it was never stored.
    It takes no part in equality, and ``put`` and ``delete`` expect it.
    """

    KEY: ClassVar[KeyForm[...]]

    version: int = dataclasses.field(default=ABSENT, compare=False)

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return self.KEY.make(*[getattr(self, name) for name in self.KEY.parameters])

    def to_body(self) -> Body:
        """Return the item's body."""
        layout = _layout(type(self))
        body: dict[str, Any] = dict(zip(layout.names, layout.values(self), strict=True))
        del body["version"]
        for name, default in layout.omitted:
            if body[name] == default:
                del body[name]
        for name, convert in layout.converts:
            if name in body:
                body[name] = convert(body[name])
        for name, write in layout.writes:
            if name in body:
                body[name] = write(self)
        return body

    @classmethod
    def from_item(cls, item: Item) -> Self:
        """Return the record. Raises ``CorruptItem``."""
        try:
            if item.problem is not None:
                raise ValueError(item.problem)
            values = _layout(cls).read(item.id, cls.renewed(item.body))
        except ValueError as error:
            raise CorruptItem((item.id.collection, item.id.key), str(error)) from None
        return cls(version=item.version, **values)

    @classmethod
    def renewed(cls, body: Body) -> Body:
        """Return a body of an older program as this one stores it. Raises ``ValueError``."""
        return body


def stored_fields(record: type[Record]) -> list[StoredField]:
    """Return how the fields of a record are stored, all but the version."""
    hints = get_type_hints(record, include_extras=True)
    return [
        stored_field(field, hints[field.name])
        for field in dataclasses.fields(record)
        if field.name != "version"
    ]


class _Layout:
    """The stored form of the records of one class."""

    def __init__(self, record: type[Record]) -> None:
        fields = stored_fields(record)
        body = [field for field in fields if not field.is_in_key]
        stored = [field for field in body if field.is_stored]
        # With the version first, because a getter of one attribute returns no tuple.
        self.values = attrgetter("version", *(f.field.name for f in stored))
        self.names = ["version", *(f.name for f in stored)]
        self.omitted = [(f.name, f.field.default) for f in stored if f.is_omitted]
        self.converts = [(f.name, f.convert) for f in stored if f.convert is not None]
        self.writes = [(f.name, f.write) for f in stored if f.write is not None]
        self._form = record.KEY
        self._in_key = [(f.field.name, f.type) for f in fields if f.is_in_key]
        self._in_body = [(f.name, f.field.name, f.read, not f.may_lack) for f in body]

    def read(self, key: ItemKey, body: Body) -> dict[str, Any]:
        """Return the fields. Raises ``ValueError``."""
        values: dict[str, Any] = {}
        if self._in_key:
            arguments = self._form.parse(key)
            for field, convert in self._in_key:
                values[field] = convert(arguments[field])
        found = 0
        for name, field, read, is_required in self._in_body:
            if name in body:
                values[field] = read(body[name], values)
                found += 1
            elif is_required:
                raise ValueError(f"{name} is missing")
        if found < len(body):
            unknown = body.keys() - {name for name, *_ in self._in_body}
            raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
        if not self._in_key:
            # A key and a body spell an argument alike, so it needs no conversion.
            said = self._form.make(*[body[name] for name in self._form.parameters])
            if said.key != key.key or said.collection != key.collection:
                raise ValueError(f"holds another item: {said.collection}/{said.key}")
        return values


_LAYOUTS: dict[type[Record], _Layout] = {}


def _layout(record: type[Record]) -> _Layout:
    layout = _LAYOUTS.get(record)
    if layout is None:
        layout = _LAYOUTS[record] = _Layout(record)
    return layout

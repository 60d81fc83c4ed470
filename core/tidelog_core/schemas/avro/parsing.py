"""Parses Avro schemas.

Source: the specification of Avro 1.12, and ``Schema.Parser`` of Avro Java.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from tidelog_core.schemas.avro.defaults import is_default_of
from tidelog_core.schemas.avro.types import NAMED, NO_DEFAULT, PRIMITIVES, AvroField, AvroType
from tidelog_core.schemas.model import compact_json
from tidelog_core.schemas.parsed_schema import DEPTH_MAX, InvalidSchema, StepBudget

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset(
    {"doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases"}
)
_OF_ENUM = _RESERVED | {"default"}
_OF_FIELD = frozenset({"default", "doc", "name", "order", "type", "aliases"})
_ORDERS = ("ascending", "descending", "ignore")
_DEFAULT_STEPS_MAX = 1_000_000  # of all defaults; a text of full length has fewer values


def parse_avro(text: str, known: Iterable[str] = ()) -> tuple[AvroType, dict[str, AvroType]]:
    """Return the type that the text declares, and those of other texts that it may name.

    ``known`` are the texts of schemas that it refers to, each after those that it needs itself.
    Raises ``InvalidSchema``.
    """
    parser = _Parser()
    for one in known:
        parser.parse(load_json(one), "", 0)
    references = dict(parser.names)
    return parser.parse(load_json(text, plain=True), "", 0), references


def load_json(text: str, *, plain: bool = False) -> Any:
    """Return the value of a JSON text. Raises ``InvalidSchema``.

    ``plain``: a text without quotes or braces is a name, as Avro's tools take it.
    """
    if plain and _is_plain_name(text.strip()):
        return text.strip()
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if "\\u" in text:
            compact_json(value).encode()  # Half of a surrogate pair is no text.
        return value
    except ValueError as error:
        raise InvalidSchema(f"it is not JSON: {error}") from None
    except RecursionError:
        raise InvalidSchema("it nests too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:50]} is too large a number")
    return number


def _is_plain_name(text: str) -> bool:
    return bool(text) and all(_NAME.fullmatch(part) for part in text.split("."))


class _Parser:
    """Collects the named types of one text after the other."""

    def __init__(self) -> None:
        self.names: dict[str, AvroType] = {}
        self._budget = StepBudget(_DEFAULT_STEPS_MAX)

    def parse(self, value: Any, namespace: str, depth: int) -> AvroType:
        """Return the type that a JSON value declares in the namespace."""
        if depth > DEPTH_MAX:
            raise InvalidSchema(f"types are nested more than {DEPTH_MAX} times")
        if isinstance(value, str):
            return self._named(value, namespace)
        if isinstance(value, list):
            return self._union(value, namespace, depth)
        if not isinstance(value, dict):
            raise InvalidSchema(f"no type: {_shown(value)}")
        kind = value.get("type")
        if not isinstance(kind, str):
            raise InvalidSchema(f"no type: {_shown(value)}")
        if kind in NAMED:
            return self._declaration(kind, value, namespace, depth)
        if kind in ("array", "map"):
            member = "items" if kind == "array" else "values"
            if member not in value:
                raise InvalidSchema(f"no {member} of the {kind}: {_shown(value)}")
            items = self.parse(value[member], namespace, depth + 1)
            return AvroType(kind, items=items, properties=_properties(value, _RESERVED))
        if kind in PRIMITIVES:
            return AvroType(kind, properties=_properties(value, _RESERVED))
        return self._named(kind, namespace)

    def _named(self, text: str, namespace: str) -> AvroType:
        if text in PRIMITIVES:
            return AvroType(text)
        full = text if "." in text or not namespace else f"{namespace}.{text}"
        found = self.names.get(full) or self.names.get(text)
        if found is None:
            raise InvalidSchema(f"undefined name: {_shown(text)}")
        return found

    def _union(self, branches: list[Any], namespace: str, depth: int) -> AvroType:
        types = tuple(self.parse(one, namespace, depth + 1) for one in branches)
        seen: set[str] = set()
        for one in types:
            if one.kind == "union":
                raise InvalidSchema("a union has a union as one of its types")
            name = one.full_name or one.kind
            if name in seen:
                raise InvalidSchema(f"a union has {_shown(name)} twice")
            seen.add(name)
        return AvroType("union", branches=types)

    def _declaration(
        self, kind: str, value: dict[str, Any], namespace: str, depth: int
    ) -> AvroType:
        name, own_namespace = _name_of(value, namespace)
        reserved = _OF_ENUM if kind == "enum" else _RESERVED
        made = AvroType(
            kind,
            name=name,
            namespace=own_namespace,
            doc=_text_or_none(value, "doc"),
            aliases=_aliases(value, own_namespace),
            properties=_properties(value, reserved),
        )
        if made.full_name in self.names:
            raise InvalidSchema(f"{_shown(made.full_name)} is declared twice")
        if name in PRIMITIVES and not own_namespace:
            raise InvalidSchema(f"{_shown(name)} is a type of Avro, and needs another name")
        self.names[made.full_name] = made
        if kind == "enum":
            made.symbols, made.default = _symbols(value)
        elif kind == "fixed":
            made.size = _size(value)
        else:
            made.fields = self._fields(value, own_namespace, depth)
        return made

    def _fields(self, value: dict[str, Any], namespace: str, depth: int) -> tuple[AvroField, ...]:
        given = value.get("fields")
        if not isinstance(given, list):
            raise InvalidSchema(f"the record has no list of fields: {_shown(value)}")
        fields: dict[str, AvroField] = {}
        for one in given:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                raise InvalidSchema(f"a field has no name: {_shown(one)}")
            name = one["name"]
            _require_name(name)
            if name in fields:
                raise InvalidSchema(f"a record has the field {_shown(name)} twice")
            if "type" not in one:
                raise InvalidSchema(f"the field {_shown(name)} has no type")
            order = one.get("order", "ascending")
            if not isinstance(order, str) or order.lower() not in _ORDERS:
                raise InvalidSchema(f"the order of {_shown(name)} is none of {_ORDERS}")
            made = AvroField(
                name,
                self.parse(one["type"], namespace, depth + 1),
                doc=_text_or_none(one, "doc"),
                default=one.get("default", NO_DEFAULT),
                order=order.lower(),
                aliases=_names(one),
                properties=_properties(one, _OF_FIELD),
            )
            fields[name] = made
        for made in fields.values():
            if made.default is NO_DEFAULT:
                continue
            if not is_default_of(made.type, made.default, self._budget):
                raise InvalidSchema(
                    f"the default of {_shown(made.name)}, {_shown(made.default)}, is not of its"
                    f" type {made.type.full_name or made.type.kind}"
                )
        return tuple(fields.values())


def _name_of(value: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Return name and namespace of a declaration."""
    name = value.get("name")
    if not isinstance(name, str):
        raise InvalidSchema(f"no name in schema: {_shown(value)}")
    given = value.get("namespace")
    if given is not None and not isinstance(given, str):
        raise InvalidSchema(f"the namespace is no text: {_shown(given)}")
    space, _, last = name.rpartition(".")
    if not space:
        space = namespace if given is None else given
    _require_name(last)
    for part in space.split(".") if space else ():
        _require_name(part)
    return last, space


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidSchema(
            f"illegal name {_shown(name)}: letters, digits and _ are allowed, no digit first"
        )


def _symbols(value: dict[str, Any]) -> tuple[tuple[str, ...], str | None]:
    given = value.get("symbols")
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise InvalidSchema(f"the enum has no list of symbols: {_shown(value)}")
    for one in given:
        _require_name(one)
    if len(set(given)) != len(given):
        raise InvalidSchema("an enum has a symbol twice")
    default = _text_or_none(value, "default")
    if default is not None and default not in given:
        raise InvalidSchema(f"the enum's default {_shown(default)} is none of its symbols")
    return tuple(given), default


def _size(value: dict[str, Any]) -> int:
    size = value.get("size")
    if type(size) is not int or not 0 <= size < 2**31:
        raise InvalidSchema(f"the fixed has no valid size: {_shown(value)}")
    return size


def _text_or_none(value: dict[str, Any], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None


def _names(value: dict[str, Any]) -> tuple[str, ...]:
    given = value.get("aliases", [])
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise InvalidSchema(f"aliases are no list of names: {_shown(given)}")
    return tuple(dict.fromkeys(given))


def _aliases(value: dict[str, Any], namespace: str) -> tuple[str, ...]:
    return tuple(
        one if "." in one or not namespace else f"{namespace}.{one}" for one in _names(value)
    )


def _properties(value: dict[str, Any], reserved: frozenset[str]) -> dict[str, Any]:
    return {name: found for name, found in value.items() if name not in reserved}


def _shown(value: object) -> str:
    """Return a value for a message, not too long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + "…"

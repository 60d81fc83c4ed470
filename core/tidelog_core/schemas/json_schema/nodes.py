"""JSON Schemas as trees of nodes of one kind each.

A schema that says more than one thing, such as a type and an enum, becomes an ``allOf`` of nodes;
one with several types an ``anyOf``. Where there is no type, keywords that belong to one say it.
Source: the loader of the Everit library, on whose classes Confluent's comparison works.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urldefrag, urljoin

from tidelog_core.schemas.parsed_schema import DEPTH_MAX, InvalidSchema

CRITERIA = ("allOf", "anyOf", "oneOf")
_OF_ARRAYS = frozenset(
    {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"}
)
_OF_OBJECTS = frozenset(
    {
        *("properties", "required", "minProperties", "maxProperties", "dependencies"),
        *("patternProperties", "additionalProperties", "propertyNames", "dependentRequired"),
        *("dependentSchemas", "unevaluatedProperties"),
    }
)
_OF_STRINGS = frozenset({"minLength", "maxLength", "pattern", "format"})
_OF_NUMBERS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
_SNIFFED = (
    ("array", _OF_ARRAYS),
    ("object", _OF_OBJECTS),
    ("string", _OF_STRINGS),
    ("number", _OF_NUMBERS),
)
_TYPES = frozenset({"array", "object", "string", "number", "integer", "boolean", "null"})
_COUNTS = (
    *("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)
_NUMBERS = ("minimum", "maximum", "multipleOf")
_LIMITS_OR_FLAGS = ("exclusiveMinimum", "exclusiveMaximum")  # true or false in draft 4
ADDRESS_CHARACTERS_MAX = 2_000  # of a schema, an id or a reference: each part has its own copy
_NEW_DRAFTS = ("2019-09", "2020-12")


@dataclass(slots=True, eq=False)
class Node:
    """A schema, or one of the things that it says."""

    kind: str  # empty, false, ref, combined, enum, const, not, or a type but integer
    source: Mapping[str, Any] = field(default_factory=dict)
    criterion: str = ""  # of combined
    parts: tuple[Node, ...] = ()  # of combined; the one that must not match, of not
    is_integer: bool = False  # of number
    reference: str = ""  # of ref: an absolute name
    target: Node | None = None  # of ref, once it is resolved
    is_whole: bool = True  # whether title, default and id of the source are this node's
    properties: Mapping[str, Node] = field(default_factory=dict)
    patterns: Mapping[str, Node] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    dependencies: Mapping[str, Node | frozenset[str]] = field(default_factory=dict)
    is_closed: bool = False  # whether it permits no additional properties, or items
    additional: Node | None = None  # of properties, or of items; ``None``: any, or none
    unevaluated: Node | None = None
    every_item: Node | None = None
    items: tuple[Node, ...] = ()

    def says(self, name: str) -> Any:
        """Return a keyword's value, if it is this node's."""
        return self.source.get(name) if self.is_whole else None

    @property
    def has_default(self) -> bool:
        """Whether it has a default."""
        return self.is_whole and "default" in self.source


def load_tree(document: Any, known: Iterable[tuple[str, Any]]) -> Node:
    """Return the schema of a document; ``known`` are others, with their names in references.

    Raises ``InvalidSchema``.
    """
    loader = _Loader()
    for name, other in known:
        loader.add(name, other)
    return loader.load_document(document)


class _Loader:
    """Makes nodes, and resolves references."""

    def __init__(self) -> None:
        self._documents: dict[str, Any] = {}  # by address, without a fragment
        self._nodes: dict[int, Node] = {}  # by the id of the source
        self._open: list[Node] = []  # references to be resolved
        self._anchors: dict[str, dict[str, Any]] = {}  # by address: the parts with names
        self._is_new = False

    def add(self, name: str, document: Any) -> None:
        """Make a document known under its name and its own id."""
        self._documents[name] = document
        if isinstance(document, dict) and isinstance(document.get("$id"), str):
            self._documents.setdefault(_address(document["$id"]), document)

    def load_document(self, document: Any) -> Node:
        """Return the schema of the document, with all references resolved."""
        self.add("", document)
        if isinstance(document, dict):
            draft = str(document.get("$schema", ""))
            self._is_new = any(one in draft for one in _NEW_DRAFTS)
        root = self.load(document, "", 0)
        while self._open:
            node = self._open.pop()
            node.target = self._resolve(node.reference)
        return root

    def load(self, value: Any, base: str, depth: int) -> Node:
        """Return the schema that a value is."""
        if value is True:
            return Node("empty")
        if value is False:
            return Node("false")
        if not isinstance(value, dict):
            raise InvalidSchema(f"no schema: {str(value)[:100]!r}")
        if depth > DEPTH_MAX:
            raise InvalidSchema(f"schemas are nested more than {DEPTH_MAX} times")
        known = self._nodes.get(id(value))
        if known is not None:
            return known
        own_id = value.get("$id")
        if isinstance(own_id, str):
            base = _joined(base, own_id)
            self._documents.setdefault(_address(base), value)
        node = self._nodes[id(value)] = self._node(value, base, depth)
        return node

    def _node(self, value: dict[str, Any], base: str, depth: int) -> Node:
        _require_types(value)
        for name in ("definitions", "$defs"):
            self._named(value, name, base, depth)
        if isinstance(value.get("$ref"), str):
            node = Node("ref", value, reference=_joined(base, value["$ref"]))
            if value["$ref"].startswith("#") or not value["$ref"]:
                node.reference = _address(base) + value["$ref"]
            self._open.append(node)
            return node
        parts = self._parts(value, base, depth)
        if not parts:
            return Node("empty", value)
        if len(parts) == 1:
            parts[0].is_whole = True
            return parts[0]
        return Node("combined", value, criterion="allOf", parts=tuple(parts))

    def _parts(self, value: dict[str, Any], base: str, depth: int) -> list[Node]:
        """Return a node for each thing that the schema says."""
        parts: list[Node] = []
        if "enum" in value:
            parts.append(Node("enum", value, is_whole=False))
        for criterion in CRITERIA:
            if criterion in value:
                some = tuple(self.load(one, base, depth + 1) for one in value[criterion])
                parts.append(
                    Node("combined", value, criterion=criterion, parts=some, is_whole=False)
                )
        if "not" in value:
            inner = self.load(value["not"], base, depth + 1)
            parts.append(Node("not", value, parts=(inner,), is_whole=False))
        if "const" in value:
            parts.append(Node("const", value, is_whole=False))
        kinds = value.get("type")
        if isinstance(kinds, str):
            parts.append(self._typed(kinds, value, base, depth))
        elif kinds is not None:
            # Each would have all properties of its own.
            some = tuple(self._typed(one, value, base, depth) for one in dict.fromkeys(kinds))
            parts.append(Node("combined", value, criterion="anyOf", parts=some, is_whole=False))
        else:
            for kind, keywords in _SNIFFED:
                if keywords & value.keys():
                    parts.append(self._typed(kind, value, base, depth))
        return parts

    def _typed(self, kind: str, value: dict[str, Any], base: str, depth: int) -> Node:
        is_integer = kind == "integer"
        node = Node("number" if is_integer else kind, value, is_integer=is_integer, is_whole=False)
        if kind == "object":
            self._add_properties(node, value, base, depth)
        elif kind == "array":
            self._add_items(node, value, base, depth)
        return node

    def _add_properties(self, node: Node, value: dict[str, Any], base: str, depth: int) -> None:
        node.properties = self._named(value, "properties", base, depth)
        node.patterns = self._named(value, "patternProperties", base, depth)
        node.required = frozenset(_required(value))
        self._add_additional(node, value, "additionalProperties", base, depth)
        self._add_unevaluated(node, value, "unevaluatedProperties", base, depth)
        found: dict[str, Node | frozenset[str]] = {}
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, one in value.get(keyword, {}).items():
                is_list = isinstance(one, list)
                found[name] = frozenset(one) if is_list else self.load(one, base, depth + 1)
        node.dependencies = found

    def _add_items(self, node: Node, value: dict[str, Any], base: str, depth: int) -> None:
        items, additional = value.get("items"), "additionalItems"
        listed = value.get("prefixItems", items if isinstance(items, list) else ())
        node.items = tuple(self.load(one, base, depth + 1) for one in listed)
        if "prefixItems" in value:
            additional = "items"
        elif items is not None and not isinstance(items, list):
            node.every_item = self.load(items, base, depth + 1)
        self._add_additional(node, value, additional, base, depth)
        self._add_unevaluated(node, value, "unevaluatedItems", base, depth)

    def _add_additional(
        self, node: Node, value: dict[str, Any], keyword: str, base: str, depth: int
    ) -> None:
        given = value.get(keyword)
        node.is_closed = given is False
        if isinstance(given, dict):
            node.additional = self.load(given, base, depth + 1)

    def _add_unevaluated(
        self, node: Node, value: dict[str, Any], keyword: str, base: str, depth: int
    ) -> None:
        if self._is_new and value.get(keyword) is not None:
            node.unevaluated = self.load(value[keyword], base, depth + 1)

    def _named(self, value: dict[str, Any], keyword: str, base: str, depth: int) -> dict[str, Node]:
        given = value.get(keyword, {})
        if not isinstance(given, dict):
            raise InvalidSchema(f"{keyword} is no object")
        return {name: self.load(one, base, depth + 1) for name, one in given.items()}

    def _resolve(self, reference: str) -> Node:
        address, fragment = _split(reference)
        document = self._documents.get(address)
        if document is None:
            raise InvalidSchema(f"$ref {reference!r} names no schema that is known here")
        found = document
        if fragment and not fragment.startswith("/"):
            if address not in self._anchors:
                self._anchors[address] = _anchors(document)
            found = self._anchors[address].get(fragment)
        for part in fragment.split("/")[1:] if fragment.startswith("/") else ():
            found = _member(found, part)
        if found is None:
            raise InvalidSchema(f"$ref {reference!r} names no part of its schema")
        node, seen = self.load(found, address, 0), 0
        while node.kind == "ref" and seen < DEPTH_MAX:
            if node.target is None:
                node.target = self._resolve(node.reference)
            node, seen = node.target, seen + 1
        if node.kind == "ref":
            raise InvalidSchema(f"$ref {reference!r} names itself")
        return node


def _address(uri: str) -> str:
    return _split(uri)[0]


def _split(uri: str) -> tuple[str, str]:
    """Return an address without its fragment, and that. Raises ``InvalidSchema``."""
    try:
        return urldefrag(uri)
    except ValueError:
        raise InvalidSchema(f"no address: {uri[:100]!r}") from None


def _joined(base: str, address: str) -> str:
    """Return an address in a base. Raises ``InvalidSchema``."""
    try:
        joined = urljoin(base, address)
    except ValueError:
        raise InvalidSchema(f"no address: {address[:100]!r}") from None
    if len(joined) > ADDRESS_CHARACTERS_MAX:
        raise InvalidSchema(
            f"the address {joined[:100]!r}… has more than {ADDRESS_CHARACTERS_MAX} characters"
        )
    return joined


def _required(value: dict[str, Any]) -> Any:
    """Return the names that are required; draft 3 says true or false in each property."""
    given = value.get("required", [])
    return [] if isinstance(given, bool) else given


def _member(value: Any, part: str) -> Any:
    """Return the part of a value that a step of a JSON pointer names. Source: RFC 6901."""
    name = part.replace("%25", "%").replace("~1", "/").replace("~0", "~")
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 10:
        return value[int(name)] if int(name) < len(value) else None
    return None


def _anchors(document: Any) -> dict[str, Any]:
    """Return the parts of a document that have an anchor, or an id that is only a fragment."""
    found: dict[str, Any] = {}
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for name in (value.get("$anchor"), value.get("$id")):
                if isinstance(name, str):
                    found.setdefault(name.removeprefix("#"), value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return found


def _require_types(value: dict[str, Any]) -> None:
    """Raise ``InvalidSchema`` if a keyword has a value that it cannot have."""
    kinds = value.get("type", "object")
    listed = kinds if isinstance(kinds, list) else [kinds]
    if not listed or not all(isinstance(one, str) and one in _TYPES for one in listed):
        raise InvalidSchema(f"unknown type: {str(kinds)[:100]!r}")
    for name in ("enum", *CRITERIA, "prefixItems"):
        if name in value and (not isinstance(value[name], list) or not value[name]):
            raise InvalidSchema(f"{name} is no list, or an empty one")
    if not _is_list_of_names(_required(value)):
        raise InvalidSchema("required is no list of names")
    _require_numbers(value)
    for name in ("dependencies", "dependentRequired", "dependentSchemas"):
        if not _is_dependencies(value.get(name, {})):
            raise InvalidSchema(f"{name} is no object of names")


def _require_numbers(value: dict[str, Any]) -> None:
    """Raise ``InvalidSchema`` if a keyword for a number has another value."""
    for name in _COUNTS:
        if name in value and not (_is_number(value[name]) and value[name] >= 0):
            raise InvalidSchema(f"{name} is no number from 0 on")
    for name in _NUMBERS:
        if name in value and not _is_number(value[name]):
            raise InvalidSchema(f"{name} is no number")
    for name in _LIMITS_OR_FLAGS:
        if name in value and not (_is_number(value[name]) or isinstance(value[name], bool)):
            raise InvalidSchema(f"{name} is no number")


def _is_list_of_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_dependencies(value: Any) -> bool:
    """Whether each member is a schema, or the list of the properties that it needs."""
    return isinstance(value, dict) and all(
        _is_list_of_names(one) for one in value.values() if isinstance(one, list)
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)

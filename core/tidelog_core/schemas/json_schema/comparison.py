"""Whether data that fits one JSON Schema fits another: which changes narrow it.

Source: ``SchemaDiff`` of Confluent's JSON Schema provider, whose kinds of changes these are. Only
changes that are incompatible are collected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from tidelog_core.schemas.json_schema.matching import largest_matching_size
from tidelog_core.schemas.json_schema.nodes import Node
from tidelog_core.schemas.model import compact_json
from tidelog_core.schemas.parsed_schema import (
    PARTS_PER_STEP,
    PROBLEMS_MAX,
    InvalidSchema,
    Problem,
    StepBudget,
)

Pair = tuple[int, int]
_UNION = ("anyOf", "oneOf")
PATTERN_BYTES_MAX = 256 << 10  # of memory, when compiled; the library keeps 128 of them
_BYTES = "bytes"  # ``connect.type`` of decimals, whose JSON type was changed once


def compare(written: Node, reader: Node) -> list[Problem]:
    """Return the changes from one schema to the next that not all data of the first survives.

    Raises ``TooComplex``. A pair that is under way counts as compatible, and what followed from
    that is compared again until it no longer changes anything.
    """
    budget = StepBudget()
    known_bad: dict[Pair, list[Problem]] = {}
    while True:
        comparison = _Comparison(budget, known_bad)
        found = comparison.compare(written, reader)
        bad = {pair: problems for pair, problems in comparison.known.items() if problems}
        if not comparison.has_assumed or bad.keys() == known_bad.keys():
            return found
        known_bad = bad


class _Comparison:
    """One pass over two schemas."""

    def __init__(self, budget: StepBudget, known_bad: dict[Pair, list[Problem]]) -> None:
        self.known: dict[Pair, list[Problem]] = {}
        self.has_assumed = False
        self._budget = budget
        self._known_bad = known_bad
        self._open: set[Pair] = set()

    def compare(self, old: Node | None, new: Node | None, *path: str) -> list[Problem]:
        """Return the problems of a pair at a place."""
        self._budget.take()  # For known pairs too: many references may name one.
        if old is None:
            return [] if new is None else [Problem("SCHEMA_ADDED", path)]
        if new is None:
            return []
        old, new = _followed(old), _followed(new)
        pair = id(old), id(new)
        found = self.known.get(pair)
        if found is None and pair in self._open:
            found = self._known_bad.get(pair)
            self.has_assumed = self.has_assumed or found is None
            found = found or []
        elif found is None:
            self._budget.take((_part_count(old) + _part_count(new)) // PARTS_PER_STEP)
            self._open.add(pair)
            try:
                found = self.known[pair] = self._compare(old, new)[:PROBLEMS_MAX]
            finally:
                self._open.discard(pair)
        return [Problem(kind, (*path, *place)) for kind, place in found]

    def _compare(self, old: Node, new: Node) -> list[Problem]:
        if self._is_widened(old, new):
            return []
        if old.kind != new.kind:
            if old.kind == "false" or new.kind == "empty":
                return []
            if old.says("connect.type") == new.says("connect.type") == _BYTES:
                return []
            return [Problem("TYPE_CHANGED", ())]
        compare: Callable[[Node, Node], list[Problem]] | None = {
            "string": _compare_strings,
            "number": _compare_numbers,
            "enum": _compare_enums,
            "const": _compare_consts,
            "combined": self._compare_combined,
            "not": self._compare_not,
            "object": self._compare_objects,
            "array": self._compare_arrays,
        }.get(old.kind)
        return [] if compare is None else compare(old, new)

    def _is_widened(self, old: Node, new: Node) -> bool:
        """Whether a schema has become one of several, or one of several is left that must hold."""
        if new.kind == "combined" and old.kind != "combined":
            if len(new.parts) == 1 or new.criterion in _UNION:
                return any(not self.compare(old, one) for one in new.parts)
        elif old.kind == "combined" and new.kind != "combined":  # noqa: SIM102
            if len(old.parts) == 1 or old.criterion == "allOf":
                return any(not self.compare(one, new) for one in old.parts)
        return False

    # -- combinations ----------------------------------------------------------------------

    def _compare_combined(self, old: Node, new: Node) -> list[Problem]:
        if not _may_become(old, new):
            return [Problem("COMBINED_TYPE_CHANGED", ())]
        olds, news = _distinct(old.parts), _distinct(new.parts)
        found: list[Problem] = []
        if len(olds) < len(news) and new.criterion == "allOf":
            found.append(Problem("PRODUCT_TYPE_EXTENDED", ()))
        if len(olds) > len(news) and old.criterion in _UNION:
            found.append(Problem("SUM_TYPE_NARROWED", ()))
        edges = [
            [index for index, one in enumerate(news) if not self.compare(part, one)]
            for part in olds
        ]
        if largest_matching_size(edges) < min(len(olds), len(news)):
            found.append(Problem("COMBINED_TYPE_SUBSCHEMAS_CHANGED", ()))
        return found

    def _compare_not(self, old: Node, new: Node) -> list[Problem]:
        if self.compare(new.parts[0], old.parts[0]):
            return [Problem("NOT_TYPE_EXTENDED", ("not",))]
        return []

    # -- objects ---------------------------------------------------------------------------

    def _compare_objects(self, old: Node, new: Node) -> list[Problem]:
        found: list[Problem] = []
        for name in sorted(old.properties.keys() & new.properties.keys()):
            is_added = name in new.required and name not in old.required
            if is_added and not _followed(new.properties[name]).has_default:
                found.append(Problem("REQUIRED_ATTRIBUTE_ADDED", ("required", name)))
        for name in sorted(old.properties.keys() | new.properties.keys()):
            found += self._compare_property(old, new, name)
        found += self._compare_dependencies(old, new)
        found += self._compare_additional(old, new, "additionalProperties", "ADDITIONAL_PROPERTIES")
        found += self._compare_unevaluated(
            old, new, "unevaluatedProperties", "UNEVALUATED_PROPERTIES"
        )
        found += _limits(old, new, "maxProperties", "MAX_PROPERTIES", is_upper=True)
        return found + _limits(old, new, "minProperties", "MIN_PROPERTIES", is_upper=False)

    def _compare_property(self, old: Node, new: Node, name: str) -> list[Problem]:
        path = ("properties", name)
        before, after = old.properties.get(name), new.properties.get(name)
        if before is not None and after is not None:
            return self.compare(before, after, *path)
        if before is not None:
            return self._removed(before, new, path, "PROPERTY", self._cover(new, name))
        assert after is not None
        if _is_open(old):
            if _followed(after).kind == "empty":
                return []
            is_required = name in new.required
            if is_required and not _followed(after).has_default:
                return [Problem("REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", path)]
            which = "REQUIRED_PROPERTY_WITH_DEFAULT" if is_required else "OPTIONAL_PROPERTY"
            return [Problem(f"{which}_ADDED_TO_OPEN_CONTENT_MODEL", path)]
        found = self._covered(self._cover(old, name), after, path, "PROPERTY")
        if name in new.required and not _followed(after).has_default:
            found.append(Problem("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", path))
        return found

    def _removed(
        self, before: Node, new: Node, path: tuple[str, ...], what: str, cover: Node | None
    ) -> list[Problem]:
        """Return the problems of a property or an item that the new schema does not have."""
        if _is_open(new):
            return []
        if cover is None:
            is_false = _followed(before).kind == "false"
            return [] if is_false else [Problem(f"{what}_REMOVED_FROM_CLOSED_CONTENT_MODEL", path)]
        found = self.compare(before, cover, *path)
        if found:
            kind = f"{what}_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
            found.append(Problem(kind, path))
        return found

    def _covered(
        self, cover: Node | None, after: Node, path: tuple[str, ...], what: str
    ) -> list[Problem]:
        """Return the problems of a new property or item where the old schema allowed some."""
        if cover is None:
            return []
        found = self.compare(cover, after, *path)
        if found:
            found.append(Problem(f"{what}_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path))
        return found

    def _cover(self, node: Node, name: str) -> Node | None:
        """Return the schema of an unlisted property; ``None``: it is not allowed."""
        for pattern, one in node.patterns.items():
            self._budget.take()
            if _matches(pattern, name):
                return one
        if node.additional is not None:
            return node.additional
        uneval = node.unevaluated
        if node.is_closed or uneval is None or uneval.kind in ("false", "empty"):
            return None
        return uneval

    def _compare_dependencies(self, old: Node, new: Node) -> list[Problem]:
        found: list[Problem] = []
        for name, after in new.dependencies.items():
            before, path = old.dependencies.get(name), ("dependencies", name)
            if isinstance(after, frozenset):
                if not isinstance(before, frozenset):
                    found.append(Problem("DEPENDENCY_ARRAY_ADDED", path))
                elif not after <= before:
                    kind = "EXTENDED" if after > before else "CHANGED"
                    found.append(Problem(f"DEPENDENCY_ARRAY_{kind}", path))
            elif isinstance(before, Node):
                found += self.compare(before, after, *path)
            else:
                found.append(Problem("DEPENDENCY_SCHEMA_ADDED", path))
        return found

    def _compare_additional(self, old: Node, new: Node, keyword: str, kind: str) -> list[Problem]:
        if old.is_closed != new.is_closed:
            return [Problem(f"{kind}_REMOVED", (keyword,))] if new.is_closed else []
        if old.additional is None and new.additional is not None:
            return [Problem(f"{kind}_NARROWED", (keyword,))]
        return self.compare(old.additional, new.additional, keyword) if new.additional else []

    def _compare_unevaluated(self, old: Node, new: Node, keyword: str, kind: str) -> list[Problem]:
        before, after = old.unevaluated, new.unevaluated
        if after is None or (before is not None and before.kind == "false"):
            return []
        if after.kind == "false":
            return [Problem(f"{kind}_REMOVED", (keyword,))]
        if before is None or (before.kind == "empty" and after.kind != "empty"):
            return [Problem(f"{kind}_NARROWED", (keyword,))]
        return [] if after.kind == "empty" else self.compare(before, after, keyword)

    # -- arrays ----------------------------------------------------------------------------

    def _compare_arrays(self, old: Node, new: Node) -> list[Problem]:
        found = self.compare(old.every_item, new.every_item, "items")
        for index in range(max(len(old.items), len(new.items))):
            path = (f"items/{index}",)
            if index >= len(new.items):
                cover = self._cover(new, "")
                found += self._removed(old.items[index], new, path, "ITEM", cover)
            elif index < len(old.items):
                found += self.compare(old.items[index], new.items[index], *path)
            elif not _is_open(old):
                cover = self._cover(old, "")
                found += self._covered(cover, new.items[index], path, "ITEM")
            elif _followed(new.items[index]).kind != "empty":
                found.append(Problem("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", path))
        found += self._compare_additional(old, new, "additionalItems", "ADDITIONAL_ITEMS")
        found += self._compare_unevaluated(old, new, "unevaluatedItems", "UNEVALUATED_ITEMS")
        if new.source.get("uniqueItems") is True and old.source.get("uniqueItems") is not True:
            found.append(Problem("UNIQUE_ITEMS_ADDED", ("uniqueItems",)))
        for keyword, kind in (("maxItems", "MAX_ITEMS"), ("maxContains", "MAX_CONTAINS")):
            found += _limits(old, new, keyword, kind, is_upper=True)
        for keyword, kind in (("minItems", "MIN_ITEMS"), ("minContains", "MIN_CONTAINS")):
            found += _limits(old, new, keyword, kind, is_upper=False)
        return found


def _followed(node: Node) -> Node:
    """Return the node that a reference names; any other node itself."""
    return node if node.target is None else node.target


def _may_become(old: Node, new: Node) -> bool:
    """Whether one combination may become another, its parts apart."""
    if new.criterion in (old.criterion, "anyOf"):
        return True
    is_old_single, is_new_single = len(old.parts) == 1, len(new.parts) == 1
    if is_old_single and (is_new_single or new.criterion == "oneOf"):
        return True
    return is_new_single and old.criterion == "allOf"


def _distinct(parts: Sequence[Node]) -> list[Node]:
    """Return parts without those that say the same as others."""
    found: dict[tuple[str, bool, str], Node] = {}
    for one in parts:
        source = dict(one.source) if one.kind != "empty" or one.source else {}
        found.setdefault((one.kind, one.is_whole, compact_json(source)), one)
    return list(found.values())


def _is_open(node: Node) -> bool:
    """Whether it takes any further property or item."""
    if node.is_closed or node.additional is not None or node.patterns:
        return False
    return node.unevaluated is None or node.unevaluated.kind == "empty"


def _part_count(node: Node) -> int:
    """Return of how many parts the schema is, which all are looked at in a comparison."""
    values = node.source["enum"] if node.kind == "enum" else ()
    listed = (node.properties, node.required, node.dependencies, node.items, node.parts, values)
    return sum(map(len, listed))


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern is found in a name. Any pattern takes time in proportion to the name."""
    try:
        import re2
    except ModuleNotFoundError as error:
        raise InvalidSchema("patternProperties need google-re2 to be compared") from error
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES_MAX
    try:
        return re2.search(pattern, name, options=options) is not None
    except re2.error:
        raise InvalidSchema(f"the pattern {pattern[:100]!r} cannot be compared") from None


def _compare_strings(old: Node, new: Node) -> list[Problem]:
    found = _limits(old, new, "maxLength", "MAX_LENGTH", is_upper=True)
    found += _limits(old, new, "minLength", "MIN_LENGTH", is_upper=False)
    before, after = old.source.get("pattern"), new.source.get("pattern")
    if after is not None and before != after:
        kind = "PATTERN_ADDED" if before is None else "PATTERN_CHANGED"
        found.append(Problem(kind, ("pattern",)))
    return found


def _compare_numbers(old: Node, new: Node) -> list[Problem]:
    found = _limits(old, new, "maximum", "MAXIMUM", is_upper=True)
    found += _limits(old, new, "minimum", "MINIMUM", is_upper=False)
    found += _limits(old, new, "exclusiveMaximum", "EXCLUSIVE_MAXIMUM", is_upper=True)
    found += _limits(old, new, "exclusiveMinimum", "EXCLUSIVE_MINIMUM", is_upper=False)
    before, after = old.source.get("multipleOf"), new.source.get("multipleOf")
    if after is not None and before != after:
        kind = "MULTIPLE_OF_ADDED" if before is None else _multiple_change(before, after)
        if kind:
            found.append(Problem(kind, ("multipleOf",)))
    if new.is_integer and not old.is_integer:
        found.append(Problem("TYPE_NARROWED", ()))
    return found


def _multiple_change(before: Any, after: Any) -> str:
    """Return the kind of a change of ``multipleOf``; "" if it takes all that it took."""
    try:
        old, new = Decimal(str(before)), Decimal(str(after))
        if old and not new % old:
            return "MULTIPLE_OF_EXPANDED" if old != new else ""
        return "" if new and not old % new else "MULTIPLE_OF_CHANGED"
    except InvalidOperation:
        return "MULTIPLE_OF_CHANGED"


def _compare_enums(old: Node, new: Node) -> list[Problem]:
    olds, news = ({compact_json(one) for one in node.source["enum"]} for node in (old, new))
    if olds <= news:
        return []
    return [Problem("ENUM_ARRAY_NARROWED" if olds > news else "ENUM_ARRAY_CHANGED", ("enum",))]


def _compare_consts(old: Node, new: Node) -> list[Problem]:
    is_same = compact_json(old.source["const"]) == compact_json(new.source["const"])
    return [] if is_same else [Problem("ENUM_ARRAY_CHANGED", ("const",))]


def _limits(old: Node, new: Node, keyword: str, kind: str, *, is_upper: bool) -> list[Problem]:
    """Return the problem of a limit that allows less than before."""
    before, after = old.source.get(keyword), new.source.get(keyword)
    if isinstance(after, bool) or after is None or before == after:
        return []  # ``exclusiveMaximum`` is true or false in draft 4.
    if before is None or isinstance(before, bool):
        return [Problem(f"{kind}_ADDED", (keyword,))]
    if is_upper and after < before:
        return [Problem(f"{kind}_DECREASED", (keyword,))]
    if not is_upper and after > before:
        return [Problem(f"{kind}_INCREASED", (keyword,))]
    return []

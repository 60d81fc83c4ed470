"""Prices, and the costs of counts by them.

A price file is TOML, and ``us-east-1.toml`` beside this module is the one that is used unless
``cost.price.file`` names another. Every item has a price there; ``parse_prices`` reports all
problems of a file at once.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, cast

from tidelog_core.cost.counts import ITEMS, STANDING, Counts, Item, item_of, machine
from tidelog_core.errors import InvalidConfig

LIST_PRICES_FILE = Path(__file__).with_name("us-east-1.toml")
FILE_SIZE_BYTES_MAX = 1 << 20
_FIELDS = frozenset({"dollars", "per", "unit", "as_of", "number", "note"})


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one item."""

    dollars: float
    per: int  # units for that many dollars
    unit: str
    as_of: date
    number: int = 1  # of items that are paid for by the hour
    note: str = ""


@dataclass(frozen=True, slots=True)
class Charge:
    """The costs of one item."""

    item: Item
    units: float
    dollars: float
    is_priced: bool  # False: the price file does not have it, and it counts as free


@dataclass(frozen=True, slots=True)
class PriceTable:
    """All prices of one file."""

    region: str
    prices: Mapping[str, Price]  # by item

    def dollars_of(self, name: str, count: float) -> float:
        """Return the price of a number of counts of an item; 0 if the file lacks it."""
        price = self.prices.get(name)
        if price is None:
            return 0.0
        return count / item_of(name).divisor / price.per * price.dollars

    def per_unit(self, name: str) -> float:
        """Return the price of one unit of an item that has a price."""
        price = self.prices[name]
        return price.dollars / price.per

    def dollars(self, counts: Mapping[str, int] | Mapping[str, float]) -> float:
        """Return the price of all counts together."""
        return math.fsum(self.dollars_of(name, count) for name, count in counts.items())

    def charges(self, counts: Counts) -> list[Charge]:
        """Return the price of each item, in the order of the items and then of machines."""
        names = [name for name in ITEMS if name in counts]
        names += sorted(counts.keys() - set(names))
        return [
            Charge(
                item_of(name),
                counts[name] / item_of(name).divisor,
                self.dollars_of(name, counts[name]),
                name in self.prices,
            )
            for name in names
        ]

    def standing(self, duration_ms: int) -> dict[str, int]:
        """Return the counts of the items that are paid for by the hour, also by an idle cluster."""
        return {name: self.prices[name].number * duration_ms for name in STANDING}


def load_prices(path: str = "") -> PriceTable:
    """Return the prices in a file, the list prices without one. Raises ``InvalidConfig``."""
    if not path:
        return list_prices()
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_SIZE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig([f"cost.price.file {path} cannot be read: {error.strerror}"]) from error
    if len(data) > FILE_SIZE_BYTES_MAX:
        raise InvalidConfig([f"cost.price.file {path} has more than {FILE_SIZE_BYTES_MAX} bytes"])
    try:
        return parse_prices(data)
    except InvalidConfig as error:
        raise InvalidConfig([f"cost.price.file {path}: {one}" for one in error.problems]) from None


@cache
def list_prices() -> PriceTable:
    """Return the list prices that come with the program."""
    return parse_prices(LIST_PRICES_FILE.read_bytes())


def parse_prices(data: bytes) -> PriceTable:
    """Return the prices. Raises ``InvalidConfig`` with every problem at once."""
    try:
        document = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidConfig([f"it is not TOML: {error}"]) from None
    problems = [
        f"{name} is unknown; there are region, prices and machines"
        for name in document.keys() - {"region", "prices", "machines"}
    ]
    region = document.get("region", "")
    if not isinstance(region, str):
        problems.append("region must be a string")
    prices: dict[str, Price] = {}
    for name, entry in _table(document, "prices", problems).items():
        if name not in ITEMS:
            problems.append(f"prices.{name} is unknown; items are {', '.join(ITEMS)}")
            continue
        price = _price(f"prices.{name}", entry, ITEMS[name], problems)
        if price is not None:
            prices[name] = price
    missing = [name for name in ITEMS if name not in document.get("prices", {})]
    problems += [f"prices.{name} is missing" for name in missing]
    for instance, entry in _table(document, "machines", problems).items():
        name = machine(instance)
        price = _price(f"machines.{instance}", entry, item_of(name), problems)
        if price is not None:
            prices[name] = price
    if problems:
        raise InvalidConfig(problems)
    return PriceTable(str(region), prices)


def _table(document: Mapping[str, Any], name: str, problems: list[str]) -> Mapping[str, Any]:
    found = document.get(name, {})
    if isinstance(found, Mapping):
        return found
    problems.append(f"{name} must be a table")
    return {}


def _price(where: str, entry: object, item: Item, problems: list[str]) -> Price | None:
    if not isinstance(entry, Mapping):
        problems.append(f"{where} must be a table with dollars, unit and as_of")
        return None
    before = len(problems)
    problems += [f"{where}.{name} is unknown" for name in sorted(entry.keys() - _FIELDS)]
    dollars: Any = entry.get("dollars")
    if type(dollars) not in (int, float) or not 0 <= dollars < math.inf:
        problems.append(f"{where}.dollars must be a number of at least 0")
    per, number = entry.get("per", 1), entry.get("number", 1)
    if type(per) is not int or per < 1:
        problems.append(f"{where}.per must be a whole number of at least 1")
    if type(number) is not int or number < 0:
        problems.append(f"{where}.number must be a whole number of at least 0")
    elif number != 1 and item.name not in STANDING:
        problems.append(f"{where}.number is only for {', '.join(STANDING)}")
    if entry.get("unit") != item.unit:
        problems.append(f"{where}.unit must be {item.unit!r}, which is how it is counted")
    as_of, note = entry.get("as_of"), entry.get("note", "")
    if type(as_of) is not date:
        problems.append(f"{where}.as_of must be a date, as in 2026-11-22")
    if not isinstance(note, str):
        problems.append(f"{where}.note must be a string")
    if len(problems) > before:
        return None
    return Price(float(dollars), per, item.unit, cast("date", as_of), number, note)

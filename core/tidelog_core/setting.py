"""Declares one setting, and parses and formats its text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

SettingType = Literal["boolean", "int", "long", "double", "string", "list", "password"]
Value = bool | int | float | str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting, as ``DescribeConfigs`` shows it."""

    name: str  # Kafka's dotted name
    field: str  # the dataclass field that holds it
    type: SettingType
    unit: str  # of numbers, in words: «milliseconds»; empty if there is none
    default: Value
    doc: str
    at_least: float | None
    at_most: float | None
    one_of: tuple[Value, ...]
    check: Callable[[str], object] | None  # strings: raises ``ValueError`` for a wrong one
    is_read_only: bool  # nodes: fixed at start
    # Nodes: the setting of topics, groups or listeners that has its default here, if any.
    default_of: str

    @property
    def is_sensitive(self) -> bool:
        """Whether the value is a secret that no client and no log may see."""
        return self.type == "password"

    def parse(self, text: str) -> Value:
        """Return the value of ``text``. Raises ``ValueError`` with the allowed values."""
        value = _parse_as(self.type, text.strip())
        for part in value if isinstance(value, tuple) else (value,):
            if self.one_of and part not in self.one_of:
                raise ValueError(f"must be one of {', '.join(map(str, self.one_of))}")
        if self.check is not None and isinstance(value, str):
            self.check(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.at_least is not None and value < self.at_least:
                raise ValueError(f"must be at least {self.at_least}")
            if self.at_most is not None and value > self.at_most:
                raise ValueError(f"must be at most {self.at_most}")
        return value

    def format(self, value: Value) -> str:
        """Return the text that ``parse`` reads back as ``value``."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def _parse_as(type: SettingType, text: str) -> Value:
    match type:
        case "boolean":
            return parse_bool(text)
        case "int" | "long":
            if not _WHOLE_NUMBER.fullmatch(text):
                raise ValueError("must be a whole number")
            return int(text)
        case "double":
            if not _NUMBER.fullmatch(text):
                raise ValueError("must be a number")
            return float(text)
        case "list":
            return tuple(part.strip() for part in text.split(",") if part.strip())
        case "string" | "password":
            return text


# Python's own functions accept more: underscores, other alphabets' digits, nan.
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def parse_bool(text: str) -> bool:
    """Return the truth that ``true`` or ``false`` spells, in any case."""
    match text.lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError("must be true or false")

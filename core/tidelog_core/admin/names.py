"""Validates topic names. Source: Kafka's ``Topic`` class and its replication control."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidelog_core.errors import InvalidTopic
from tidelog_core.model import RESERVED_TOPICS

TOPIC_NAME_LENGTH_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def validate_topic_name(name: str) -> None:
    """Raise ``InvalidTopic`` if no topic may have this name."""
    if not name:
        raise InvalidTopic("Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise InvalidTopic(f"Topic name is invalid: '{name}' is not allowed")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise InvalidTopic(
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed"
            f" length {TOPIC_NAME_LENGTH_MAX}"
        )
    if not _LEGAL.fullmatch(name):
        raise InvalidTopic(
            f"Topic name is invalid: '{name}' contains one or more characters other than"
            " ASCII alphanumerics, '.', '_' and '-'"
        )


class Collisions:
    """Finds topics whose names differ only in '.' and '_': their metric names would be equal."""

    def __init__(self, existing: Iterable[str]) -> None:
        self._by_unified: dict[str, str] = {}
        for name in existing:
            self.add(name)

    def add(self, name: str) -> None:
        """Add the name of an existing topic."""
        if "." in name or "_" in name:
            self._by_unified.setdefault(_unified(name), name)

    def find(self, name: str) -> str | None:
        """Return a topic that collides with this name, ``None`` if none does."""
        return self._by_unified.get(_unified(name))


def _unified(name: str) -> str:
    return name.replace(".", "_")


def is_internal(name: str) -> bool:
    """Whether the topic is one of the cluster's own."""
    return name in RESERVED_TOPICS

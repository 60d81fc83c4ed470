"""Which topic names are allowed. Source: Kafka's ``Topic`` class and its replication control."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidelog_core.errors import InvalidTopic
from tidelog_core.model import RESERVED_TOPICS

TOPIC_NAME_LENGTH_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def validate_topic_name(name: str) -> None:
    """Raise ``InvalidTopic`` where no topic may have this name."""
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


def find_collision(name: str, existing: Iterable[str]) -> str | None:
    """Return a topic that differs from ``name`` only by '.' for '_', ``None`` where none does.

    Metrics of such topics could not be told apart.
    """
    if "." not in name and "_" not in name:
        return None
    unified = name.replace(".", "_")
    return next((other for other in existing if other.replace(".", "_") == unified), None)


def is_internal(name: str) -> bool:
    """Whether the topic is one of the cluster's own."""
    return name in RESERVED_TOPICS

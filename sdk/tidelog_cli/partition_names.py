"""Partitions on a command line: ``TOPIC`` or ``TOPIC:0,3``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog_cli.failures import CommandFailed, UsageError

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog_core.model import TopicPartition

PARTITIONS = "TOPIC[:P,…]"


def parse_topic(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse ``TOPIC[:P,…]`` into the topic and its partitions; empty for all."""
    name, colon, numbers = text.partition(":")
    partitions = [part.strip() for part in numbers.split(",")] if colon else []
    if not name or not all(part.isascii() and part.isdecimal() for part in partitions):
        raise UsageError(f"{text!r} must be TOPIC or TOPIC:P,P,…")
    return name, tuple(map(int, partitions))


async def existing_partitions(
    admin: Admin, wanted: Sequence[tuple[str, tuple[int, ...]]]
) -> list[TopicPartition]:
    """Return the partitions, all of a topic that names none.

    Raises ``UnknownTopicOrPartition``, and ``CommandFailed`` for a number that is too large.
    """
    from tidelog_core.model import TopicPartition

    topics = await admin.describe_topics(name for name, _ in wanted)
    selected: set[TopicPartition] = set()
    for name, numbers in wanted:
        count = len(topics[name].partitions)
        for number in numbers:
            if number >= count:
                raise CommandFailed(f"topic {name!r} has partitions 0 to {count - 1}, not {number}")
        selected.update(TopicPartition(name, number) for number in numbers or range(count))
    return sorted(selected)

"""A pattern, and who looks at the topics that match it.

A member that subscribes by a pattern gets only topics that its client may describe, as in Kafka.
Unlike there, each member of a group has its own rights.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Viewer(Protocol):
    """The rights of clients with the same principals, until any right changes.

    Hashable. After a change of rights, clients have other viewers.
    """

    def sees(self, topic: str) -> bool:
        """Return whether they may describe the topic."""


class PatternView(NamedTuple):
    """The topics that match a pattern and that a viewer sees."""

    pattern: str
    viewer: Viewer | None = None  # ``None`` sees every topic

"""A queue that serves client hosts in rotation, however many connections each of them opens."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class HostLine(Generic[T]):
    """What waits, by host: the oldest of a host is its first.

    A host keeps its turn until ``end_turn``. So what has been given up while it waited can be
    taken out and dropped, and a host that leaves and comes back does not make the line longer
    and longer.
    """

    def __init__(self) -> None:
        self._of_host: dict[str, deque[T]] = {}  # none of them empty; the first has the turn

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._of_host)

    def add(self, host: str, item: T) -> None:
        """Put the item behind those of its host; a new host goes behind the other hosts."""
        self._of_host.setdefault(host, deque()).append(item)

    def take(self) -> tuple[str, T]:
        """Take out the first item of the host whose turn it is; return the host and the item."""
        host, items = next(iter(self._of_host.items()))
        item = items.popleft()
        if not items:
            del self._of_host[host]
        return host, item

    def end_turn(self, host: str) -> None:
        """Put the host behind the other hosts."""
        items = self._of_host.pop(host, None)
        if items is not None:
            self._of_host[host] = items

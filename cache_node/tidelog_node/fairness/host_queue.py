"""A queue that serves client hosts in rotation, however many connections each of them opens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class HostQueue(Generic[T]):
    """The waiting items, by host; within a host the oldest is first.

    A host keeps its turn until ``end_turn``, so the caller can take out and drop items that were
    cancelled while they waited. A host without items has no entry, so a host that leaves and
    returns does not lengthen the line.
    """

    def __init__(self) -> None:
        self._of_host: dict[str, deque[T]] = {}  # none of them empty; the first has the turn

    def __bool__(self) -> bool:
        """Return whether any item waits."""
        return bool(self._of_host)

    def __iter__(self) -> Iterator[str]:
        """Yield the hosts with waiting items, the one whose turn it is first."""
        return iter(self._of_host)

    def add(self, host: str, item: T) -> None:
        """Queue the item after those of its host; a new host goes after the other hosts."""
        self._of_host.setdefault(host, deque()).append(item)

    def take(self) -> tuple[str, T]:
        """Remove the first item of the host whose turn it is; return the host and the item."""
        host = next(iter(self._of_host))
        return host, self.take_of(host)

    def take_of(self, host: str) -> T:
        """Remove and return the first item of a host, which must have one."""
        items = self._of_host[host]
        item = items.popleft()
        if not items:
            del self._of_host[host]
        return item

    def end_turn(self, host: str) -> None:
        """Move the host after the other hosts."""
        items = self._of_host.pop(host, None)
        if items is not None:
            self._of_host[host] = items

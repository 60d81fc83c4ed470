"""Callbacks for one kind of event. Any number of owners can subscribe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Subscribers(Generic[P]):
    """Calls its callbacks at each event, in the order of subscription."""

    __slots__ = ("_callbacks",)

    def __init__(self) -> None:
        self._callbacks: list[Callable[P, None]] = []

    def __len__(self) -> int:
        return len(self._callbacks)

    def subscribe(self, callback: Callable[P, None]) -> Callable[[], None]:
        """Call back at each event. Returns a function that unsubscribes."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all; one that subscribes or unsubscribes in a call counts from the next event."""
        for callback in tuple(self._callbacks):
            callback(*args, **kwargs)

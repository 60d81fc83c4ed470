"""Sums by name."""

from __future__ import annotations

from collections.abc import Mapping


class Amounts(dict[str, float]):
    """Amounts by name; a name that was never added has 0."""

    def __missing__(self, name: str) -> float:
        return 0.0

    def add(self, other: Mapping[str, float], times: float = 1.0) -> None:
        """Add the other's amounts, multiplied by ``times``."""
        for name, amount in other.items():
            self[name] += amount * times

    def raise_to(self, other: Mapping[str, float]) -> None:
        """Take over the other's greater amounts."""
        for name, amount in other.items():
            self[name] = max(self[name], amount)

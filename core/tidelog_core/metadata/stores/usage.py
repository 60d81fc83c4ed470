"""Counts the requests to a metadata store, and the units that they cost.

Counted where a store sends its requests, so retries count too. Plain integers: a store is used by
the tasks of one event loop, or it has a thread that counts reads, and another one for writes.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

OK, CONFLICT, FAILED = "ok", "conflict", "failed"


class StoreUsage:
    """The requests of one store since it was made."""

    __slots__ = (
        "modelled_read_units",
        "modelled_write_units",
        "read_units",
        "requests",
        "seconds",
        "write_units",
    )

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}  # by operation and outcome
        self.seconds: dict[str, float] = {}  # by operation, spent waiting for it
        # Request units that the store has charged for; none for SQLite.
        self.read_units = 0.0
        self.write_units = 0.0
        # What DynamoDB would have charged for the same; SQLite's alone.
        self.modelled_read_units = 0.0
        self.modelled_write_units = 0.0

    @property
    def costing_read_units(self) -> float:
        """The units that were charged for, or would have been."""
        return self.read_units + self.modelled_read_units

    @property
    def costing_write_units(self) -> float:
        """The units that were charged for, or would have been."""
        return self.write_units + self.modelled_write_units

    def note(self, operation: str, outcome: str, seconds: float) -> None:
        """Count one request. Operations and outcomes are names of the program."""
        key = (operation, outcome)
        self.requests[key] = self.requests.get(key, 0) + 1
        self.seconds[operation] = self.seconds.get(operation, 0.0) + seconds


@runtime_checkable
class CountedStore(Protocol):
    """A metadata store that counts its requests."""

    @property
    def usage(self) -> StoreUsage:
        """The requests so far."""


def usage_of(store: object) -> StoreUsage | None:
    """Return the requests of a store, ``None`` if it does not count them."""
    return store.usage if isinstance(store, CountedStore) else None

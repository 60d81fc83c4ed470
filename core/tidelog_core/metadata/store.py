"""The interface of a metadata store: items, conditional transactions, a changelog.

An item has the id ``(collection, key)``. One query lists a collection (one topic's partitions,
one group's offsets) in the order of keys. The body is a flat mapping of strings to JSON-like
values; ``records`` encodes and decodes bodies. Every item carries a version, 1 when it is
created and one more with every write.

A commit is one transaction: all of its writes happen or none. Each write names the version that
it expects, so a decision from an old reading conflicts and has to be made again. A commit with a
logged write also increments the cluster version and appends the changed item keys under it, in
the same transaction. So nodes that poll ``changes_since`` miss nothing and read only changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType, Protocol, runtime_checkable

JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
Body = Mapping[str, JsonValue]
ClusterVersion = NewType("ClusterVersion", int)

ABSENT = 0  # the version of an item that is not there
ANY_VERSION = -1  # write unconditionally
# The version of an item whose version is unknown, and of a stand-in for an unreadable item.
# A write or check that expects it always conflicts.
UNREADABLE_VERSION = -2
LAST_KEY = "\U0010ffff"  # no key has it; with a prefix before it, it sorts after all that do
COMMIT_WRITES_MAX = 90  # DynamoDB takes 100 per transaction; the changelog needs a few


@dataclass(frozen=True, slots=True, order=True)
class ItemKey:
    """An item's collection and key."""

    collection: str
    key: str


@dataclass(frozen=True, slots=True)
class Item:
    """An item that was read. A damaged one is returned too, so that it hides no other."""

    id: ItemKey
    version: int
    body: Body = field(repr=False)  # empty if there is a problem; may hold secrets
    problem: str | None = None  # why the item is unreadable; None: it is readable


@dataclass(frozen=True, slots=True)
class Write:
    """One conditional change: put ``body``, or delete if it is ``None``.

    ``expected_version`` is the version the item must have: ``ABSENT`` to create,
    ``ANY_VERSION`` to overwrite unconditionally. On ``UNREADABLE_VERSION`` every write fails.
    """

    id: ItemKey
    body: Body | None = field(repr=False)  # may hold secrets
    expected_version: int
    is_logged: bool = True


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The part of a collection that a listing returns: keys in ``[start, end)``, in order.

    Of those the first ``limit``, or with ``is_descending`` the last ``limit`` in descending order.
    """

    start: str = ""
    end: str | None = None  # None: no bound
    limit: int | None = None  # None: all; at least 1
    is_descending: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"a listing of at most {self.limit} items lists nothing")

    def bounds(self, prefix: str) -> tuple[str, str | None]:
        """Return start and end of the keys of the range that start with ``prefix``."""
        if not prefix:
            return self.start, self.end
        end = prefix + LAST_KEY
        return max(prefix, self.start), end if self.end is None else min(end, self.end)


ALL_KEYS = KeyRange()


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on an item that the commit does not change."""

    id: ItemKey
    expected_version: int


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes after some version, up to and including ``version``.

    ``keys`` is ``None`` when the changelog no longer reaches back that far and the
    reader must load everything.
    """

    version: ClusterVersion
    keys: frozenset[ItemKey] | None


@dataclass(frozen=True, slots=True)
class HeardTime:
    """The time of another machine's clock, and the time of our steady clock when it was read."""

    wall_ms: int  # Unix time
    steady_ms: float


@runtime_checkable
class ClockedStore(Protocol):
    """A store with a clock of its own, whose answers have the time."""

    @property
    def heard_time(self) -> HeardTime | None:
        """The time in the last answer, ``None`` before the first."""


class MetadataStore(Protocol):
    """The source of truth of the cluster. Tasks, processes and machines may use it concurrently.

    Reads are strongly consistent per item. Commits are linearizable and durable on
    return. Raises ``StoreUnavailable`` if nothing was written, ``OutcomeUnknown``
    if a commit may have happened.
    """

    async def get(self, id: ItemKey) -> Item | None:
        """Return the item, or ``None`` if it does not exist."""

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        """Return the items that exist. Any number of ids; each item is read by itself."""

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        """Return the collection's items whose key starts with ``prefix``, in key order.

        Only those in the range ``keys``; items outside it are not read and cost nothing.
        """

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        """Do all the writes or none.

        At most ``COMMIT_WRITES_MAX`` writes and checks together, each of another item.
        Raises ``VersionConflict`` naming the items that were not at the expected version.
        """

    async def changes_since(self, version: ClusterVersion) -> Changes:
        """Return the keys that logged writes touched after ``version``."""

    async def increment(self, id: ItemKey, by: int) -> int:
        """Add to the item's ``value`` (0 where absent) and return the sum. Never logged."""

    async def close(self) -> None:
        """Release connections and threads. The store is not used after."""

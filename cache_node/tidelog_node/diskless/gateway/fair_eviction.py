"""Selects the key to evict from a full table: one of an owner with more than its share.

    put        the key is the newest one of its owner
    is full    the owner's oldest key is evicted if it has more than its share, else the oldest of
               the owner with the most keys

So an owner that adds more and more keys evicts its own. Thousands of owners may share the table:
the owner with the most keys is found without a search.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)
Key = TypeVar("Key", bound=Hashable)


class FairEviction(Generic[Owner, Key]):
    """The keys of a table by owner. For one event loop."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._owners: dict[Key, Owner] = {}
        self._keys: dict[Owner, OrderedDict[Key, None]] = {}  # the newest one is the last
        self._of_sizes: dict[int, dict[Owner, None]] = {}  # owners by the number of their keys
        self._size_max = 0

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._owners)

    def put(self, owner: Owner, key: Key) -> Key | None:
        """Make the key the newest one of its owner, which is the owner that first put it.

        Returns the evicted key, which the table must remove too; ``None`` if there is room.
        """
        owner = self._owners.setdefault(key, owner)
        keys = self._keys.setdefault(owner, OrderedDict())
        before = len(keys)
        keys[key] = None
        keys.move_to_end(key)
        if len(keys) != before:
            self._note_size(owner, before, len(keys))
        if len(self._owners) <= self._keys_max:
            return None
        gone = self._least_needed(keys)
        self.remove(gone)
        return gone

    def remove(self, key: Key) -> None:
        """Forget the key. Raises ``KeyError`` if it is not there."""
        owner = self._owners.pop(key)
        keys = self._keys[owner]
        del keys[key]
        self._note_size(owner, len(keys) + 1, len(keys))
        if not keys:
            del self._keys[owner]

    def _least_needed(self, keys: OrderedDict[Key, None]) -> Key:
        """Return the oldest of these keys if they exceed their share, else of the largest owner."""
        if len(keys) * len(self._keys) <= self._keys_max:
            keys = self._keys[next(iter(self._of_sizes[self._size_max]))]
        return next(iter(keys))

    def _note_size(self, owner: Owner, before: int, after: int) -> None:
        """Note how many keys the owner has: one more than before, or one less."""
        if before:
            of_size = self._of_sizes[before]
            del of_size[owner]
            if not of_size:
                del self._of_sizes[before]
        if after:
            self._of_sizes.setdefault(after, {})[owner] = None
        if after > self._size_max or self._size_max not in self._of_sizes:
            self._size_max = after

"""Rules of a bucket that delete objects by age, even objects that are still in use.

Only S3 has such rules; it calls them lifecycle rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from tidelog_core.objects.store import ObjectStore


class ExpiryRule(NamedTuple):
    """A rule that is in force."""

    name: str
    prefix: str  # of the keys that it applies to, in the store's own form; empty: all
    when: str  # such as "after 30 days"


@runtime_checkable
class ExpiringStore(Protocol):
    """A store whose bucket may have such rules."""

    async def expiry_rules(self) -> Sequence[ExpiryRule]:
        """Return the rules that apply to keys of this store.

        Raises ``StoreUnavailable``, also if they may not be read.
        """


async def expiry_rules(store: ObjectStore) -> Sequence[ExpiryRule]:
    """Return the rules of the store; folders and memory have none. Raises the store's errors."""
    return await store.expiry_rules() if isinstance(store, ExpiringStore) else []

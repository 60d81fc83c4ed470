"""The claim that allows one process to replace a partition's tiered segments.

The item stays when its holder has finished, because the epochs of a partition's claims must grow.
It is logged with every swap and only then, so nodes learn of swaps from the changelog.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidelog_core.metadata.fields import Natural, Positive
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.records import NUMBER_DIGITS
from tidelog_core.metadata.store import ItemKey

REWRITE_CLAIM_COLLECTION = "rewrite-claim"
RELEASED_MS = 0  # as expires_ms: without a holder


@key_form
def rewrite_claim_key(topic_id: UUID, partition: int) -> ItemKey:
    """Return the key of the partition's claim."""
    return ItemKey(REWRITE_CLAIM_COLLECTION, f"{topic_id}:{partition:0{NUMBER_DIGITS}d}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteClaim(Record):
    """One process's claim on a partition's tiered segments."""

    KEY = rewrite_claim_key

    topic_id: UUID
    partition: Natural
    # Greater with every claim, and than that of every segment there was.
    rewrite_epoch: Positive
    holder: UUID  # another one with every run
    expires_ms: Natural  # Unix time from which another process may take it; RELEASED_MS: any time


def claimed_partition(key: ItemKey) -> tuple[UUID, int] | None:
    """Return the topic's id and the partition of a claim's key, ``None`` for another key."""
    topic_id, _, partition = key.key.partition(":")
    try:
        return UUID(topic_id), int(partition)
    except ValueError:
        return None

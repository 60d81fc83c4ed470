"""The checks that every store makes before a commit."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_core.errors import CommitTooLarge
from tidelog_core.metadata.body import BODY_SIZE_BYTES_MAX, encode_body
from tidelog_core.metadata.store import (
    ABSENT,
    COMMIT_WRITES_MAX,
    UNREADABLE_VERSION,
    Check,
    Write,
)

# The changelog keeps the last commits only. For a reader that is further behind, loading
# everything is cheaper.
CHANGELOG_LENGTH = 1000

# DynamoDB stops at 4 MB a transaction.
COMMIT_SIZE_BYTES_MAX = 3_500_000


def require_valid(writes: Sequence[Write], checks: Sequence[Check]) -> None:
    """Raise ``ValueError`` if the caller broke the rules of ``MetadataStore.commit``.

    Raises ``CommitTooLarge`` or ``ItemTooLarge`` if there is too much data.
    """
    ids = [write.id for write in writes] + [check.id for check in checks]
    if len(ids) > COMMIT_WRITES_MAX:
        raise ValueError(f"{len(ids)} writes and checks, the limit is {COMMIT_WRITES_MAX}")
    if len(set(ids)) != len(ids):
        raise ValueError("two writes or checks of the same item")
    for item_id in ids:
        if not item_id.collection or not item_id.key:
            raise ValueError(f"an item needs a collection and a key: {item_id}")
    for write in writes:
        if write.expected_version < UNREADABLE_VERSION:
            raise ValueError(f"no such version: {write.expected_version}")
        if write.body is None and write.expected_version == ABSENT:
            raise ValueError(f"deletes what must be absent: {write.id}")
    if len(writes) * BODY_SIZE_BYTES_MAX > COMMIT_SIZE_BYTES_MAX:
        texts = (encode_body(write.id, write.body) for write in writes if write.body is not None)
        size_bytes = sum(len(text.encode()) for text in texts)
        if size_bytes > COMMIT_SIZE_BYTES_MAX:
            raise CommitTooLarge(size_bytes, limit=COMMIT_SIZE_BYTES_MAX)

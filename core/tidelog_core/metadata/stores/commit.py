"""Rules of all metadata stores: items' bodies are JSON, and a commit is checked first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from tidelog_core.errors import CommitTooLarge, CorruptItem, ItemTooLarge
from tidelog_core.metadata.store import (
    ABSENT,
    COMMIT_WRITES_MAX,
    UNREADABLE_VERSION,
    Body,
    Check,
    ItemKey,
    Write,
)

# DynamoDB's limit is 400 KiB an item, names and keys included. Every store refuses
# at the same size, so an item that fits on a laptop fits when deployed.
BODY_SIZE_BYTES_MAX = 380_000

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


def encode_body(id: ItemKey, body: Body) -> str:
    """Return the body as compact JSON. Raises ``ItemTooLarge``."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    size_bytes = len(text.encode())
    if size_bytes > BODY_SIZE_BYTES_MAX:
        raise ItemTooLarge((id.collection, id.key), size_bytes, limit=BODY_SIZE_BYTES_MAX)
    return text


def decode_body(id: ItemKey, text: str) -> Body:
    """Return the body that the JSON holds. Raises ``CorruptItem``."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptItem((id.collection, id.key), f"not JSON: {error}") from None
    if not isinstance(body, dict):
        raise CorruptItem((id.collection, id.key), "not an object")
    return cast("Body", body)

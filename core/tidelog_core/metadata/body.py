"""Encodes and decodes the JSON bodies of metadata items."""

from __future__ import annotations

import json
from typing import cast

from tidelog_core.errors import CorruptItem, ItemTooLarge
from tidelog_core.metadata.store import Body, ItemKey

# DynamoDB's limit is 400 KiB an item, names and keys included. Every store refuses
# at the same size, so an item that fits on a laptop fits when deployed.
BODY_SIZE_BYTES_MAX = 380_000


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

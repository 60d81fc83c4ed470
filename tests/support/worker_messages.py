"""An answer of the tier worker as its node gets it, without a socket."""

from __future__ import annotations

import asyncio

from tidelog_node.tier.protocol import Fields, encode_message, read_message


async def as_received(result: Fields) -> Fields:
    """Return the result after it was a message, and the bytes that follow one."""
    fields = dict(result)
    data = fields.pop("data", None)
    reader = asyncio.StreamReader()
    reader.feed_data(encode_message({"id": 1, "result": fields}, data))
    message = await read_message(reader)
    assert message is not None
    received: Fields = message["result"]
    return received if data is None else {**received, "data": message["data"]}

"""The topics that members of a consumer group subscribe to, read from their metadata.

The metadata is opaque to a coordinator except for this prefix, which every version of
the consumer protocol has: version (int16), then an array (int32 count) of topic
names (int16 length, UTF-8). Source: ``ConsumerProtocolSubscription.json`` of Kafka.
"""

from __future__ import annotations

import struct

CONSUMER_PROTOCOL_TYPE = "consumer"

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics, or ``None`` if the metadata is not of the consumer protocol."""
    try:
        (version,) = _INT16.unpack_from(metadata, 0)
        (count,) = _INT32.unpack_from(metadata, 2)
        if version < 0 or count < 0:
            return None
        position, topics = 6, set()
        for _ in range(count):
            (size_bytes,) = _INT16.unpack_from(metadata, position)
            position += 2
            name = metadata[position : position + size_bytes]
            if size_bytes < 0 or len(name) < size_bytes:
                return None
            topics.add(name.decode())
            position += size_bytes
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)

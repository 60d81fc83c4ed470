"""What an offset map knows of a key."""

from __future__ import annotations

from itertools import count

from tidelog_core.compaction.offset_map import OffsetMap
from tidelog_core.records.record import Record


def kept_from(offsets: OffsetMap, key: bytes) -> int:
    """Return the first offset at which a record of the key is kept, 0 if the map lacks the key."""
    return next(one for one in count() if offsets.keeps(Record(one, 0, key, None)))

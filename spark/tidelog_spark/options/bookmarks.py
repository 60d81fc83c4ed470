"""Bookmarks: the offsets that a read covered, so that it can be repeated exactly.

    {"version":1,"isolation":"read_uncommitted","start":{"t":{"0":0}},"end":{"t":{"0":70}}}

``start`` and ``end`` are positions; ``end`` contains the topics' ids. The isolation level is
included because each level has different rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tidelog_spark.options.positions import Positions

VERSION = 1
_ISOLATIONS = {"read_uncommitted": False, "read_committed": True}


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The offsets ``[start, end)`` of some partitions; both sides name the same ones."""

    start: Positions
    end: Positions
    is_read_committed: bool

    def to_text(self) -> str:
        """Return the text to store and to pass as the option ``asOf``."""
        isolation = "read_committed" if self.is_read_committed else "read_uncommitted"
        return json.dumps(
            {
                "version": VERSION,
                "isolation": isolation,
                "start": Positions(self.start.offsets).to_json(),
                "end": self.end.to_json(),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> Bookmark:
        """Parse a bookmark. Raises ``ValueError`` naming the expected form."""
        shape = "must be a value returned by tidelog_spark.bookmark()"
        try:
            parsed = json.loads(text)
            if parsed["version"] != VERSION:
                raise ValueError
            found = cls(
                Positions.from_json(parsed["start"]),
                Positions.from_json(parsed["end"]),
                _ISOLATIONS[parsed["isolation"]],
            )
        except (ValueError, KeyError, TypeError):
            raise ValueError(shape) from None
        ends = found.end.offsets
        if found.start.offsets.keys() != ends.keys() or not all(
            0 <= start <= ends[partition] for partition, start in found.start.offsets.items()
        ):
            raise ValueError(shape)
        return found

"""Memory for the decompressed records of one Arrow batch.

Each thread uses it again, once no Arrow batch has a view of it.
"""

from __future__ import annotations

from tidelog_core.records.codecs import CompressionType, decompress_view
from tidelog_core.records.decompress_into import decompress_into

from tidelog.reused_memory import ReusedMemory

SIZE_BYTES = 4 * 1024 * 1024  # at first


class Scratch:
    """Memory that grows when it has to."""

    def __init__(self, memory: ReusedMemory, size_bytes: int = SIZE_BYTES) -> None:
        self._memory = memory
        self.room = memory.take(size_bytes)

    def decompress(self, codec: CompressionType, data: memoryview, start: int) -> int:
        """Write the data decompressed from there on, and return its size.

        What was written before stays. Raises as ``decompress`` does.
        """
        size = decompress_into(codec, data, self.room[start:])
        if size is not None:
            return size
        found = decompress_view(codec, data)
        end = start + len(found)
        if end > len(self.room):
            larger = self._memory.take(max(end, 2 * len(self.room)))
            larger[:start] = self.room[:start]
            self.room = larger
        self.room[start:end] = found
        return len(found)

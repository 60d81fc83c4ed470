"""Values of a column without a copy: their bytes, and where each starts and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Payloads:
    """Spans of one buffer."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, values: pa.Array) -> Payloads:
        """Return the values of a binary column; null is as empty bytes."""
        _, offsets, data = values.buffers()
        ends = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
        content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        return cls(content, ends[:-1], ends[1:])

    def payload(self, row: int) -> bytes:
        """Return the bytes of one."""
        return self.data[self.starts[row] : self.ends[row]].tobytes()

    def after(self, rows: NDArray[np.int64], size: int) -> Payloads:
        """Return some of them, without so many bytes at their begin."""
        return Payloads(self.data, self.starts[rows] + size, self.ends[rows])

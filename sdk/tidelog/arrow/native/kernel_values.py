"""The kernels' values: columns of the table of batches, problems, limits."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]

HEADER_SIZE: Final = 61
RECORD_SIZE_MIN: Final = 7  # one byte for each varint and the attributes

# Columns of the table that scan_batches fills, one row a batch.
POSITION: Final = 0
SIZE: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET: Final = 3
ATTRIBUTES: Final = 4
RECORD_COUNT: Final = 5
BASE_TIMESTAMP: Final = 6
MAX_TIMESTAMP: Final = 7
PRODUCER_ID: Final = 8
CRC: Final = 9
COLUMN_COUNT: Final = 10

# Problems.
OK: Final = 0
BAD_HEADER: Final = 1
BAD_LENGTH: Final = 2
BAD_OFFSET: Final = 3
BAD_KEY: Final = 4
BAD_VALUE: Final = 5
BAD_HEADERS: Final = 6
TRAILING_BYTES: Final = 7

# Timestamps become microseconds, limited to the range of int64.
TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
TIMESTAMP_MS_MIN: Final = -TIMESTAMP_MS_MAX

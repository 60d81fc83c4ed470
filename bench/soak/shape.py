"""The topics of the soak and the format of their records.

tail      tiered and short: local segments are always evicted, and old ones deleted
table     compacted, local only: keys of a bounded set, cleaned by the node
ledger    compacted, deleted by size and tiered; written in transactions, some of them aborted
visitors  written and read by short-lived clients

A value has its number in its partition, its due time (CLOCK_MONOTONIC, which the processes of one
machine share) and a body: a part of one random pool whose position depends on the number. So any
reader can check each record by itself.
"""

from __future__ import annotations

import random
import struct

TAIL, TABLE, LEDGER, VISITORS = "tail", "table", "ledger", "visitors"
TAIL_PARTITIONS = 4
TAIL_RECORD_BYTES = 4096
SMALL_RECORD_BYTES = 1024
TABLE_KEYS = 20_000
LEDGER_KEYS = 4_000
ABORTED = 1 << 63  # set in the number of an aborted record, which read_committed must not return

MIB = 1 << 20
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    TAIL: (
        TAIL_PARTITIONS,
        {
            "segment.bytes": str(32 * MIB),
            "local.retention.bytes": str(96 * MIB),
            "retention.bytes": str(384 * MIB),
            "file.delete.delay.ms": "5000",
        },
    ),
    TABLE: (
        1,
        {
            "cleanup.policy": "compact",
            "remote.storage.enable": "false",
            "segment.bytes": str(8 * MIB),
            "min.cleanable.dirty.ratio": "0.2",
            "file.delete.delay.ms": "5000",
        },
    ),
    LEDGER: (
        1,
        {
            "cleanup.policy": "compact,delete",
            "segment.bytes": str(2 * MIB),
            "local.retention.bytes": str(6 * MIB),
            "retention.bytes": str(32 * MIB),
            "min.cleanable.dirty.ratio": "0.2",
            "file.delete.delay.ms": "5000",
        },
    ),
    VISITORS: (1, {"segment.ms": "60000", "retention.ms": "120000"}),
}
DISK_BYTES_MAX = 6_000_000_000  # of log, objects, cache and metadata together

_HEAD = struct.Struct(">QQ")
_POOL = random.Random(7).randbytes(MIB)
_STRIDE = 4099  # a prime: consecutive numbers have different bodies


def make_value(number: int, due_ns: int, size_bytes: int) -> bytes:
    """Return the value of this number."""
    start = (number & (ABORTED - 1)) * _STRIDE % (MIB - size_bytes)
    return _HEAD.pack(number, due_ns) + _POOL[start : start + size_bytes - _HEAD.size]


def read_value(value: bytes) -> tuple[int, int]:
    """Return number and due time. Raises ``ValueError`` if the value was changed."""
    if len(value) < _HEAD.size:
        raise ValueError(f"a value of {len(value)} bytes")
    number, due_ns = _HEAD.unpack_from(value)
    if value != make_value(number, due_ns, len(value)):
        raise ValueError(f"the value of number {number} is not what was written")
    return number, due_ns

"""A Bloom filter over hashes of keys: it proves that a segment lacks a key.

Section layout, little-endian: hash kind (4 bytes, 1 is BLAKE2b-64), probe count k (4),
bit count m (8, a multiple of 64), number of distinct keys (8), least and greatest hash
(8 each, unsigned), then m / 8 bytes of bits. A key's hash h is its BLAKE2b digest of 8
bytes as a little-endian number; its bits are ``(low + i * (high | 1)) % m`` for i in
``[0, k)``, where low and high are the halves of h. Bit b is bit ``b % 8`` of byte
``b // 8``. Records without a key and control batches are not in the filter.

Building takes about 3 microseconds a record (keys must be decompressed and hashed), so
a segment with more records than the caller's limit has no filter; a reader then has to
assume that it may hold any key.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError

from tidelog_core.tier.key_hashes import bit_table, hash_key

HASH_KIND_BLAKE2B_64 = 1
BITS_PER_KEY = 10  # with 7 probes about 1 in 120 absent keys is not recognized as absent
PROBE_COUNT = 7
PROBE_COUNT_MAX = 64

_HEAD = Struct("<IIQQQQ")
_LOW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """A parsed filter."""

    probe_count: int
    bit_count: int
    key_count: int  # distinct hashes
    hash_min: int
    hash_max: int
    bits: memoryview

    @classmethod
    def parse(cls, section: memoryview) -> KeyFilter:
        """Return the filter in a section. Raises ``ValueError`` with the damage."""
        try:
            kind, probe_count, bit_count, key_count, low, high = _HEAD.unpack_from(section)
        except StructError:
            raise ValueError("the key filter is cut") from None
        bits = section[_HEAD.size :]
        if kind != HASH_KIND_BLAKE2B_64:
            raise ValueError(f"the key filter's hash {kind} is unknown")
        if bit_count != 8 * len(bits) or bit_count == 0:
            raise ValueError(f"the key filter has {len(bits)} bytes for {bit_count} bits")
        if not 0 < probe_count <= PROBE_COUNT_MAX:
            raise ValueError(f"the key filter has {probe_count} probes")
        return cls(probe_count, bit_count, key_count, low, high, bits)

    def may_contain(self, key: bytes) -> bool:
        """Return whether the segment may hold a record of this key; ``False`` is certain."""
        hashed = hash_key(key)
        if self.key_count == 0 or not self.hash_min <= hashed <= self.hash_max:
            return False
        bits, bit_count = self.bits, self.bit_count
        at, step = hashed & _LOW, hashed >> 32 | 1
        for _ in range(self.probe_count):
            bit = at % bit_count
            if not bits[bit >> 3] >> (bit & 7) & 1:
                return False
            at += step
        return True


def build_key_filter(hashes: Collection[int]) -> bytes:
    """Return the section for these distinct hashes."""
    bit_count = max(64, -(-len(hashes) * BITS_PER_KEY // 64) * 64)
    head = _HEAD.pack(
        HASH_KIND_BLAKE2B_64,
        PROBE_COUNT,
        bit_count,
        len(hashes),
        min(hashes, default=0),
        max(hashes, default=0),
    )
    return head + bit_table(hashes, bit_count, PROBE_COUNT)

"""The hashes of a batch's keys are those of its decoded records."""

from __future__ import annotations

import random

import pytest
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.records.batch import Record, build_batch, decode_records, parse_header
from tidelog_core.records.codecs import CompressionType
from tidelog_core.tier.key_hashes import add_key_hashes, hash_key

SIZES_BYTES = (0, 1, 63, 64, 127, 128, 5_000, 20_000)


def batch_of(noise: random.Random, compression: CompressionType) -> bytes:
    """Return a batch whose lengths, deltas and keys need varints of all sizes."""
    records = []
    for offset in range(100):  # The deltas of the last ones take two bytes.
        key = None if noise.random() < 0.4 else noise.randbytes(noise.choice(SIZES_BYTES))
        value = None if noise.random() < 0.1 else noise.randbytes(noise.choice(SIZES_BYTES))
        timestamp_ms = 1_700_000_000_000 + noise.choice((0, 1, 64, 10**6, 10**11))
        headers = (("h", noise.randbytes(3)),) if noise.random() < 0.2 else ()
        records.append(Record(offset, timestamp_ms, key, value, headers))
    return build_batch(records, compression=compression)


@pytest.mark.parametrize("compression", list(CompressionType))
def test_every_key_is_hashed_and_nothing_else(compression: CompressionType) -> None:
    noise = random.Random(f"keys {compression.name}")
    for _ in range(5):
        batch = batch_of(noise, compression)
        header = parse_header(batch)
        found: set[int] = set()
        add_key_hashes(batch, 0, header, found)
        keys = {one.key for one in decode_records(batch) if one.key is not None}
        assert len(keys) > 20
        assert found == set(map(hash_key, keys))


def test_a_batch_with_more_records_announced_than_it_has_is_refused() -> None:
    batch = batch_of(random.Random(5), CompressionType.NONE)
    header = parse_header(batch)
    with pytest.raises(CorruptRecordBatch, match="a record's key cannot be found"):
        add_key_hashes(batch, 0, header._replace(record_count=header.record_count + 1), set())

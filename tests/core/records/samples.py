"""Records to test with: fixed ones and hypothesis strategies."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from tidelog_core.records.batch import CompressionType, Record, build_batch

CODECS = list(CompressionType)
COMPRESSING = [codec for codec in CODECS if codec is not CompressionType.NONE]

TIMESTAMP_MS = 1_700_000_000_000

_keys_and_values = st.none() | st.binary(max_size=300)
_headers = st.lists(st.tuples(st.text(max_size=20), _keys_and_values), max_size=3).map(tuple)
_timestamps = st.integers(min_value=-1, max_value=2**60)


@st.composite
def record_lists(draw: st.DrawFn, min_size: int = 1) -> list[Record]:
    """Return records at offsets 0, 1, 2, ... with anything in them."""
    size = draw(st.integers(min_value=min_size, max_value=20))
    return [
        Record(
            offset,
            draw(_timestamps),
            draw(_keys_and_values),
            draw(_keys_and_values),
            draw(_headers),
        )
        for offset in range(size)
    ]


def sample_records(count: int = 20, *, base_offset: int = 0, seed: int = 0) -> list[Record]:
    """Return records of every shape: null and empty parts, headers, times that go back."""
    source = random.Random(seed)
    return [
        Record(
            base_offset + index,
            TIMESTAMP_MS + source.randrange(-1000, 100_000),
            None if index % 3 == 0 else b"key-%d" % index,
            None if index % 7 == 0 else b'{"n": %d}' % index * source.randrange(40),
            (("trace", b"abc"), ("empty", b""), ("null", None), ("größe", b"1"))[: index % 5],
        )
        for index in range(count)
    ]


def sample_batch(codec: CompressionType = CompressionType.NONE, count: int = 20) -> bytes:
    """Return a produced batch of the sample records."""
    return build_batch(sample_records(count), compression=codec)

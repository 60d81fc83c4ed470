from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.records.murmur2 import murmur2


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_known_keys_have_kafkas_hash(key: bytes, expected: int) -> None:
    """The values of UtilsTest in Apache Kafka."""
    assert murmur2(key) == expected


@given(key=st.binary(max_size=100))
def test_any_key_hashes_as_in_aiokafka(key: bytes) -> None:
    assert murmur2(key) & 0xFFFFFFFF == aiokafka_murmur2(key)

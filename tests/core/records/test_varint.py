from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.records.varint import ENCODED, encode_varint, read_varint, read_zigzag


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_known_numbers_have_their_bytes(number: int, encoded: str) -> None:
    """The values of ByteUtilsTest in Apache Kafka."""
    assert encode_varint(number).hex() == encoded
    assert read_varint(bytes.fromhex(encoded), 0) == (number, len(encoded) // 2)


@given(number=st.integers(-(2**63), 2**63 - 1), before=st.binary(max_size=3))
def test_any_64_bit_number_survives_a_round_trip(number: int, before: bytes) -> None:
    encoded = before + encode_varint(number)
    assert read_varint(encoded + b"\xff", len(before)) == (number, len(encoded))


def test_table_holds_what_the_function_returns() -> None:
    assert list(ENCODED) == [encode_varint(number) for number in range(len(ENCODED))]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_encode_rejects_more_than_64_bits(number: int) -> None:
    with pytest.raises(OverflowError):
        encode_varint(number)


def test_read_rejects_more_than_ten_bytes() -> None:
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_zigzag(b"\x80" * 10 + b"\x01", 0)


def test_read_rejects_a_number_that_is_cut() -> None:
    with pytest.raises(IndexError):
        read_zigzag(b"\x80\x80", 0)

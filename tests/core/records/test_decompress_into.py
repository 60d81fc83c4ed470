"""Decompression into memory of the caller: the same bytes as ``decompress``, or nothing."""

from __future__ import annotations

import random
import struct

import cramjam
import lz4.frame
import pytest
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.records.codecs import CompressionType, compress, decompress
from tidelog_core.records.decompress_into import decompress_into, lz4_size_bound

CODECS = tuple(codec for codec in CompressionType if codec is not CompressionType.NONE)
SAMPLES = [
    b"",
    b"a",
    bytes(300_000),
    random.Random(1).randbytes(200_000),
    random.Random(2).randbytes(70_000) + bytes(900_000),
]


@pytest.mark.parametrize("codec", CODECS, ids=[one.name for one in CODECS])
def test_what_is_written_is_what_decompress_returns(codec: CompressionType) -> None:
    for sample in SAMPLES:
        room = memoryview(bytearray(2_000_000))
        size = decompress_into(codec, memoryview(compress(codec, sample)), room[5:])
        assert size == len(sample)
        assert bytes(room[5 : 5 + size]) == sample


@pytest.mark.parametrize("content_checksum", [False, True], ids=["plain", "checked"])
@pytest.mark.parametrize("store_size", [False, True], ids=["unsized", "sized"])
@pytest.mark.parametrize("is_linked", [False, True], ids=["independent", "linked"])
def test_any_frame_of_lz4_is_understood(
    content_checksum: bool, store_size: bool, is_linked: bool
) -> None:
    for sample in SAMPLES:
        for block_checksum in (False, True):
            for block_size in (
                lz4.frame.BLOCKSIZE_MAX64KB,
                lz4.frame.BLOCKSIZE_MAX256KB,
                lz4.frame.BLOCKSIZE_MAX4MB,
            ):
                data = lz4.frame.compress(
                    sample,
                    block_size=block_size,
                    block_linked=is_linked,
                    content_checksum=content_checksum,
                    block_checksum=block_checksum,
                    store_size=store_size,
                )
                room = memoryview(bytearray(8_000_000))
                size = decompress_into(CompressionType.LZ4, memoryview(data), room)
                assert size == len(sample)
                assert bytes(room[:size]) == sample


@pytest.mark.parametrize("content_checksum", [False, True], ids=["plain", "checked"])
@pytest.mark.parametrize("store_size", [False, True], ids=["unsized", "sized"])
def test_a_damaged_header_of_an_lz4_frame_is_found(
    content_checksum: bool, store_size: bool
) -> None:
    """Its checksum is the only part of it that a change of every other bit disagrees with."""
    data = lz4.frame.compress(
        SAMPLES[4],
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=content_checksum,
        store_size=store_size,
    )
    room = memoryview(bytearray(8_000_000))
    assert decompress_into(CompressionType.LZ4, memoryview(data), room) == len(SAMPLES[4])
    for bit in range(8 * (15 if store_size else 7)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decompress_into(CompressionType.LZ4, memoryview(damaged), room) is None
        with pytest.raises(CorruptRecordBatch):
            decompress(CompressionType.LZ4, damaged)


@pytest.mark.parametrize("codec", list(CompressionType), ids=[one.name for one in CompressionType])
def test_what_is_not_sure_is_left_to_decompress(codec: CompressionType) -> None:
    """Too little room, a cut or damaged frame, bytes behind it, and other codecs."""
    data = compress(codec, SAMPLES[3])
    room = memoryview(bytearray(2_000_000))
    if codec not in CODECS:
        assert decompress_into(codec, memoryview(data), room) is None
        return
    assert decompress_into(codec, memoryview(data), room[:199_000]) is None
    chance = random.Random(7)
    for _ in range(300):
        cut = data[: chance.randrange(len(data))]
        assert decompress_into(codec, memoryview(cut), room) is None
    assert decompress_into(codec, memoryview(b"no frame at all"), room) is None
    if codec is not CompressionType.ZSTD:
        assert decompress_into(codec, memoryview(data + b"x"), room) is None


@pytest.mark.parametrize("codec", CODECS, ids=[one.name for one in CODECS])
def test_damaged_data_gives_nothing_that_decompress_would_refuse(codec: CompressionType) -> None:
    chance = random.Random(3)
    whole = compress(codec, SAMPLES[4][:80_000])
    room = memoryview(bytearray(2_000_000))
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        size = decompress_into(codec, memoryview(data), room)
        if size is not None:
            try:
                expected = decompress(codec, bytes(data))
            except CorruptRecordBatch:
                continue  # The records in it are checked all the same.
            assert bytes(room[:size]) == expected


def test_several_members_or_streams_are_left_to_decompress() -> None:
    room = memoryview(bytearray(1_000_000))
    for codec in (CompressionType.GZIP, CompressionType.SNAPPY):
        data = compress(codec, b"a" * 200_000) + compress(codec, b"b" * 70_000)
        assert decompress_into(codec, memoryview(data), room) is None
        assert len(decompress(codec, data)) == 270_000


def test_a_block_of_snappy_without_a_frame_is_read() -> None:
    data = bytes(cramjam.snappy.compress_raw(SAMPLES[4]))
    room = memoryview(bytearray(1_000_000))
    size = decompress_into(CompressionType.SNAPPY, memoryview(data), room)
    assert size == len(SAMPLES[4])
    assert bytes(room[:size]) == SAMPLES[4]
    assert decompress_into(CompressionType.SNAPPY, memoryview(data), room[: size - 1]) is None


def test_few_blocks_of_snappy_are_looked_at() -> None:
    """Each empty one takes five bytes, and a batch has room for a million of them."""
    empty = b"\0\0\0\1\0"
    data = compress(CompressionType.SNAPPY, b"")[:16] + empty * 4097
    room = memoryview(bytearray(100))
    assert decompress_into(CompressionType.SNAPPY, memoryview(data), room) is None
    assert decompress_into(CompressionType.SNAPPY, memoryview(data[: -len(empty)]), room) == 0


def test_the_bound_of_a_frame_is_that_of_its_blocks() -> None:
    data = compress(CompressionType.LZ4, bytes(200_000))
    assert lz4_size_bound(memoryview(data), 1 << 20) == 4 * 65_536
    assert lz4_size_bound(memoryview(data), 4 * 65_536 - 1) is None
    assert lz4_size_bound(memoryview(b"\0" * 20), 1 << 20) is None


def test_no_more_blocks_are_looked_at_than_can_fit() -> None:
    """Each empty one takes four bytes, and a batch has room for a million of them."""
    empty = (0x8000_0000).to_bytes(4, "little")
    data = compress(CompressionType.LZ4, b"")[:7] + empty * 20  # without an end
    room = memoryview(bytearray(19 * 65_536))
    whole = memoryview(data + bytes(4))
    assert decompress_into(CompressionType.LZ4, whole, room) is None
    less = memoryview(bytes(whole[:-8]) + bytes(4))
    assert decompress_into(CompressionType.LZ4, less, room) == 0
    assert lz4_size_bound(memoryview(data), 19 * 65_536) is None
    with pytest.raises(struct.error):
        lz4_size_bound(memoryview(data), 20 * 65_536)

from __future__ import annotations

import gzip
import random
import struct
import time
import tracemalloc

import cramjam
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import CorruptRecordBatch, InvalidConfig
from tidelog_core.records.codecs import (
    LEVELS,
    CompressionType,
    DecompressedTooLarge,
    compress,
    decompress,
)

from tests.core.records.samples import CODECS, COMPRESSING

GZIP, SNAPPY = CompressionType.GZIP, CompressionType.SNAPPY
LZ4, ZSTD = CompressionType.LZ4, CompressionType.ZSTD
MIB = 1024 * 1024
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def _text(size_bytes: int) -> bytes:
    source = random.Random(size_bytes)
    words = [b"%x" % source.getrandbits(24) for _ in range(200)]
    return b" ".join(source.choices(words, k=size_bytes // 4))[:size_bytes]


SAMPLES = [b"", b"a", _text(500), _text(300_000), random.Random(1).randbytes(200_000), bytes(MIB)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: f"{len(data)}-bytes")
def test_data_survives_a_round_trip(codec: CompressionType, data: bytes) -> None:
    compressed = compress(codec, data)
    assert decompress(codec, compressed, size_bytes_max=len(data)) == data
    assert decompress(codec, memoryview(compressed)) == data


@given(data=st.binary(max_size=2000), codec=st.sampled_from(CODECS))
def test_any_data_survives_a_round_trip(data: bytes, codec: CompressionType) -> None:
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", list(LEVELS))
def test_every_level_survives_a_round_trip(codec: CompressionType) -> None:
    data = _text(20_000)
    levels = LEVELS[codec][0]
    # Below -1000 zstd has a hundred thousand, which only skip ever more of the data.
    for level in [*levels[:: 1 + len(levels) // 500], *levels[-1000:]]:
        assert decompress(codec, compress(codec, data, level)) == data


@pytest.mark.parametrize(
    ("codec", "level"), [(GZIP, 0), (GZIP, 10), (LZ4, 0), (LZ4, 17), (ZSTD, 23), (SNAPPY, 1)]
)
def test_compress_rejects_a_level_that_the_codec_lacks(codec: CompressionType, level: int) -> None:
    with pytest.raises(InvalidConfig, match="level"):
        compress(codec, b"data", level)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_refused_without_being_unpacked(codec: CompressionType) -> None:
    bomb = compress(codec, bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordBatch, match=str(MIB)):
            decompress(codec, bomb, size_bytes_max=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * MIB


@pytest.mark.parametrize("codec", COMPRESSING)
def test_the_limit_is_inclusive(codec: CompressionType) -> None:
    compressed = compress(codec, bytes(1000))
    assert decompress(codec, compressed, size_bytes_max=1000) == bytes(1000)
    with pytest.raises(CorruptRecordBatch):
        decompress(codec, compressed, size_bytes_max=999)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_data_cut_anywhere_is_refused_or_a_prefix(codec: CompressionType) -> None:
    """Only snappy's framing has no end: cut between blocks, it is a shorter stream."""
    data = _text(70_000)
    compressed = compress(codec, data)
    cuts = [
        *range(64),
        *range(64, len(compressed), 211),
        *range(len(compressed) - 16, len(compressed)),
    ]
    for cut in cuts:
        try:
            shorter = decompress(codec, compressed[:cut])
        except CorruptRecordBatch:
            continue
        assert codec is SNAPPY
        assert data.startswith(shorter)
        assert len(shorter) < len(data)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_garbage_is_refused(codec: CompressionType) -> None:
    for garbage in (b"\xff" * 100, b"\x00" * 100, b"not compressed at all, just words"):
        with pytest.raises(CorruptRecordBatch, match=codec.name.lower()):
            decompress(codec, garbage)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bytes_behind_the_end_are_refused(codec: CompressionType) -> None:
    with pytest.raises(CorruptRecordBatch):
        decompress(codec, compress(codec, b"some data" * 10) + b"\x01\x02\x03\x04\x05")


@pytest.mark.parametrize("codec", COMPRESSING)
def test_flipped_bits_raise_nothing_but_corrupt_record_batch(codec: CompressionType) -> None:
    compressed = compress(codec, _text(400))
    for bit in range(8 * len(compressed)):
        flipped = bytearray(compressed)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decompress(codec, bytes(flipped), size_bytes_max=MIB)
        except CorruptRecordBatch:
            continue


def test_gzip_of_several_members_is_read_as_one() -> None:
    data = gzip.compress(b"one ") + gzip.compress(b"two")
    assert decompress(GZIP, data) == b"one two"
    with pytest.raises(CorruptRecordBatch):
        decompress(GZIP, data, size_bytes_max=6)


@given(
    parts=st.lists(st.binary(max_size=3000), min_size=1, max_size=8),
    level=st.sampled_from([0, 1, 9]),
    cut=st.integers(1, 30),
)
def test_any_gzip_members_are_read_as_one_and_refused_when_cut(
    parts: list[bytes], level: int, cut: int
) -> None:
    whole = b"".join(parts)
    data = b"".join(gzip.compress(part, level) for part in parts)
    assert decompress(GZIP, data, size_bytes_max=len(whole)) == whole
    assert decompress(GZIP, memoryview(data)) == whole
    if whole:
        with pytest.raises(DecompressedTooLarge):
            decompress(GZIP, data, size_bytes_max=len(whole) - 1)
    last = len(gzip.compress(parts[-1], level))
    if cut < last:
        with pytest.raises(CorruptRecordBatch):
            decompress(GZIP, data[:-cut])


def test_a_flood_of_empty_gzip_members_costs_no_more_than_their_bytes() -> None:
    """Copying the rest behind each of these members would copy 105 GB."""
    data = gzip.compress(b"") * (2 * MIB // 20) + gzip.compress(b"end")
    began = time.thread_time()
    assert decompress(GZIP, data) == b"end"
    assert time.thread_time() - began < 1.5


def test_snappy_is_written_as_the_java_client_writes_it() -> None:
    data = _text(70_000)
    compressed = compress(SNAPPY, data)
    assert compressed.startswith(XERIAL_HEADER)
    position, sizes = len(XERIAL_HEADER), []
    while position < len(compressed):
        (size,) = struct.unpack_from(">i", compressed, position)
        sizes.append(cramjam.snappy.decompress_raw_len(compressed[position + 4 :][:size]))
        position += 4 + size
    assert sizes == [32768, 32768, 70_000 - 65536]


def test_raw_snappy_is_read() -> None:
    data = _text(70_000)
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_joined_snappy_streams_are_read() -> None:
    assert decompress(SNAPPY, compress(SNAPPY, b"one ") + compress(SNAPPY, b"two")) == b"one two"


def test_lz4_is_written_as_the_java_client_reads_it() -> None:
    """Version 1, independent blocks of 64 KiB, no content size, no checksums."""
    compressed = compress(LZ4, _text(200_000))
    assert compressed[:4] == bytes.fromhex("04224d18")
    assert compressed[4] == 0b0110_0000
    assert compressed[5] == 0b0100_0000


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("store_size", [True, False])
@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
def test_lz4_frames_of_any_kind_are_read(
    linked: bool, checksums: bool, store_size: bool, block_size: int
) -> None:
    data = _text(300_000)
    compressed = lz4.frame.compress(
        data,
        block_size=block_size,
        block_linked=linked,
        content_checksum=checksums,
        block_checksum=checksums,
        store_size=store_size,
    )
    assert decompress(LZ4, compressed, size_bytes_max=len(data)) == data


def _zstd_stream(data: bytes, step: int) -> bytes:
    compressor = cramjam.zstd.Compressor(3)
    for start in range(0, len(data), step):
        compressor.compress(data[start : start + step])
    return bytes(compressor.finish())


@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: f"{len(data)}-bytes")
def test_zstd_frames_of_unknown_size_are_read(data: bytes) -> None:
    """Streaming encoders do not declare the size; the Java client is one."""
    streamed = _zstd_stream(data, 5000)
    assert decompress(ZSTD, streamed, size_bytes_max=len(data)) == data


@pytest.mark.parametrize("is_linked", [True, False])
def test_lz4_that_grows_far_more_than_is_usual_is_read_whole(is_linked: bool) -> None:
    data = _text(3000) + bytes(9_000_000) + _text(300_000)
    compressed = lz4.frame.compress(data, block_linked=is_linked, store_size=False)
    assert decompress(LZ4, compressed) == data
    with pytest.raises(CorruptRecordBatch, match="more than"):
        decompress(LZ4, compressed, size_bytes_max=len(data) - 1)


def test_zstd_bomb_of_unknown_size_is_refused() -> None:
    with pytest.raises(CorruptRecordBatch, match="limit 1000 bytes"):
        decompress(ZSTD, _zstd_stream(bytes(MIB), 5000), size_bytes_max=1000)


def test_several_zstd_frames_are_read_as_one() -> None:
    skippable = struct.pack("<II", 0x184D2A53, 3) + b"xyz"
    data = compress(ZSTD, b"one ") + skippable + _zstd_stream(b"two", 1)
    assert decompress(ZSTD, data) == b"one two"


def test_zstd_that_lies_about_its_size_is_refused() -> None:
    compressed = bytearray(compress(ZSTD, _text(200)))
    assert compressed[4] >> 6 == 0  # a size of one byte, at position 5
    for size in (0, 199, 201, 255):
        compressed[5] = size
        with pytest.raises(CorruptRecordBatch):
            decompress(ZSTD, bytes(compressed))

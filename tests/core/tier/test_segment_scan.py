"""A segment's rows, CRC and hash are those of its bytes, however they are read."""

from __future__ import annotations

import hashlib
import mmap
import random
from pathlib import Path

import pytest
from crc32c import crc32c
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.records.batch import Record, build_batch, iter_headers
from tidelog_core.tier.index_file import batch_row
from tidelog_core.tier.key_hashes import hash_key
from tidelog_core.tier.segment_scan import BATCH_ROW, RUN_BYTES, SegmentScan, scan_segment

SIZES_BYTES = (10, 200_000, RUN_BYTES - 1, 1, 300_000, RUN_BYTES, 5, 3 * RUN_BYTES, 70)


def segment() -> bytes:
    noise = random.Random(3)
    batches = [
        build_batch(
            [Record(number, 1_000 - number, None, noise.randbytes(size_bytes), ())],
            base_offset=2 * number,  # with gaps, as compaction leaves
        )
        for number, size_bytes in enumerate(SIZES_BYTES)
    ]
    return b"".join(batches)


def scan(data: bytes, base_offset: int = 0, end_offset: int = 40) -> SegmentScan:
    return scan_segment(data, name="the segment", base_offset=base_offset, end_offset=end_offset)


def test_a_segment_of_several_runs_has_the_rows_and_hashes_of_its_bytes() -> None:
    data = segment()
    found = scan(data)
    assert found.rows == b"".join(BATCH_ROW.pack(*batch_row(*one)) for one in iter_headers(data))
    assert found.log_crc32c == crc32c(data)
    assert found.log_sha256 == hashlib.sha256(data).digest()
    assert (found.record_count, found.max_timestamp_ms) == (len(SIZES_BYTES), 1_000)


def test_an_empty_segment_has_no_rows() -> None:
    assert scan(b"") == SegmentScan(b"", 0, -1, 0, hashlib.sha256(b"").digest(), None)


def test_keys_are_hashed_if_they_are_asked_for_and_markers_have_none() -> None:
    keys = [b"one", None, b"", b"two", b"one"]
    batches = [
        build_batch([Record(at, 1, key, b"value", ())], base_offset=at)
        for at, key in enumerate(keys)
    ]
    marker = Record(5, 1, b"\0\0\0\0", b"", ())
    batches.append(
        build_batch(
            [marker],
            base_offset=5,
            is_control=True,
            is_transactional=True,
            producer_id=1,
            producer_epoch=0,
        )
    )
    data = b"".join(batches)
    plain = scan(data)
    found = scan_segment(data, name="it", base_offset=0, end_offset=6, hashes_keys=True)
    assert found == plain._replace(key_hashes={hash_key(b"one"), hash_key(b""), hash_key(b"two")})
    assert plain.key_hashes is None


def test_a_mapping_can_be_closed_after_it_was_scanned_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(segment())
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert scan(mapped) == scan(segment())  # type: ignore[arg-type]
        with pytest.raises(CorruptRecordBatch, match="the segment has offsets"):
            scan(mapped, base_offset=1)  # type: ignore[arg-type]
        mapped.close()


@pytest.mark.parametrize("at", [0, 3, len(SIZES_BYTES) - 1])
def test_a_damaged_batch_is_refused_in_every_run(at: int) -> None:
    data = bytearray(segment())
    position = [position for position, _ in iter_headers(bytes(data))][at]
    data[position + 65] ^= 1
    with pytest.raises(CorruptRecordBatch, match="is corrupt"):
        scan(bytes(data))

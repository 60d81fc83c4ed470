"""Looking at records without making objects of them: the same verdicts as decoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.records.batch import (
    CompressionType,
    InspectionBudget,
    InspectionBudgetExceeded,
    Record,
    build_batch,
    decode_records,
    find_record,
    parse_header,
)
from tidelog_core.records.walk import walk_records

CODECS = list(CompressionType)
_bytes = st.none() | st.binary(max_size=300)
_records = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        _bytes,
        _bytes,
        st.lists(st.tuples(st.text("ab", max_size=70), _bytes), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


def batch_of(
    fields: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]],
    codec: CompressionType,
) -> bytes:
    records = [Record(offset, *rest) for offset, rest in enumerate(fields)]
    return bytes(build_batch(records, compression=codec))


@given(_records, st.sampled_from(CODECS))
def test_a_walk_sees_what_decoding_gives(fields: list, codec: CompressionType) -> None:  # type: ignore[type-arg]
    batch = batch_of(fields, codec)
    walked = list(walk_records(batch, 0, parse_header(batch)))
    assert walked == [(r.offset, r.timestamp_ms, r.key is not None) for r in decode_records(batch)]


@given(_records, st.data())
def test_a_walk_refuses_what_decoding_refuses(fields: list, data: st.DataObject) -> None:  # type: ignore[type-arg]
    """Of every byte that may be wrong; the CRC is not looked at by either."""
    batch = bytearray(batch_of(fields, CompressionType.NONE))
    position = data.draw(st.integers(57, len(batch) - 1))
    batch[position] = data.draw(st.integers(0, 255))
    try:
        expected = [(r.offset, r.timestamp_ms, r.key is not None) for r in decode_records(batch)]
    except CorruptRecordBatch:
        with pytest.raises(CorruptRecordBatch):
            list(walk_records(batch, 0, parse_header(batch)))
        return
    assert list(walk_records(batch, 0, parse_header(batch))) == expected


def test_the_first_record_of_a_time_and_the_one_with_the_greatest_are_found() -> None:
    times = (5, 9, 7, 9)
    batch = batch_of([(time, None, b"", ()) for time in times], CompressionType.ZSTD)
    assert find_record(batch, 6, 0) == (9, 1)
    assert find_record(batch, 6, 2) == (7, 2)
    assert find_record(batch, 10, 0) is None
    assert find_record(batch, None, 0) == (9, 1)
    assert find_record(batch, None, 2) == (9, 3)
    assert find_record(batch, None, 4) is None


def budget(**changes: int) -> InspectionBudget:
    return InspectionBudget(**{"records": 100, "headers": 100, "size_bytes": 100_000, **changes})


@pytest.mark.parametrize("codec", CODECS)
def test_a_budget_is_used_up_by_records_headers_and_bytes(codec: CompressionType) -> None:
    fields = [(0, b"key", bytes([number]) * 40, (("name", b""),)) for number in range(60)]
    batch = batch_of(fields, codec)  # type: ignore[arg-type]
    header = parse_header(batch)

    def drain(given: InspectionBudget) -> None:
        list(walk_records(batch, 0, header, given))

    enough = budget()
    drain(enough)
    assert (enough.records, enough.headers) == (40, 40)
    assert 0 < enough.size_bytes < 100_000 - 60 * 40
    for short in (enough, budget(records=59), budget(headers=59), budget(size_bytes=2_000)):
        with pytest.raises(InspectionBudgetExceeded):
            drain(short)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_decompresses_to_far_more_than_it_is_goes_over_any_budget(
    codec: CompressionType,
) -> None:
    batch = batch_of([(0, b"key", bytes(1_000_000), ())], codec)
    header = parse_header(batch)
    assert len(list(walk_records(batch, 0, header))) == 1
    if codec is not CompressionType.SNAPPY:  # which cannot
        with pytest.raises(InspectionBudgetExceeded):
            list(walk_records(batch, 0, header, budget(size_bytes=2_000_000)))

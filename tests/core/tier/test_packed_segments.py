"""Packed segments: nothing is lost of what their items say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.metadata.store import Item
from tidelog_core.tier.packed_segments import (
    pack_segment,
    unpack_extent,
    unpack_id,
    unpack_place,
    unpack_segment,
)
from tidelog_core.tier.planning import place_in_reading

from tests.support.segment_items import segment_meta

INT64 = st.integers(-(2**63), 2**63 - 1)
FROM_ZERO = st.integers(0, 2**63 - 1)
HASHES = st.one_of(
    st.binary(max_size=33).map(bytes.hex), st.text(), st.just("ABCD"), st.just("\ud800")
)


@st.composite
def any_segment(draw: st.DrawFn) -> SegmentMeta:
    """Return a segment with whatever an item that can be read may say."""
    segment = segment_meta(
        draw(FROM_ZERO),
        draw(FROM_ZERO),
        partition=draw(FROM_ZERO),
        topic_id=draw(st.uuids()),
        segment_id=draw(st.uuids()),
        leader_epoch=draw(FROM_ZERO),
        size_bytes=draw(FROM_ZERO),
        index_size_bytes=draw(FROM_ZERO),
        max_timestamp_ms=draw(INT64),
        leader_epochs=tuple(draw(st.lists(st.tuples(INT64, INT64), max_size=5))),
        chained_hash=draw(HASHES),
        created_ms=draw(INT64),
        deletable_ms=draw(FROM_ZERO),
        rewrite_epoch=draw(FROM_ZERO),
        compacted_up_to=draw(FROM_ZERO),
    )
    return SegmentMeta.from_item(Item(segment.item_id, draw(FROM_ZERO), segment.to_body()))


@given(any_segment())
def test_a_segment_is_unpacked_as_it_was(segment: SegmentMeta) -> None:
    packed = pack_segment(segment)
    unpacked = unpack_segment(packed, segment.topic_id, segment.partition)
    assert unpacked == segment
    assert unpacked.version == segment.version
    extent = (segment.base_offset, segment.end_offset, segment.size_bytes, segment.max_timestamp_ms)
    assert unpack_extent(packed) == extent
    assert unpack_id(packed) == segment.segment_id.bytes
    assert unpack_place(packed) == place_in_reading(segment)

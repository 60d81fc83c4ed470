"""Lists of partitions as bytes: where each is, and what has changed."""

from __future__ import annotations

import pytest
from tidelog_node.wire.fetch import parse_entry
from tidelog_node.wire.fetch_list import CHANGES_MAX, ListLayout, find_changes, first_named

from tests.node.fetching.ring_client import fetch_body

VERSIONS = (4, 5, 9, 11, 12, 13, 16)
ENTRY_SIZES = {4: 16, 5: 24, 9: 28, 11: 28, 12: 33, 13: 33, 16: 33}


def named(offsets: dict[int, int], count: int) -> list[tuple[bytes, list[tuple[int, int, int]]]]:
    partitions = [(index, -1, offsets.get(index, 0)) for index in range(count)]
    return [(b"a" * 16, partitions), (b"b" * 16, partitions)]


def topics_of(version: int, offsets: dict[int, int], count: int) -> bytes:
    """Return a request from its topics on."""
    head_size_bytes = 13 + 4 * (version < 15) + 8 * (version >= 7)
    return fetch_body(version, named(offsets, count))[head_size_bytes:]


def kept_of(version: int, count: int) -> tuple[ListLayout, bytearray]:
    layout = ListLayout(version, [(b"a" * 16, count), (b"b" * 16, count)], ENTRY_SIZES[version])
    sent = topics_of(version, {}, count)
    start = 4 if version < 12 else 1
    return layout, bytearray(sent[start : start + layout.size_bytes])


@pytest.mark.parametrize("version", VERSIONS)
def test_finds_each_partition_that_has_changed(version: int) -> None:
    layout, kept = kept_of(version, 50)
    offsets = {0: 1, 1: 1 << 40, 7: 2, 48: 3, 49: 9}
    sent = topics_of(version, offsets, 50)
    assert first_named(version, sent) == (b"a" * 16, 0)
    changes = find_changes(version, layout, kept, sent, 0)
    assert changes is not None
    found = {place: parse_entry(version, entry).offset for place, entry in changes}
    assert found == offsets | {50 + index: offset for index, offset in offsets.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_takes_a_list_with_too_many_changes_for_another_one(version: int) -> None:
    layout, kept = kept_of(version, CHANGES_MAX)
    few = dict.fromkeys(range(CHANGES_MAX // 2), 5)
    changes = find_changes(version, layout, kept, topics_of(version, few, CHANGES_MAX), 0)
    assert changes is not None
    assert len(changes) == CHANGES_MAX
    many = few | {CHANGES_MAX - 1: 5}
    assert find_changes(version, layout, kept, topics_of(version, many, CHANGES_MAX), 0) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_every_byte_is_in_a_partition_or_between_topics(version: int) -> None:
    layout, kept = kept_of(version, 3)
    places = [layout.place_at(position) for position in range(layout.size_bytes)]
    for place in range(6):
        start = layout.position(place)
        assert places.count(place) == layout.entry_size_bytes
        assert places[start : start + layout.entry_size_bytes] == [place] * layout.entry_size_bytes
    assert len(kept) == layout.size_bytes == len(layout.empty_list())

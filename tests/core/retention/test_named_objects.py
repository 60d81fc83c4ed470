"""Who is asked whether an object of the bucket is anybody's."""

from __future__ import annotations

from uuid import UUID, uuid4

from tidelog_core.metadata.records import segment_collection
from tidelog_core.metadata.store import Item, ItemKey
from tidelog_core.retention.orphans import TopicState, named_segments, state_of_topic

from tests.support.segment_items import segment_meta

LIVE, DELETED, OTHER = uuid4(), uuid4(), uuid4()


def test_an_item_names_its_segment_even_where_it_cannot_be_read() -> None:
    whole = segment_meta(10, 20)
    item = Item(whole.item_id, 1, whole.to_body())
    damaged = Item(segment_meta(20, 30).item_id, 1, {}, "not JSON")
    strange = Item(ItemKey(segment_collection(UUID(int=7), 3), "strange"), 1, {})
    last_id = UUID(damaged.id.key.partition("-")[2])
    assert named_segments([item, damaged, strange]) == {whole.segment_id, last_id}


def test_a_topic_is_unknown_only_where_all_that_there_is_could_be_read() -> None:
    for is_complete in (True, False):
        states = [
            state_of_topic(topic, live={LIVE}, deleted={DELETED}, is_complete=is_complete)
            for topic in (LIVE, DELETED, OTHER)
        ]
        last = TopicState.UNKNOWN if is_complete else TopicState.DELETED
        assert states == [TopicState.LIVE, TopicState.DELETED, last]

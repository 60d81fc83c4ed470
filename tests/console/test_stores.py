from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_console.stores import AWS_TIER_SECONDS, Stores
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.erasures import LocalErasure, key_erasure_key, local_erasure_key
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.metadata.records import put
from tidelog_core.metadata.rewrite_claims import rewrite_claim_key
from tidelog_core.metadata.store import ABSENT, Write

from tests.support.coordinator_node import create_topic, topic_id
from tests.support.segment_items import put_segments, segment_meta

FIRST = segment_meta(0, 10, topic_id=topic_id("t"), partition=0)
SECOND = segment_meta(10, 20, topic_id=topic_id("t"), partition=0)


async def test_segments_in_dynamodb_are_read_rarely_however_often_a_page_is(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    here, on_aws = (Stores(url, None, NodeConfig()) for _ in range(2))
    on_aws._tier_seconds = AWS_TIER_SECONDS
    async with opened_metadata_store(url, may_be_new=True) as store:
        await create_topic(store, "t")
        await put_segments(store, [FIRST])
        for stores in (here, on_aws):
            assert [one.segments for one in await stores.tier_of("t", [0, 1])] == [[FIRST], []]
        await put_segments(store, [SECOND])
        assert [len(one.segments) for one in await here.tier_of("t", [0])] == [2]
        assert [len(one.segments) for one in await on_aws.tier_of("t", [0])] == [1]
        on_aws._tier_seconds = 1e-9
        assert [len(one.segments) for one in await on_aws.tier_of("t", [0])] == [2]
    for stores in (here, on_aws):
        await stores.close()


async def test_what_is_kept_of_segments_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog_console.stores.SEGMENTS_KEPT_MAX", 0)
    monkeypatch.setattr("tidelog_console.stores.PARTITIONS_KEPT_MIN", 1)
    url = f"sqlite://{tmp_path}/metadata.db"
    stores = Stores(url, None, NodeConfig())
    stores._tier_seconds = AWS_TIER_SECONDS
    async with opened_metadata_store(url, may_be_new=True) as store:
        await create_topic(store, "t", 3)
        await put_segments(store, [FIRST])
        assert len(await stores.tier_of("t", [0, 1, 2])) == 3
    assert len(stores._tiers) <= 2
    await stores.close()


async def test_damaged_items_are_counted_or_left_out_and_hide_nothing_else(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    stores = Stores(url, None, NodeConfig())
    async with opened_metadata_store(url, may_be_new=True) as store:
        await create_topic(store, "t", 2)
        await put_segments(store, [FIRST])
        damaged = (
            rewrite_claim_key(topic_id("t"), 0),
            key_erasure_key(topic_id("t"), 0, "00" * 32),
            local_erasure_key(topic_id("t"), 0),
        )
        whole = LocalErasure(topic_id=topic_id("t"), partition=1)
        await store.commit(
            [put(whole), *(Write(key, {"of": "a newer version"}, ABSENT) for key in damaged)]
        )
        first, second = await stores.tier_of("t", [0, 1])
        assert (first.segments, first.claim, first.unreadable_count) == ([FIRST], None, 1)
        assert second.unreadable_count == 0
        assert [one.partition for one in await stores.erasure_requests()] == [1]
    await stores.close()

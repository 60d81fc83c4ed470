"""A lost log is begun where the tier ends, also if the tier is rewritten while it is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.log.checkpoint import read_checkpoint
from tidelog_core.log.paths import START_OFFSET_FILE
from tidelog_core.metadata.records import Partition
from tidelog_core.model import TopicPartition
from tidelog_core.tier.contents import PAGE_ITEMS_MAX, READS_MAX
from tidelog_node.logs import restore
from tidelog_node.logs.directories import LogDirectories

from tests.support.segment_items import PARTITION, TOPIC_ID, SwappingStore, neighbours, put_segments


async def test_a_lost_log_is_not_begun_inside_a_tier_that_is_being_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "REWRITTEN_RETRY_S", 0.0)
    metas = neighbours(PAGE_ITEMS_MAX + 50)
    partition = Partition(
        topic_id=TOPIC_ID,
        partition=PARTITION,
        replicas=(1,),
        leader=1,
        leader_epoch=0,
        isr=(1,),
        log_start_offset=0,
    )
    held = restore._Held(TopicPartition("t", PARTITION), TOPIC_ID)

    store = SwappingStore(metas, swap_count=READS_MAX)
    await put_segments(store, metas)
    directories = LogDirectories(tmp_path)
    try:
        laid = await restore._lay_start(store, directories, held, partition)
    finally:
        directories.close()
    assert laid is not None
    directory, last = laid
    assert last.end_offset == metas[-1].end_offset
    assert read_checkpoint(directory / START_OFFSET_FILE) == [[0, metas[-1].end_offset]]

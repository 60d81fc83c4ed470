"""What a log of a diskless topic counts as durable: the object store has what is committed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.config import TopicConfig
from tidelog_core.log.local_log import LocalLog
from tidelog_core.model import TopicPartition

from tests.support.batches import batch_of


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    """Three sealed segments of one record, two of them committed, and nothing flushed."""
    config = TopicConfig(diskless_enable=True, cleanup_policy=("compact",))
    made = LocalLog.open(tmp_path, TopicPartition("t", 0), config=config)
    for key in (b"a", b"b", b"c"):
        made.append_as_leader(bytearray(batch_of(b"v", key=key)), leader_epoch=0)
        made.roll()
    made.advance_high_watermark(2)
    return made


def test_what_is_committed_is_durable_without_a_flush(log: LocalLog) -> None:
    assert (log.recovery_point, log.durable_end) == (0, 2)
    log.update_config(TopicConfig())
    assert log.durable_end == 0


def test_it_is_flushed_up_to_the_end_of_the_tier(log: LocalLog) -> None:
    assert not log.needs_flush
    log.set_tiered_up_to(1)
    assert log.needs_flush
    log.flush(log.tiered_up_to)
    assert (log.recovery_point, log.needs_flush) == (1, False)


def test_compaction_keeps_off_what_is_not_committed_or_not_flushed(log: LocalLog) -> None:
    assert log.segments_to_clean() == ()
    log.flush()
    assert [segment.base_offset for segment in log.segments_to_clean()] == [0, 1]

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tidelog_core.config import TopicConfig
from tidelog_core.errors import ErrorCode
from tidelog_core.log.local_log import LocalLog
from tidelog_core.model import NO_LEADER, TopicPartition
from tidelog_core.records.batch import build_batch
from tidelog_core.records.record import Record
from tidelog_core.replication.follower_state import (
    Append,
    AskOffsets,
    FetchAnswer,
    FollowerState,
    Ignore,
    LeaderContact,
    Truncate,
    find_divergence,
)
from tidelog_core.replication.tier_start import (
    TierEnd,
    TruncateFully,
    start_before_following,
    start_before_leading,
)

from tests.support.replication_cluster import make_partition
from tests.support.sim_log import SimLog, Tier


def make_log(*epochs: int, start: int = 0, tier: Tier | None = None) -> SimLog:
    """Return a log with one record of each epoch given."""
    log = SimLog(tier or Tier())
    if start:
        log.truncate_fully(start, 0)
    log.append_as_follower([(epoch, (2_000, index)) for index, epoch in enumerate(epochs)])
    return log


def make_follower(*, leader: int = 1, epoch: int = 9) -> FollowerState:
    return FollowerState(make_partition(leader=leader, epoch=epoch), 2)


def reconcile(follower: FollowerState, log: SimLog, leader_log: SimLog) -> int:
    """Fetch and truncate until the logs agree; return how many truncations it took."""
    for count in range(20):
        fetch = follower.next_fetch(log)
        assert fetch is not None
        diverging = find_divergence(
            leader_log, fetch_offset=fetch.offset, last_fetched_epoch=fetch.last_fetched_epoch
        )
        if diverging is None:
            return count
        action = follower.on_answer(fetch, FetchAnswer(diverging=diverging), log)
        assert isinstance(action, Truncate)
        log.truncate_to(action.offset)
    raise AssertionError("never agrees")


def test_it_fetches_from_its_end_with_its_latest_epoch() -> None:
    fetch = make_follower().next_fetch(make_log(1, 1, 3))
    assert fetch is not None
    assert (fetch.leader_id, fetch.leader_epoch) == (1, 9)
    assert (fetch.offset, fetch.last_fetched_epoch) == (3, 3)


def test_it_fetches_from_nobody_without_a_leader_or_once_stopped() -> None:
    assert make_follower(leader=NO_LEADER).next_fetch(make_log()) is None
    follower = make_follower()
    follower.stop()
    assert follower.next_fetch(make_log()) is None


def test_it_appends_what_continues_its_log() -> None:
    follower, log = make_follower(), make_log(1, 1)
    fetch = follower.next_fetch(log)
    assert fetch is not None
    answer = FetchAnswer(high_watermark=7, log_start_offset=1)
    assert follower.on_answer(fetch, answer, log) == Append(7, 1)


def test_an_answer_that_is_late_doubled_or_of_another_epoch_is_not_used() -> None:
    follower, log = make_follower(), make_log(1, 1)
    fetch = follower.next_fetch(log)
    assert fetch is not None
    log.append_as_follower([(9, (2_000, 5))])
    ignored = Ignore(must_wait=False)
    assert follower.on_answer(fetch, FetchAnswer(), log) == ignored
    assert follower.on_answer(fetch, FetchAnswer(diverging=(1, 0)), log) == ignored
    again = follower.next_fetch(log)
    assert again is not None
    assert make_follower(epoch=10).on_answer(again, FetchAnswer(), log) == ignored


def test_what_a_fed_follower_is_told_counts_although_its_log_has_grown() -> None:
    """The leader says it once: it would not be heard of again before the next commit."""
    follower, log = make_follower(), make_log(1, 1, 1)
    log.high_watermark = 2
    fetch = follower.next_fetch(log, is_fed=True)
    assert fetch is not None
    assert fetch.offset == 2  # what is above was not compared with the bucket
    log.append_as_follower([(9, (2_000, 5))])
    log.high_watermark = 4
    told = follower.on_answer(fetch, FetchAnswer(high_watermark=7), log, is_fed=True)
    assert told == Append(7, 0)
    later = make_follower(epoch=10)
    ignored = Ignore(must_wait=False)
    assert later.on_answer(fetch, FetchAnswer(high_watermark=7), log, is_fed=True) == ignored


def test_what_was_heard_counts_until_another_session_says_more() -> None:
    """A session's first answer counts only once it is applied."""
    follower, contact = make_follower(), LeaderContact()
    follower.begin(10.0)
    follower.on_heard(contact)
    assert follower.heard_ms == 10.0
    contact.answered_ms = 20.0
    assert follower.heard_ms == 20.0
    follower.end_contact()
    contact.answered_ms = 30.0
    assert follower.heard_ms == 20.0
    follower.on_heard(LeaderContact())
    assert follower.heard_ms == 20.0


def test_it_waits_where_the_leader_refuses() -> None:
    follower, log = make_follower(), make_log()
    fetch = follower.next_fetch(log)
    assert fetch is not None
    for code in (ErrorCode.fenced_leader_epoch, ErrorCode.not_leader_or_follower):
        assert follower.on_answer(fetch, FetchAnswer(code), log) == Ignore()


def test_records_above_the_high_watermark_stay_where_the_leader_has_them() -> None:
    log, leader_log = make_log(1, 1, 1, 1), make_log(1, 1, 1, 1, 5)
    log.high_watermark = 1
    assert reconcile(make_follower(), log, leader_log) == 0
    assert log.log_end_offset == 4


def test_what_the_leader_of_a_later_epoch_lacks_is_cut() -> None:
    log, leader_log = make_log(1, 1, 1, 1), make_log(1, 1, 5, 5, 5)
    assert reconcile(make_follower(), log, leader_log) == 1
    assert log.log_end_offset == 2


def test_logs_of_several_lost_leaders_agree_in_the_end() -> None:
    """KIP-279: both have an epoch that the other lacks."""
    log, leader_log = make_log(1, 1, 2, 4, 4), make_log(1, 1, 3, 3, 5)
    assert reconcile(make_follower(), log, leader_log) == 2
    assert log.entries == leader_log.entries[:2]


def test_an_epoch_in_which_nothing_was_written_is_dropped() -> None:
    """Or the records of older epochs that come next would be taken for its own."""
    log, leader_log = make_log(1, 1), make_log(1, 1, 1, 7)
    log.assign_leader_epoch(6)
    assert reconcile(make_follower(), log, leader_log) == 1
    log.append_as_follower(leader_log.entries[2:])
    assert log.leader_epoch_for(2) == 1


@pytest.mark.parametrize("seed", range(200))
def test_any_two_logs_with_a_common_past_agree_at_their_common_past(seed: int) -> None:
    random = Random(seed)
    common = sorted(random.choices(range(1, 4), k=random.randint(0, 4)))
    past = common[-1] if common else 0
    # No epoch is led twice, so no two logs have different records of one epoch.
    epochs = list(range(past + 1, past + 9))
    random.shuffle(epochs)
    mine = sorted(random.choices(epochs[:4], k=random.randint(0, 5)))
    theirs = sorted(random.choices(epochs[4:], k=random.randint(0, 5)))
    log, leader_log = make_log(*common, *mine), make_log(*common, *theirs)
    leader_log.assign_leader_epoch(99)
    reconcile(make_follower(epoch=99), log, leader_log)
    shared = log.log_end_offset
    assert shared >= len(common)
    assert log.entries == leader_log.entries[:shared]


def test_real_logs_agree_as_well(tmp_path: Path) -> None:
    config = TopicConfig()

    def open_log(name: str, epochs: list[int]) -> LocalLog:
        log = LocalLog.open(tmp_path / name, TopicPartition("t", 0), config=config)
        for epoch in epochs:
            record = Record(offset=0, timestamp_ms=1, key=None, value=b"%d" % epoch, headers=())
            log.append_as_leader(bytearray(build_batch([record])), leader_epoch=epoch)
        return log

    log, leader_log = open_log("a", [1, 1, 2, 4, 4]), open_log("b", [1, 1, 3, 3, 5])
    follower = make_follower()
    for _ in range(5):
        fetch = follower.next_fetch(log)
        assert fetch is not None
        diverging = find_divergence(
            leader_log, fetch_offset=fetch.offset, last_fetched_epoch=fetch.last_fetched_epoch
        )
        if diverging is None:
            break
        action = follower.on_answer(fetch, FetchAnswer(diverging=diverging), log)
        assert isinstance(action, Truncate)
        log.truncate_to(action.offset)
    assert (log.log_end_offset, log.leader_epoch) == (2, 1)
    assert start_before_leading(log, TierEnd(2, 1, 0), log_start_offset=0) is None
    log.close()
    leader_log.close()


# -- where the leader has nothing --


def test_an_offset_that_the_leader_does_not_have_is_asked_about() -> None:
    follower, log = make_follower(), make_log(1)
    fetch = follower.next_fetch(log)
    assert fetch is not None
    leader_log = make_log(9, start=10)
    assert find_divergence(leader_log, fetch_offset=1, last_fetched_epoch=1) == (-1, -1)
    for code in (ErrorCode.offset_out_of_range, ErrorCode.offset_moved_to_tiered_storage):
        assert follower.on_answer(fetch, FetchAnswer(code), log) == AskOffsets()


@pytest.mark.parametrize(
    ("own", "leader", "tier_end", "action"),
    [
        # start and epochs of the own log; start, local start and end of the leader's
        ((0, 3), (0, 10, 20), TierEnd(12, 4, 0), TruncateFully(12, 0)),
        ((0, 3), (0, 10, 20), TierEnd(9, 4, 0), Ignore()),
        ((0, 3), (0, 10, 20), None, Ignore()),
        ((0, 3), (10, 10, 20), None, TruncateFully(10, 10)),
        ((0, 30), (0, 0, 20), None, Truncate(20)),
        ((25, 5), (0, 0, 20), None, TruncateFully(20, 0)),
        ((0, 15), (0, 10, 20), None, Ignore()),
    ],
)
def test_it_starts_again_where_the_tier_ends(
    own: tuple[int, int],
    leader: tuple[int, int, int],
    tier_end: TierEnd | None,
    action: object,
) -> None:
    start, count = own
    log = make_log(*[1] * count, start=start)
    follower = make_follower()
    fetch = follower.next_fetch(log)
    assert fetch is not None
    found = follower.on_offsets(
        fetch,
        log,
        leader_start=leader[0],
        leader_local_start=leader[1],
        leader_end=leader[2],
        tier_end=tier_end,
    )
    assert found == action


def test_a_new_replica_copies_the_local_tail_only() -> None:
    end = TierEnd(12, 4, 3)
    assert start_before_following(make_log(), end, is_in_sync=False) == TruncateFully(12, 3)
    assert start_before_following(make_log(), end, is_in_sync=True) is None
    assert start_before_following(make_log(1), end, is_in_sync=False) is None
    assert start_before_following(make_log(), None, is_in_sync=False) is None


def test_a_leader_has_at_least_what_the_tier_has() -> None:
    assert start_before_leading(make_log(1, 1, 4), TierEnd(2, 1, 0), log_start_offset=0) is None
    assert start_before_leading(
        make_log(1, 1), TierEnd(3, 4, 0), log_start_offset=0
    ) == TruncateFully(3, 0)
    assert start_before_leading(
        make_log(1, 1, 2), TierEnd(3, 4, 0), log_start_offset=0
    ) == TruncateFully(3, 0)
    assert start_before_leading(make_log(1), None, log_start_offset=0) is None
    assert start_before_leading(make_log(5, start=8), TierEnd(8, 4, 0), log_start_offset=0) is None


def test_a_leader_begins_no_earlier_than_the_records_that_are_kept() -> None:
    log = make_log(1, 1)
    assert start_before_leading(log, None, log_start_offset=2) is None
    assert start_before_leading(log, None, log_start_offset=3) == TruncateFully(3, 3)
    assert start_before_leading(log, TierEnd(5, 4, 3), log_start_offset=3) == TruncateFully(5, 3)

"""Whether producers' histories are whole: as the log itself would have judged them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.errors import InvalidProducerEpoch, OutOfOrderSequence
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.values import AppendOrigin
from tidelog_core.records.batch import parse_header
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)
from tidelog_spark.jobs.audit.producers import SequenceRules, follow, no_spans
from tidelog_spark.jobs.audit.segment_scan import SegmentScan, scan_segment

from tests.spark.jobs.audit.produced import produced

STRICT = SequenceRules()
COMPACTED = SequenceRules(may_skip=True)
MARKER = EndTransactionMarker(ControlType.COMMIT, coordinator_epoch=0)


@dataclass(frozen=True)
class Sent:
    """What a producer wants to have in the log."""

    producer_id: int
    epoch: int
    sequence: int  # relative to what is expected
    count: int
    is_marker: bool = False


def marker(base_offset: int, producer_id: int, epoch: int) -> bytes:
    return build_end_transaction_marker(
        MARKER,
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=0,
        base_offset=base_offset,
    )


def scan(batches: list[bytes], rules: SequenceRules = STRICT) -> SegmentScan:
    log = b"".join(batches)
    first = parse_header(batches[0]).base_offset
    end = parse_header(batches[-1]).next_offset
    return scan_segment(
        log,
        base_offset=first,
        end_offset=end,
        stretches=[(first, end)],
        rules=rules,
        problem_max=100,
    )


def problems_of_segments(segments: list[list[bytes]], rules: SequenceRules = STRICT) -> list[int]:
    """Return the offsets of what is broken, checked segment by segment and then joined."""
    found: list[int] = []
    state = no_spans()
    for batches in filter(None, segments):
        seen = scan(batches, rules)
        found += [one.offset for one in seen.broken]
        state, broken, _ = follow(np.concatenate((state, *seen.spans)), rules, problem_max=100)
        found += [one.offset for one in broken]
    return sorted(found)


sent = st.builds(
    Sent,
    producer_id=st.integers(0, 2),
    epoch=st.integers(0, 2),
    sequence=st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1, 5]),
    count=st.integers(1, 3),
    is_marker=st.sampled_from([False, False, False, True]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(sent, max_size=25), st.lists(st.integers(0, 25), max_size=4))
def test_the_first_break_is_what_the_log_would_have_refused(history, cuts):
    """However the log is cut into segments, the first break is the first batch refused."""
    state = ProducerState(expiration_ms=1 << 40)
    batches: list[bytes] = []
    refused = None
    for one in history:
        offset = parse_header(batches[-1]).next_offset if batches else 0
        if one.is_marker:
            built = marker(offset, one.producer_id, one.epoch)
        else:
            entry = state.entry(one.producer_id)
            expected = entry.last_sequence + 1 if entry and entry.epoch == one.epoch else 0
            # Of an epoch begun by a marker that is the first ever seen, anything may come.
            sequence = max(0, expected + one.sequence)
            built = produced(offset, one.producer_id, one.epoch, sequence, one.count)
        batches.append(built)
        draft = state.stage(AppendOrigin.CLIENT, now_ms=0)
        header = parse_header(built)
        try:
            draft.add(header, offset, MARKER if one.is_marker else None)
        except (OutOfOrderSequence, InvalidProducerEpoch):
            refused = offset
            break
        state.commit(draft, end_offset=header.next_offset)
    edges = sorted({0, len(batches), *(cut for cut in cuts if cut < len(batches))})
    segments = [batches[start:end] for start, end in pairwise(edges)]
    found = problems_of_segments(segments)
    if refused is not None and is_unseen_start(batches):
        assert found in ([], [refused])
    else:
        assert found == ([] if refused is None else [refused])


def is_unseen_start(batches: list[bytes]) -> bool:
    """Whether all that is there before the last batch is markers of its producer and epoch.

    The log knows that it has seen no data; a history may have lost it to retention.
    """
    last = parse_header(batches[-1])
    before = [parse_header(one) for one in batches[:-1]]
    own = [one for one in before if one.producer_id == last.producer_id]
    return bool(own) and all(
        one.is_control and one.producer_epoch == last.producer_epoch for one in own
    )


def test_a_skipped_and_a_repeated_batch_are_told_with_where_they_are():
    scanned = scan([produced(0, 7, 0, 0, 5), produced(5, 7, 0, 7), produced(6, 7, 0, 7)])
    assert [one.problem for one in scanned.broken] == [
        "producer 7 skips sequences in epoch 0: 7 came instead of 5, after the batch at 0",
        "producer 7 repeats sequences in epoch 0: 7 came instead of 8, after the batch at 5",
    ]
    assert [one.offset for one in scanned.broken] == [5, 6]


def test_an_epoch_that_goes_back_is_a_break():
    assert problems_of_segments([[produced(0, 7, 3, 0)], [produced(1, 7, 2, 0)]]) == [1]


def test_sequences_wrap_after_the_greatest():
    top = 2**31 - 1
    assert problems_of_segments([[produced(0, 7, 0, top - 1, 3)], [produced(3, 7, 0, 1)]]) == []
    assert problems_of_segments([[produced(0, 7, 0, top)], [produced(1, 7, 0, 0)]]) == []
    assert problems_of_segments([[produced(0, 7, 0, top)], [produced(1, 7, 0, top)]]) == [1]


def test_a_marker_that_raises_the_epoch_begins_the_sequences_anew():
    raised = [[produced(0, 7, 0, 0, 3)], [marker(3, 7, 1)]]
    assert problems_of_segments([*raised, [produced(4, 7, 1, 0)]]) == []
    assert problems_of_segments([*raised, [produced(4, 7, 1, 3)]]) == [4]
    kept = [[produced(0, 7, 0, 0, 3)], [marker(3, 7, 0)]]
    assert problems_of_segments([*kept, [produced(4, 7, 0, 3)]]) == []
    assert problems_of_segments([*kept, [produced(4, 7, 0, 0)]]) == [4]


def test_compaction_may_remove_batches_but_repeats_none():
    assert problems_of_segments([[produced(0, 7, 0, 4)], [produced(9, 7, 0, 9)]], COMPACTED) == []
    assert problems_of_segments([[produced(0, 7, 0, 4)], [produced(9, 7, 0, 4)]], COMPACTED) == [9]


def test_a_producer_forgotten_for_its_silence_may_begin_anywhere():
    def later(ms: int) -> list[int]:
        return problems_of_segments(
            [[produced(0, 7, 0, 0)], [produced(1, 7, 0, 9, timestamp_ms=ms)]]
        )

    assert later(STRICT.expiration_ms) == []
    assert later(STRICT.expiration_ms - 1) == [1]


def test_only_the_stretches_that_are_read_count():
    log = b"".join([produced(0, 7, 0, 0), produced(1, 7, 0, 5), produced(2, 7, 0, 1)])
    scanned = scan_segment(
        log, base_offset=0, end_offset=3, stretches=[(0, 1), (2, 3)], rules=STRICT, problem_max=100
    )
    assert scanned.broken == ()
    state, broken, _ = follow(np.concatenate(scanned.spans), STRICT, problem_max=100)
    assert (len(state), broken) == (1, [])


def test_offsets_that_no_batch_has_are_gaps():
    log = b"".join([produced(1, -1, -1, -1), produced(4, -1, -1, -1, 2)])
    scanned = scan_segment(
        log, base_offset=0, end_offset=9, stretches=[(0, 9)], rules=STRICT, problem_max=100
    )
    assert [(gap.start_offset, gap.end_offset) for gap in scanned.gaps] == [(0, 1), (2, 4), (6, 9)]
    assert (scanned.batch_count, scanned.record_count, scanned.gap_count) == (2, 3, 3)


@pytest.mark.parametrize("count", [100, 200_000])
def test_many_batches_of_many_producers_keep_a_state_of_one_row_each(count):
    body = produced(0, 0, 0, 0)
    rows = np.tile(np.frombuffer(body, np.uint8), (count, 1))
    numbers = np.arange(count)
    rows[:, 0:8] = numbers.astype(">i8")[:, None].view(np.uint8)
    rows[:, 43:51] = (numbers % 10).astype(">i8")[:, None].view(np.uint8)
    rows[:, 53:57] = (numbers // 10).astype(">i4")[:, None].view(np.uint8)
    scanned = scan_segment(
        rows.tobytes(),
        base_offset=0,
        end_offset=count,
        stretches=[(0, count)],
        rules=STRICT,
        problem_max=100,
    )
    assert (scanned.broken_count, scanned.gap_count, len(scanned.spans[0])) == (0, 0, 10)
    assert set(scanned.spans[0]["last_sequence"]) == {count // 10 - 1}

"""Replicas, tier and served records against each other: each difference and its twin without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)

from tests.chaos.checker import Kind
from tests.chaos.history import FinalLog, Resent
from tests.chaos.stored import (
    StoredLog,
    compare_stored,
    completed,
    find_resent,
    parse_log,
    read_local_log,
)
from tests.support.batches import batch_of


def stored(base_offset: int, *values: str, epoch: int = 0, **fields: Any) -> bytes:
    """Return a batch as a node has it, the same bytes at each call."""
    content = [value.encode() for value in values]
    return batch_of(*content, timestamp_ms=1, base_offset=base_offset, leader_epoch=epoch, **fields)


def final(*values: str) -> FinalLog:
    return FinalLog("t", 0, 0, len(values), tuple(enumerate(values)))


def node(number: int, *batches: bytes) -> StoredLog:
    return parse_log(f"node {number}", b"".join(batches))


def kinds(log: FinalLog, replicas: list[StoredLog], tier: list[StoredLog]) -> list[Kind]:
    return [anomaly.kind for anomaly in compare_stored(log, replicas, tier)]


ONE, TWO = stored(0, "a", "b"), stored(2, "c")


def test_replicas_with_the_same_bytes_agree() -> None:
    assert kinds(final("a", "b", "c"), [node(1, ONE, TWO), node(2, ONE, TWO)], []) == []


def test_a_batch_with_other_bytes_is_a_divergence() -> None:
    other = stored(2, "c", epoch=1)
    found = kinds(final("a", "b", "c"), [node(1, ONE, TWO), node(2, ONE, other)], [])
    assert found == [Kind.DIVERGENCE]


def test_records_batched_otherwise_are_a_divergence() -> None:
    split = node(2, stored(0, "a"), stored(1, "b"))
    assert kinds(final("a", "b"), [node(1, ONE), split], []) == [Kind.DIVERGENCE]


def test_replicas_may_differ_past_the_high_watermark() -> None:
    assert kinds(final("a", "b"), [node(1, ONE, TWO), node(2, ONE, stored(2, "x"))], []) == []
    assert kinds(final("a", "b"), [node(1, ONE, TWO), node(2, ONE)], []) == []


def test_a_replica_that_ends_below_the_high_watermark_is_a_divergence() -> None:
    found = kinds(final("a", "b", "c"), [node(1, ONE, TWO), node(2, ONE)], [])
    assert found == [Kind.DIVERGENCE]


def test_an_empty_replica_is_a_divergence_unless_the_tier_has_it_all() -> None:
    logs = [node(1, ONE), node(2)]
    assert kinds(final("a", "b"), logs, []) == [Kind.DIVERGENCE]
    assert kinds(final("a", "b"), logs, [parse_log("segment", ONE)]) == []


def test_a_replica_whose_start_is_in_the_tier_agrees() -> None:
    segment = parse_log("segment", ONE)
    assert kinds(final("a", "b", "c"), [node(1, ONE, TWO), node(2, TWO)], [segment]) == []


def test_a_tiered_segment_with_other_bytes_differs() -> None:
    segment = parse_log("segment", stored(0, "a", "x"))
    found = kinds(final("a", "b", "c"), [node(1, ONE, TWO)], [segment])
    assert Kind.TIER_DIFFERS in found


def test_a_log_cut_inside_a_batch_cannot_be_read() -> None:
    found = kinds(final("a", "b"), [node(1, ONE, TWO[:-1])], [])
    assert found == [Kind.STORED_DIFFERS]


def test_what_was_collected_of_chains_is_in_the_tier_and_nothing_else_is_missing() -> None:
    log = final("a", "b", "c")
    for chains, tier in (
        (node(1, TWO), [node(2, ONE)]),
        (node(1), [node(2, ONE), node(3, TWO)]),
        (node(1, ONE, TWO), [node(2, ONE)]),
    ):
        assert kinds(log, [completed(chains, tier)], tier) == []
    assert kinds(log, [completed(node(1, TWO), [])], []) == [Kind.STORED_DIFFERS]
    other = stored(0, "a", "x")
    assert Kind.TIER_DIFFERS in kinds(
        log, [completed(node(1, ONE, TWO), [node(2, other)])], [node(2, other)]
    )


def test_objects_that_are_gone_were_tiered_and_hide_nothing_that_comes_before_them() -> None:
    three = stored(3, "d")
    log, end = final("a", "b", "c", "d"), node(1, three)
    collected = replace(node(1, ONE, three), gone=((2, 3),))
    assert kinds(log, [completed(collected, [node(2, TWO)])], [node(2, TWO)]) == []
    whole = [node(2, ONE, TWO)]
    assert kinds(log, [completed(replace(end, gone=((0, 2), (2, 3))), whole)], whole) == []
    assert Kind.STORED_DIFFERS in kinds(log, [completed(collected, [])], [])
    problem = completed(replace(end, gone=((0, 2), (2, 3))), [node(2, TWO)]).problem
    assert problem.startswith("objects with the offsets [0, 2) are gone")
    # Nobody asks for what is below the log start.
    assert not completed(collected, [], log_start_offset=3).problem
    other = stored(0, "a", "x")
    assert Kind.TIER_DIFFERS in kinds(
        log, [completed(collected, [node(2, other, TWO)])], [node(2, other, TWO)]
    )


def test_what_was_served_is_what_is_stored() -> None:
    assert kinds(final("a", "x"), [node(1, ONE)], []) == [Kind.STORED_DIFFERS]
    evicted = [node(1, TWO)]
    assert kinds(final("a", "b", "c"), evicted, [parse_log("segment", ONE)]) == []
    assert kinds(final("a", "b", "c"), evicted, []) == [Kind.STORED_DIFFERS]


def test_a_value_of_two_epochs_of_its_producer_was_sent_again() -> None:
    first, again = stored(0, "a", producer=(7, 0, -1)), stored(1, "a", producer=(7, 1, -1))
    log = final("a", "a")
    assert find_resent(log, [node(1, first, again), node(2, first)]) == [Resent("t", 0, "a")]
    assert find_resent(log, [node(1, first), node(2, first)]) == []
    within = stored(1, "a", producer=(7, 0, -1))
    assert find_resent(log, [node(1, first, within)]) == []
    of_another = stored(1, "a", producer=(8, 1, -1))
    assert find_resent(log, [node(1, first, of_another)]) == []


def test_segments_of_a_directory_are_read_back_to_back(tmp_path: Path) -> None:
    (tmp_path / f"{2:020d}.log").write_bytes(TWO)
    (tmp_path / f"{0:020d}.log").write_bytes(ONE)
    (tmp_path / f"{0:020d}.index").write_bytes(b"not a log")
    log = read_local_log("node 1", tmp_path)
    assert [b.values for b in log.batches] == [("a", "b"), ("c",)]
    assert read_local_log("node 2", tmp_path / "absent").batches == ()


def test_a_marker_has_no_value_of_a_client() -> None:
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlType.COMMIT, coordinator_epoch=130),
        producer_id=1,
        producer_epoch=0,
        timestamp_ms=1,
        base_offset=2,
    )
    log = node(1, ONE, marker)
    assert [batch.values for batch in log.batches] == [("a", "b"), ()]

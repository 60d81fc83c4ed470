"""Runs of a query claim lanes: no two that may be at work at once have the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tidelog import Admin, GroupMetadata, OffsetAndMetadata
from tidelog_spark.sink import lanes
from tidelog_spark.sink.clients import open_producer
from tidelog_spark.sink.errors import CorruptDecision
from tidelog_spark.sink.lanes import (
    CLAIMED_FROM,
    KEPT_MAX,
    PAIR_COUNT,
    claim_lane,
    claimed_lane,
    lane_of,
    next_pair,
)
from tidelog_spark.sink.runs import DecidingRun, owns_attempt
from tidelog_spark.sink.unused import OPEN_STATE

from tests.spark.sink.driven_query import Query
from tests.support.node_process import NodeProcess


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that the tests of this file share."""
    folder: Path = tmp_path_factory.mktemp("sink-lanes")
    with NodeProcess(folder / "node") as node:
        yield node.address


def claimed(query: Query, run_id: str, *, task: int = 0) -> int:
    run = query.in_run(run_id).run
    return asyncio.run(claim_lane(query.options, run, None, task=task))


def test_no_two_of_the_last_runs_have_the_same_lanes():
    claims: list[tuple[str, int]] = []
    for number in range(3 * PAIR_COUNT):
        claims.insert(0, (f"run-{number}", next_pair(claims, f"run-{number}", None)))
    for start in range(2 * PAIR_COUNT):
        assert len({pair for _, pair in claims[start : start + PAIR_COUNT]}) == PAIR_COUNT


@pytest.mark.parametrize("pair", range(PAIR_COUNT))
def test_a_run_never_claims_the_lanes_of_the_last_decision(pair: int) -> None:
    for lane in (lane_of(pair), lane_of(pair) + 1):
        last = DecidingRun("last", "host", lane)
        for latest in range(PAIR_COUNT):
            assert next_pair([("latest", latest)], "run-1", last) != pair
    of_an_earlier_program = DecidingRun("last", "host", 2 * pair % CLAIMED_FROM)
    assert 0 <= next_pair([], "run-1", of_an_earlier_program) < PAIR_COUNT


def test_a_run_keeps_what_it_has_claimed_and_others_get_other_lanes(address: str) -> None:
    query = Query(address)
    first, second = claimed(query, "run-1"), claimed(query, "run-2")
    assert min(first, second) >= CLAIMED_FROM
    assert first | 1 != second | 1
    assert (claimed(query, "run-1"), claimed(query, "run-2")) == (first, second)
    assert asyncio.run(claimed_lane(query.options, query.in_run("run-3").run)) is None


def test_tasks_that_claim_at_once_agree(address: str) -> None:
    query = Query(address)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: claimed(query, f"run-{number % 2}"), range(8)))
    assert found[0::2] == [found[0]] * 4
    assert found[1::2] == [found[1]] * 4
    assert found[0] | 1 != found[1] | 1


def test_tasks_leave_the_claim_to_the_first_one(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each claim that is begun fences the one before, which logs warnings."""
    query = Query(address)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda task: claimed(query, "run-1", task=task), range(8)))
    assert found == [found[0]] * 8
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_task_claims_if_the_first_one_does_not(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "FIRST_TASK_LOOKS", 2)
    query = Query(address)
    later = claimed(query, "run-1", task=7)
    assert later >= CLAIMED_FROM
    assert claimed(query, "run-1") == later


def leave_claim_open(query: Query) -> None:
    """Do what a task does up to the end of a claim's transaction, and die."""
    group_id = f"{query.names.group_id}.lanes"

    async def die() -> None:
        dying = open_producer(query.options, transactional_id=f"{group_id}-claim")
        await dying.start()
        transaction = await dying.transaction().__aenter__()
        offset = OffsetAndMetadata(0, metadata="[]")
        await transaction.send_offsets({lanes._CLAIMS: offset}, GroupMetadata(group_id))
        await dying._cluster.close()
        await dying.close()

    asyncio.run(die())


def test_a_claim_whose_program_has_died_is_ended_by_the_next_one(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "UNSTABLE_TIMEOUT_MS", 200)
    query = Query(address)
    first = claimed(query, "run-1")
    leave_claim_open(query)
    assert claimed(query, "run-2") | 1 != first | 1
    assert claimed(query, "run-1") == first


@pytest.mark.parametrize("timeout_ms", [1, 200])  # No answer comes so soon, or that it is open.
def test_a_failed_batch_is_aborted_although_a_claim_of_another_run_is_open(
    address: str, monkeypatch: pytest.MonkeyPatch, timeout_ms: int
) -> None:
    """Else readers of committed data would wait until the transactions time out."""
    monkeypatch.setattr(lanes, "UNSTABLE_TIMEOUT_MS", timeout_ms)
    query = Query(address)
    assert query.task(0, [1, 2]) is not None  # An attempt that Spark tells nobody of.
    leave_claim_open(query)
    query.abort(0, [])
    with Admin(address).sync() as admin:
        still_open = [
            listed.transactional_id
            for listed in admin.list_transactions(states=[OPEN_STATE])
            if owns_attempt(query.names, listed.transactional_id)
        ]
    assert still_open == []


def test_claims_fit_into_an_offset(address: str) -> None:
    query = Query(address)
    ids = [f"{number:036d}" for number in range(KEPT_MAX + 2)]  # as long as Spark's
    found = [claimed(query, run_id) for run_id in ids]
    assert len(set(found)) == len(ids)
    assert claimed(query, ids[-KEPT_MAX]) == found[-KEPT_MAX]


def test_an_offset_that_is_no_claim_is_told(address: str) -> None:
    query = Query(address)
    group_id = f"{query.names.group_id}.lanes"
    with Admin(address).sync() as admin:
        admin.alter_group_offsets(group_id, {lanes._CLAIMS: OffsetAndMetadata(0, metadata="x")})
    with pytest.raises(CorruptDecision, match=group_id):
        claimed(query, "run-1")

"""The texts of a decision, and the runs that make them."""

from __future__ import annotations

import base64
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.producing.prepared import PreparedTransaction
from tidelog_spark.sink.clients import SinkNames
from tidelog_spark.sink.decision import TEXT_SIZE_MAX, Decision, WrittenTask
from tidelog_spark.sink.errors import CorruptDecision
from tidelog_spark.sink.runs import (
    LANE_COUNT,
    DecidingRun,
    QueryRun,
    attempt_id,
    owns_attempt,
)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**6),
            st.integers(0, 20),
            st.integers(1, 2**40),
            st.integers(0, 2**50),
            st.integers(0, 32766),
            st.none() | st.integers(0, LANE_COUNT - 1),
        ),
        unique_by=lambda task: task[0],
        max_size=300,
    ),
    st.none() | st.builds(DecidingRun, st.text(), st.text(), st.integers(0, LANE_COUNT - 1)),
)
def test_a_decision_of_any_size_comes_back_from_its_texts(tasks, run):
    names = SinkNames("q")
    decision = Decision(
        5,
        len(tasks),
        {
            task: WrittenTask(
                task,
                attempt,
                rows,
                PreparedTransaction(
                    attempt_id(names, lane, task, attempt), producer_id, epoch, True
                ),
                lane,
            )
            for task, attempt, rows, producer_id, epoch, lane in tasks
        },
        run,
    )
    texts = decision.texts()
    assert all(len(text) <= TEXT_SIZE_MAX for text in texts)
    count, _, first = texts[0].partition(":")
    assert int(count) == len(texts)
    assert Decision.from_text("".join([first, *texts[1:]]), names) == decision


def test_an_offset_that_is_no_decision_is_told():
    with pytest.raises(CorruptDecision, match="group 'tidelog-spark-q'"):
        Decision.from_text("nothing", SinkNames("q"))


def test_a_decision_of_an_earlier_program_is_read():
    """It had one transactional id for an attempt, whichever run it was of."""
    document = {"batch": 3, "tasks": 2, "written": [[0, 1, 10, 7, 4, 1]]}
    text = base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()
    decision = Decision.from_text(text, SinkNames("q"))
    assert decision.run is None
    prepared = PreparedTransaction("tidelog-spark-q-0-1", 7, 4, True)
    assert decision.tasks == {0: WrittenTask(0, 1, 10, prepared, None)}
    assert owns_attempt(SinkNames("q"), prepared.transactional_id)


def test_a_run_changes_its_lane_with_each_decision_and_never_takes_that_of_the_last_one():
    """Even if the last decision was made by another run with the same pair of lanes."""
    names = SinkNames("q")
    for number in range(300):
        run = QueryRun(names, f"run-{number}")
        pair = {run.lane(None), run.lane(None) ^ 1}
        assert pair <= set(range(LANE_COUNT))
        for lane in pair:
            assert run.lane(DecidingRun(run.run_id, "host", lane)) == lane ^ 1
            other = run.lane(DecidingRun("other", "host", lane))
            assert {other, other ^ 1}.isdisjoint(pair)
            assert 0 <= other < LANE_COUNT


def test_attempts_are_known_by_their_query_and_lane():
    names = SinkNames("q")
    own = attempt_id(names, 17, 3, 0)
    assert owns_attempt(names, own)
    assert owns_attempt(names, own, 17)
    assert not owns_attempt(names, own, 7)
    assert not owns_attempt(names, names.deciding_id)
    assert not owns_attempt(SinkNames("q-17"), f"tidelog-spark-q-17-3-0-{1}-{2}x")

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
from tidelog_spark.sink.errors import CorruptDecision, UnknownDecisionFormat
from tidelog_spark.sink.runs import (
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
            st.none() | st.integers(0, 600),
        ),
        unique_by=lambda task: task[0],
        max_size=300,
    ),
    st.none() | st.builds(DecidingRun, st.text(), st.text(), st.integers(0, 600)),
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
    decision = Decision.from_text(packed(document), SinkNames("q"))
    assert decision.run is None
    prepared = PreparedTransaction("tidelog-spark-q-0-1", 7, 4, True)
    assert decision.tasks == {0: WrittenTask(0, 1, 10, prepared, None)}
    assert owns_attempt(SinkNames("q"), prepared.transactional_id)


def packed(document: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()


def test_a_decision_of_a_later_program_is_refused_by_its_format():
    document = {"format": 3, "batch": 3, "written": {"0": "something else"}}
    with pytest.raises(UnknownDecisionFormat, match=r"has format 3, .* up to 2:") as caught:
        Decision.from_text(packed(document), SinkNames("q"))
    assert (caught.value.found, caught.value.known) == (3, 2)
    assert "later version" in caught.value.hint
    for text in (packed([1]), packed({**document, "format": "x"})):
        with pytest.raises(CorruptDecision):
            Decision.from_text(text, SinkNames("q"))


def test_a_decision_without_a_number_of_its_format_is_read():
    """So was written by the first programs with lanes."""
    run = ["run-1", "host", 5]
    document = {"batch": 3, "tasks": 2, "run": run, "written": [[0, 1, 10, 7, 4, 1, 5]]}
    decision = Decision.from_text(packed(document), SinkNames("q"))
    assert decision.run == DecidingRun("run-1", "host", 5)
    assert decision.tasks[0].prepared.transactional_id == "tidelog-spark-q-5-0-1"


def test_a_run_changes_its_lane_with_each_decision_of_its_own():
    run = QueryRun(SinkNames("q"), "run-1")
    assert run.lane_after(None) is None
    assert run.lane_after(DecidingRun("other", "host", 6)) is None
    assert run.lane_after(DecidingRun("run-1", "host", 6)) == 7
    assert run.lane_after(DecidingRun("run-1", "host", 7)) == 6


def test_attempts_are_known_by_their_query_and_lane():
    names = SinkNames("q")
    own = attempt_id(names, 17, 3, 0)
    assert owns_attempt(names, own)
    assert owns_attempt(names, own, 17)
    assert not owns_attempt(names, own, 7)
    assert not owns_attempt(names, names.deciding_id)
    assert not owns_attempt(SinkNames("q-17"), f"tidelog-spark-q-17-3-0-{1}-{2}x")

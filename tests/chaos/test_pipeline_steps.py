"""What is told of the pipeline's steps when something is wrong."""

from __future__ import annotations

import time

from tests.chaos.checker import Anomaly, Kind
from tests.chaos.history import STEPS_KEPT_MAX, History, PartitionKey, PipelineStep, Step
from tests.chaos.pipeline_steps import AROUND_MAX, SHOWN_MAX, StepNotes, steps_about
from tests.chaos.report import summarize
from tests.chaos.scene import Scene

SOURCE = PartitionKey("source", 2)


def a_history(transactions: int, records: int) -> History:
    """A session that reads the partition, so many records a transaction."""
    history = History()
    notes = StepNotes(Scene("", 1, history, time.monotonic()), "k.0")
    notes.note(Step.ASSIGNED, [(*SOURCE, -1), ("source", 0, 7)], "generation 3")
    for number in range(transactions):
        offsets = range(number * records, (number + 1) * records)
        notes.transaction(number, [(*SOURCE, offset) for offset in offsets])
    notes.transaction(transactions, [("source", 0, 7)])
    return history


def report(history: History, *anomalies: Anomaly) -> str:
    return summarize(history, anomalies, title="", recovered={})


def test_a_transaction_commits_the_offsets_behind_the_records_that_it_is_made_from() -> None:
    notes = StepNotes(Scene("", 1, history := History(), time.monotonic()), "k.0")
    records = [("a", 0, 5), ("a", 1, 9), ("a", 0, 6), ("a", 0, 9)]
    assert sorted(notes.transaction(4, records)) == [("a", 0, 10), ("a", 1, 10)]
    read, sent = history.steps
    assert (read.step, read.number, sorted(read.places)) == (
        Step.READ,
        4,
        [("a", 0, 5), ("a", 1, 9)],
    )
    assert (sent.step, sorted(sent.places)) == (Step.SENT, [("a", 0, 10), ("a", 1, 10)])


def test_the_report_tells_the_steps_of_a_partition_with_an_anomaly_and_no_others() -> None:
    history = a_history(transactions=2, records=10)
    wrong = Anomaly(Kind.NOT_EXACTLY_ONCE, "source-2 to out", "twice", (SOURCE, 3))
    assert "steps of the pipeline" not in report(history)
    assert "steps of the pipeline" not in report(history, Anomaly(Kind.STALLED, "k", ""))
    told = report(history, wrong).splitlines()
    first = told.index("steps of the pipeline about source-2 3")
    assert [line.split(" s  ")[1] for line in told[first + 1 :]] == [
        "k.0 is assigned source-2 -1 generation 3",
        "k.0 transaction 0 reads source-2 0",
        "k.0 transaction 0 commits source-2 10",
        "k.0 transaction 1 reads source-2 10",
        "k.0 transaction 1 commits source-2 20",
    ]


def test_only_steps_around_the_readings_in_question_are_reported() -> None:
    history = a_history(transactions=1_000, records=2)
    steps = steps_about(history.steps, SOURCE, 1_001)
    assert [step.places[0][2] for step in steps if step.step is Step.READ][AROUND_MAX // 2] == 1_000
    assert len(steps) == 2 * AROUND_MAX + 1
    assert len(steps_about(history.steps, SOURCE, 10_000)) == SHOWN_MAX


def test_the_oldest_steps_go_when_there_are_very_many() -> None:
    history = History()
    history.steps.extend([PipelineStep("k.0", 0.0, Step.READ, 0, ())] * STEPS_KEPT_MAX)
    newest = PipelineStep("k.0", 1.0, Step.READ, 1, ())
    history.add(newest)
    assert len(history.steps) == STEPS_KEPT_MAX
    assert history.steps[-1] is newest

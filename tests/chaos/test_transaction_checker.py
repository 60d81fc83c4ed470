"""Every anomaly of transactions, by hand: a history that has it and its twin that does not."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.checker import Kind
from tests.chaos.history import (
    CommittedLog,
    CommittedPoll,
    Event,
    FinalLog,
    History,
    Outcome,
    Pipeline,
    PipelineStep,
    Step,
    Transaction,
    load,
    save,
)
from tests.chaos.transaction_checker import check_transactions

TOPIC = "t"


def wrote(
    *values: str, outcome: Outcome = Outcome.OK, number: int = 0, session: str = "w"
) -> Transaction:
    """A transaction; a value names its partition: ``0a`` goes to partition 0."""
    placed = tuple((TOPIC, int(value[0]), value) for value in values)
    return Transaction(session, number, placed, number, number + 0.5, outcome)


def log(partition: int, *records: tuple[int, str], open_from: int | None = None) -> CommittedLog:
    end = records[-1][0] + 2 if records else 0  # the marker
    stable = end if open_from is None else open_from
    return CommittedLog(TOPIC, partition, stable, end, records)


def poll(*records: tuple[int, str], session: str = "r") -> CommittedPoll:
    return CommittedPoll(session, 1.0, tuple((TOPIC, 0, o, value) for o, value in records))


def kinds(*events: Event) -> list[Kind]:
    history = History()
    for event in events:
        history.add(event)
    return [anomaly.kind for anomaly in check_transactions(history)]


def test_a_committed_transaction_is_there_in_all_its_partitions() -> None:
    both = wrote("0a", "1a")
    assert kinds(both, log(0, (0, "0a")), log(1, (0, "1a"))) == []
    assert kinds(both, log(0, (0, "0a")), log(1)) == [Kind.LOST_TRANSACTION]
    assert kinds(both, log(0, (0, "0a"))) == [Kind.NO_FINAL_LOG]


def test_an_aborted_transaction_is_nowhere() -> None:
    aborted = wrote("0a", "1a", outcome=Outcome.FAIL)
    assert kinds(aborted, log(0), log(1)) == []
    assert kinds(aborted, log(0, (0, "0a")), log(1)) == [Kind.ABORTED_READ]


def test_a_transaction_without_an_answer_is_all_there_or_not_at_all() -> None:
    unknown = wrote("0a", "1a", outcome=Outcome.INFO)
    assert kinds(unknown, log(0), log(1)) == []
    assert kinds(unknown, log(0, (0, "0a")), log(1, (0, "1a"))) == []
    assert kinds(unknown, log(0, (0, "0a")), log(1)) == [Kind.PARTIAL_COMMIT]


def test_a_record_is_there_once_and_was_written() -> None:
    assert kinds(wrote("0a"), log(0, (0, "0a"), (3, "0a"))) == [Kind.DUPLICATE]
    assert kinds(log(0, (0, "0a"))) == [Kind.UNKNOWN_VALUE]


def test_nothing_is_open_when_all_is_over() -> None:
    assert kinds(wrote("0a"), log(0, (0, "0a"), open_from=2)) == []
    assert kinds(wrote("0a"), log(0, (0, "0a"), open_from=1)) == [Kind.HANGING_TRANSACTION]


def test_a_session_keeps_its_order() -> None:
    first, second = wrote("0a", "0b"), wrote("0c", number=1)
    assert kinds(first, second, log(0, (0, "0a"), (1, "0b"), (3, "0c"))) == []
    assert kinds(first, second, log(0, (0, "0c"), (2, "0a"), (3, "0b"))) == [Kind.REORDERED]
    other = wrote("0c", session="v")
    assert kinds(first, other, log(0, (0, "0c"), (2, "0a"), (3, "0b"))) == []


def test_readers_see_what_is_committed_and_nothing_else() -> None:
    committed, aborted = wrote("0a"), wrote("0b", outcome=Outcome.FAIL, number=1)
    unknown = wrote("0c", outcome=Outcome.INFO, number=2)
    written = (committed, aborted, unknown, log(0, (0, "0a")))
    assert kinds(*written, poll((0, "0a"))) == []
    assert kinds(*written, poll((0, "0a"), (2, "0b"))) == [Kind.ABORTED_READ]
    assert kinds(*written, poll((0, "0a"), (4, "0c"))) == [Kind.LOST_READ]


def test_readers_get_every_record_once_and_in_order() -> None:
    written = (wrote("0a", "0b", "0c"), log(0, (0, "0a"), (1, "0b"), (2, "0c")))
    assert kinds(*written, poll((0, "0a"), (1, "0b")), poll((2, "0c"))) == []
    assert kinds(*written, poll((0, "0a")), poll((2, "0c"))) == [Kind.SKIPPED_POLL]
    assert kinds(*written, poll((0, "0a"), (1, "0b"), (1, "0b"))) == [Kind.NON_MONOTONIC_POLL]
    assert kinds(*written, poll((0, "0a"), (1, "0b")), poll((0, "0a"), session="s")) == []


def piped(*made: tuple[int, str], outcome: Outcome = Outcome.OK) -> list[Event]:
    """A source of two records, and what a pipeline made of it."""
    values = [value for _, value in made]
    placed = tuple((TOPIC, 0, value) for value in values)
    return [
        FinalLog("source", 0, 0, 2, ((0, "x"), (1, "y"))),
        Pipeline("source", TOPIC),
        Transaction("p", 0, placed, 0, 1, outcome),
        log(0, *made),
    ]


def test_a_pipeline_makes_one_of_each_in_order() -> None:
    assert kinds(*piped((0, "x>1"), (1, "y>1"))) == []
    assert kinds(*piped((0, "x>1"))) == [Kind.NOT_EXACTLY_ONCE]
    assert kinds(*piped((0, "x>1"), (1, "y>1"), (2, "y>2"))) == [Kind.NOT_EXACTLY_ONCE]
    assert kinds(*piped((0, "x>1"), (1, "y>1"), (2, "z>1"))) == [Kind.NOT_EXACTLY_ONCE]
    assert kinds(*piped((0, "y>1"), (1, "x>2"))) == [Kind.REORDERED]


def test_what_stands_in_the_source_twice_is_made_twice() -> None:
    source, *rest = piped((0, "x>1"), (1, "y>1"), (2, "x>2"))
    twice = FinalLog("source", 0, 0, 3, ((0, "x"), (1, "y"), (2, "x")))
    assert kinds(twice, *rest) == []
    assert kinds(source, *rest) == [Kind.NOT_EXACTLY_ONCE]


def step(what: Step, offset: int, number: int = -1, session: str = "p") -> PipelineStep:
    return PipelineStep(session, float(number), what, number, (("source", 0, offset),))


def test_a_member_whose_position_is_gone_from_the_log_is_reported() -> None:
    made = piped((0, "x>1"), (1, "y>1"))
    assert kinds(*made, step(Step.ASSIGNED, 0), step(Step.REVOKED, -1)) == []
    assert kinds(*made, step(Step.RESET, 2)) == [Kind.LOST_POSITION]


def test_a_history_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    history = History()
    for event in (*piped((0, "x>1"), (1, "y>1")), poll((0, "x>1")), step(Step.READ, 0, 1)):
        history.add(event)
    save(history, tmp_path / "history.jsonl")
    assert load(tmp_path / "history.jsonl") == history

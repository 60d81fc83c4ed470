"""Every anomaly, by hand: a history that has it and its twin that does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.chaos.checker import Kind, Rules, check
from tests.chaos.history import (
    Fault,
    FinalLog,
    History,
    Note,
    Outcome,
    Poll,
    Positioned,
    Resent,
    Write,
    load,
    save,
)

TOPIC, PARTITION = "t", 0


def write(number: int, offset: int = -1, *, session: str = "p1", **changes: object) -> Write:
    """An idempotent write; acknowledged if it has an offset."""
    outcome = Outcome.INFO if offset < 0 else Outcome.OK
    made = Write(
        session=session,
        topic=TOPIC,
        partition=PARTITION,
        number=number,
        value=f"{session}/{number}",
        is_idempotent=True,
        is_ordered=True,
        may_resend=False,
        acks=-1,
        invoked_s=number,
        completed_s=number + 0.5,
        outcome=outcome,
        offset=offset,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def final(*values: str, start: int = 0, end: int | None = None) -> FinalLog:
    records = tuple((start + index, value) for index, value in enumerate(values))
    end_offset = start + len(values) if end is None else end
    return FinalLog(TOPIC, PARTITION, start, end_offset, records)


def poll(*records: tuple[int, str], session: str = "c1", group: str = "", at_s: float = 1) -> Poll:
    return Poll(session, group, at_s, tuple((TOPIC, PARTITION, o, value) for o, value in records))


def kinds(
    *events: Write | Poll | Positioned | FinalLog | Resent, rules: Rules | None = None
) -> list[Kind]:
    history = History()
    for event in events:
        history.add(event)
    return [anomaly.kind for anomaly in check(history, rules or Rules())]


def test_what_was_acknowledged_and_is_there_is_in_order() -> None:
    assert kinds(write(0, 0), write(1, 1), final("p1/0", "p1/1")) == []


def test_an_acknowledged_write_that_is_not_there_is_lost() -> None:
    assert kinds(write(0, 0), write(1, 1), final("p1/0")) == [Kind.LOST_WRITE]


def test_a_write_without_an_answer_may_be_there_or_not() -> None:
    assert kinds(write(0), write(1), final("p1/1")) == []


def test_a_write_to_the_leader_alone_may_be_lost_where_the_rules_say_so() -> None:
    plain = write(0, 0, acks=1, is_idempotent=False)
    assert kinds(plain, final()) == [Kind.LOST_WRITE]
    assert kinds(plain, final(), rules=Rules(is_acks_one_kept=False)) == []
    assert kinds(write(0, 0), final(), rules=Rules(is_acks_one_kept=False)) == [Kind.LOST_WRITE]


def test_a_write_that_asked_for_no_answer_promises_nothing() -> None:
    unasked = write(0, acks=0, is_idempotent=False, outcome=Outcome.OK)
    assert kinds(unasked, final()) == []


def test_a_write_that_failed_for_certain_must_not_be_there() -> None:
    failed = write(0, outcome=Outcome.FAIL)
    assert kinds(failed, final()) == []
    assert kinds(failed, final("p1/0")) == [Kind.FAILED_WRITE_PRESENT]


def test_an_idempotent_value_is_in_the_log_once() -> None:
    assert kinds(write(0), final("p1/0", "p1/0")) == [Kind.DUPLICATE]


def test_what_a_client_sent_again_under_another_epoch_is_its_own_doing() -> None:
    twice, again = final("p1/0", "p1/0"), Resent(TOPIC, PARTITION, "p1/0")
    assert kinds(write(0, may_resend=True), twice, again) == []
    assert kinds(write(0, may_resend=True), twice) == [Kind.DUPLICATE]
    assert kinds(write(0), twice, again) == [Kind.DUPLICATE]


def test_a_value_without_idempotence_may_stand_twice() -> None:
    assert kinds(write(0, 1, is_idempotent=False), final("p1/0", "p1/0")) == []


def test_a_value_that_nobody_wrote_is_reported() -> None:
    assert kinds(final("stranger")) == [Kind.UNKNOWN_VALUE]


def test_a_value_in_another_partition_than_its_own_is_reported() -> None:
    elsewhere = write(0, partition=1, outcome=Outcome.INFO)
    assert kinds(elsewhere, FinalLog(TOPIC, 1, 0, 0, ()), final("p1/0")) == [Kind.UNKNOWN_VALUE]


def test_an_acknowledged_offset_that_has_another_value_has_changed() -> None:
    found = kinds(write(0, 0), write(1), final("p1/1", "p1/0"))
    assert Kind.CHANGED_OFFSET in found
    assert Kind.TWO_OFFSETS in found


def test_an_offset_that_was_read_with_another_value_has_changed() -> None:
    events = write(0), write(1), final("p1/0", "p1/1")
    assert kinds(*events, poll((0, "p1/0"), (1, "p1/1"))) == []
    assert kinds(*events, poll((0, "p1/1"))) == [Kind.CHANGED_OFFSET, Kind.TWO_OFFSETS]


def test_two_readers_must_agree_on_an_offset_even_if_it_is_gone() -> None:
    first, second = poll((0, "p1/0")), poll((0, "p1/1"), session="c2")
    found = kinds(write(0), write(1), final(), first, second)
    assert found == [Kind.CHANGED_OFFSET, Kind.LOST_READ]


def test_an_idempotent_value_that_was_read_elsewhere_has_two_offsets() -> None:
    events = write(0), write(1), final("p1/0", "p1/1")
    assert Kind.TWO_OFFSETS in kinds(*events, poll((5, "p1/1")))
    plain = write(0, is_idempotent=False), write(1, is_idempotent=False), final("p1/1", "p1/0")
    assert Kind.TWO_OFFSETS not in kinds(*plain, poll((5, "p1/1")))


def test_a_session_stands_in_the_order_of_its_calls() -> None:
    assert kinds(write(0), write(1), final("p1/1", "p1/0")) == [Kind.REORDERED]


def test_gaps_in_a_session_are_no_disorder() -> None:
    assert kinds(write(0), write(1), write(2), final("p1/0", "p1/2")) == []


def test_sessions_may_stand_in_any_order() -> None:
    assert kinds(write(0), write(0, session="p2"), final("p2/0", "p1/0")) == []


def test_a_straggler_without_idempotence_is_no_disorder_but_an_acknowledged_one_is() -> None:
    early = write(0, is_idempotent=False)
    late = write(1, 0, is_idempotent=False)
    assert kinds(early, late, final("p1/1", "p1/0")) == []
    answered = write(0, 1, is_idempotent=False)
    assert kinds(answered, late, final("p1/1", "p1/0")) == [Kind.REORDERED]
    unordered = replace(answered, is_ordered=False), replace(late, is_ordered=False)
    assert kinds(*unordered, final("p1/1", "p1/0")) == []


def test_a_copy_that_comes_late_is_no_disorder() -> None:
    events = write(0, 0, is_idempotent=False), write(1, 1, is_idempotent=False)
    assert kinds(*events, final("p1/0", "p1/1", "p1/0")) == []


def test_what_was_read_stays() -> None:
    assert kinds(write(0), final("p1/0"), poll((0, "p1/0"))) == []
    assert kinds(write(0), final(), poll((0, "p1/0"))) == [Kind.LOST_READ]


def test_what_was_read_may_leave_through_the_log_start() -> None:
    assert kinds(write(0), write(1), final("p1/1", start=1), poll((0, "p1/0"))) == []


def test_the_log_has_no_holes() -> None:
    holed = FinalLog(TOPIC, PARTITION, 0, 3, ((0, "p1/0"), (2, "p1/1")))
    assert kinds(write(0), write(1), holed) == [Kind.HOLE]
    assert kinds(write(0), final("p1/0", end=2)) == [Kind.HOLE]


def test_polls_go_up_by_one() -> None:
    events = write(0), write(1), write(2), final("p1/0", "p1/1", "p1/2")
    assert kinds(*events, poll((0, "p1/0")), poll((1, "p1/1"), (2, "p1/2"))) == []
    assert kinds(*events, poll((0, "p1/0")), poll((2, "p1/2"))) == [Kind.SKIPPED_POLL]
    back = poll((0, "p1/0"), (1, "p1/1")), poll((1, "p1/1"))
    assert kinds(*events, *back) == [Kind.NON_MONOTONIC_POLL]


def test_polls_of_different_sessions_have_nothing_to_do_with_each_other() -> None:
    events = write(0), write(1), final("p1/0", "p1/1")
    assert kinds(*events, poll((1, "p1/1")), poll((0, "p1/0"), session="c2")) == []


def test_a_consumer_may_go_anywhere_when_it_is_positioned_again() -> None:
    events = write(0), write(1), final("p1/0", "p1/1")
    again = Positioned("c1", 2, ((TOPIC, PARTITION),))
    assert kinds(*events, poll((1, "p1/1")), again, poll((0, "p1/0"))) == []
    other = Positioned("c1", 2, ((TOPIC, 7),))
    found = kinds(*events, poll((1, "p1/1")), other, poll((0, "p1/0")))
    assert found == [Kind.NON_MONOTONIC_POLL]


def test_a_group_gets_every_record_by_one_member_or_another() -> None:
    events = write(0), write(1), write(2), final("p1/0", "p1/1", "p1/2")
    first = poll((0, "p1/0"), session="g1", group="g")
    second = poll((1, "p1/1"), (2, "p1/2"), session="g2", group="g")
    skipping = poll((2, "p1/2"), session="g2", group="g")
    assert kinds(*events, first, second) == []
    assert kinds(*events, first, skipping) == [Kind.GROUP_SKIPPED]


def test_a_group_may_get_a_record_twice() -> None:
    events = write(0), final("p1/0")
    twice = (poll((0, "p1/0"), session=name, group="g") for name in ("g1", "g2"))
    assert kinds(*events, *twice) == []


def test_a_partition_without_a_final_log_is_reported() -> None:
    assert kinds(write(0, 0)) == [Kind.NO_FINAL_LOG]


def test_a_saved_history_is_read_back_as_it_was(tmp_path: Path) -> None:
    history = History()
    positioned = Positioned("c1", 0.5, ((TOPIC, PARTITION),))
    events = write(0, 0), poll((0, "p1/0")), positioned, final("p1/0")
    for event in (*events, Fault("kill", "node 1", 1.0, 2.0), Note(3.0, "admin", "topic made")):
        history.add(event)
    save(history, tmp_path / "history.jsonl")
    assert load(tmp_path / "history.jsonl") == history

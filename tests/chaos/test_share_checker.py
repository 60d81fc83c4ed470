"""The share group's checker finds each kind of wrong, and nothing in a history that is right."""

from __future__ import annotations

from tests.chaos.checker import Kind
from tests.chaos.history import FinalLog, History, Outcome, Settled, Shared
from tests.chaos.share_checker import check_sharing

TOPIC = "t"


def shared(session: str, asked_s: float, count: int, *offsets: int, value: str = "") -> Shared:
    records = tuple((offset, value or f"v{offset}") for offset in offsets)
    return Shared(session, asked_s, asked_s + 0.1, TOPIC, 0, count, records)


def settled(
    session: str,
    said_s: float,
    first: int,
    last: int,
    *,
    is_accepted: bool = True,
    outcome: Outcome = Outcome.OK,
) -> Settled:
    return Settled(session, TOPIC, 0, first, last, is_accepted, said_s, said_s + 0.1, outcome)


def kinds(*events: Shared | Settled, end: int = 3) -> list[Kind]:
    history = History()
    history.add(FinalLog(TOPIC, 0, 0, end, tuple((n, f"v{n}") for n in range(end))))
    for event in events:
        history.add(event)
    return [anomaly.kind for anomaly in check_sharing(history, TOPIC)]


def test_records_that_are_delivered_released_and_accepted_are_right() -> None:
    assert not kinds(
        shared("a", 1, 1, 0, 1, 2),
        settled("a", 2, 0, 1),
        settled("a", 2, 2, 2, is_accepted=False),
        shared("b", 3, 2, 2),
        settled("b", 4, 2, 2),
    )


def test_a_record_that_nobody_got_is_found() -> None:
    assert kinds(shared("a", 1, 1, 0, 2)) == [Kind.NOT_SHARED]


def test_another_topic_is_not_looked_at() -> None:
    history = History()
    history.add(FinalLog("other", 0, 0, 1, ((0, "v"),)))
    assert not check_sharing(history, TOPIC)


def test_an_accepted_record_that_comes_again_is_found() -> None:
    first = shared("a", 1, 1, 0, 1, 2)
    assert kinds(first, settled("a", 2, 1, 1), shared("b", 3, 2, 1)) == [Kind.SHARED_AGAIN]


def test_a_record_may_come_to_who_asked_before_it_was_accepted() -> None:
    first = shared("a", 1, 1, 0, 1, 2)
    assert not kinds(first, settled("a", 2, 1, 1), shared("b", 2.05, 2, 1))


def test_what_was_accepted_without_an_answer_may_come_again() -> None:
    first = shared("a", 1, 1, 0, 1, 2)
    assert not kinds(first, settled("a", 2, 1, 1, outcome=Outcome.INFO), shared("b", 9, 1, 1))


def test_a_delivery_count_that_goes_back_is_found() -> None:
    first = shared("a", 1, 3, 0, 1, 2)
    released = settled("a", 2, 0, 2, is_accepted=False)
    assert kinds(first, released, shared("b", 3, 3, 1)) == [Kind.DELIVERY_COUNT]
    assert not kinds(first, released, shared("b", 3, 4, 1))


def test_a_count_that_is_not_stored_may_begin_again() -> None:
    """The leader that delivered the record has died before anyone said anything of it."""
    assert not kinds(shared("a", 1, 2, 0, 1, 2), shared("b", 3, 2, 1))


def test_a_value_that_is_not_the_logs_is_found() -> None:
    odd = shared("a", 1, 1, 0, value="odd")
    assert kinds(odd, shared("a", 1, 1, 1, 2)) == [Kind.CHANGED_OFFSET]

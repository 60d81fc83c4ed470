"""The queue against a plain dictionary that is looked through."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tidelog_core import due_queue
from tidelog_core.due_queue import DueQueue

KEYS = st.integers(0, 30)
TIMES = st.integers(0, 100)


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: DueQueue[int] = DueQueue()
        self.model: dict[int, float] = {}

    @rule(key=KEYS, due=TIMES)
    def put(self, key: int, due: int) -> None:
        self.queue.put(key, due)
        self.model[key] = due

    @rule(key=KEYS, due=TIMES)
    def put_earlier(self, key: int, due: int) -> None:
        self.queue.put_earlier(key, due)
        self.model[key] = min(due, self.model.get(key, due))

    @rule(key=KEYS)
    def discard(self, key: int) -> None:
        self.queue.discard(key)
        self.model.pop(key, None)

    @rule(now=TIMES)
    def take(self, now: int) -> None:
        taken = self.queue.take(now)
        times = [self.model.pop(key) for key in taken]
        assert times == sorted(times)
        assert all(due <= now for due in times)
        assert all(due > now for due in self.model.values())

    @invariant()
    def is_like_the_model(self) -> None:
        assert len(self.queue) == len(self.model)
        assert {key for key in range(31) if key in self.queue} == self.model.keys()
        assert self.queue.first_due == min(self.model.values(), default=None)
        assert len(self.queue._heap) <= 2 * len(self.model) + due_queue.STALE_ENTRIES_MIN


QueueMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestDueQueue = QueueMachine.TestCase


def test_what_is_put_again_and_again_takes_no_more_room() -> None:
    queue: DueQueue[int] = DueQueue()
    for due in range(10_000):
        queue.put(due % 10, due)
        queue.put(10, due % 2)
    assert len(queue._heap) <= 22 + due_queue.STALE_ENTRIES_MIN
    assert queue.take(10_000) == [10, *range(10)]


def test_keys_of_one_time_come_in_the_order_in_which_they_were_put() -> None:
    queue: DueQueue[str] = DueQueue()
    for key in "cab":
        queue.put(key, 1.0)
    assert queue.take(1.0) == ["c", "a", "b"]

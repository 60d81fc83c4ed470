"""The fetcher's side of fetch sessions, against a model of a node with Kafka's rules."""

from __future__ import annotations

from random import Random

import pytest
from tidelog_core.errors import ErrorCode
from tidelog_core.fetch_epochs import EPOCH_MAX, FINAL_EPOCH
from tidelog_core.fetch_session import (
    GROWTH_RETRY_SECONDS,
    FetcherSession,
    FetchPlan,
)

from tests.support.clock import Clock

NONE = ErrorCode.none
Fetch = FetchPlan[str, int]
Answer = tuple[ErrorCode, int, list[str]]
"""Error, session id, the partitions answered."""


def a_session(
    *, new_max: int = 100, named_max: int = 100, clock: Clock | None = None
) -> FetcherSession[str, int]:
    time = clock or Clock()
    return FetcherSession(new_max=new_max, named_max=named_max, clock_s=lambda: time.now_ms / 1000)


class Kept:
    """What the model keeps of one session."""

    def __init__(self, partitions: dict[str, int]) -> None:
        self.partitions = partitions
        self.epoch = 1
        self.unheard = set(partitions)  # of which the fetcher must hear in the next answer


class ModelNode:
    """Answers fetches as Kafka's ``FetchManager`` does; records are left out."""

    def __init__(self, random: Random, *, slots: int = 2) -> None:
        self.random = random
        self.slots = slots
        self.sessions: dict[int, Kept] = {}
        self._last_id = 0

    def answer(self, fetch: Fetch) -> Answer:
        if fetch.session_epoch <= 0:
            return self._full(fetch)
        kept = self.sessions.get(fetch.session_id)
        if kept is None:
            return ErrorCode.fetch_session_id_not_found, 0, []
        if kept.epoch != fetch.session_epoch:
            return ErrorCode.invalid_fetch_session_epoch, 0, []
        for key, wanted in fetch.named:
            if key not in kept.partitions:
                kept.unheard.add(key)
            kept.partitions[key] = wanted
        for key in fetch.forgotten:
            assert key in kept.partitions, "only what is there is forgotten"
            assert key not in dict(fetch.named), "not in the fetch that names it"
            del kept.partitions[key]
            kept.unheard.discard(key)
        if not kept.partitions:
            del self.sessions[fetch.session_id]
            return NONE, 0, []
        kept.epoch = kept.epoch % EPOCH_MAX + 1
        heard, kept.unheard = sorted(kept.unheard), set()
        others = [key for key in kept.partitions if key not in heard]
        news = self.random.sample(others, self.random.randint(0, min(2, len(others))))
        return NONE, fetch.session_id, heard + news

    def evict(self) -> None:
        """Let go of one session."""
        if self.sessions:
            del self.sessions[self.random.choice(list(self.sessions))]

    def _full(self, fetch: Fetch) -> Answer:
        assert not fetch.forgotten
        self.sessions.pop(fetch.session_id, None)
        named = dict(fetch.named)
        if fetch.session_epoch < 0 or len(self.sessions) >= self.slots:
            return NONE, 0, list(named)
        self._last_id += 1
        self.sessions[self._last_id] = kept = Kept(named)
        kept.unheard = set()
        return NONE, self._last_id, list(named)


def established(*keys: str, **options: int) -> tuple[FetcherSession[str, int], ModelNode]:
    """Return a session in which these are wanted from offset 0 on, and its node."""
    session, node = a_session(**options), ModelNode(Random(1))
    for key in keys:
        session.want(key, 0)
    exchange(session, node)
    return session, node


def exchange(session: FetcherSession[str, int], node: ModelNode) -> Fetch:
    """Let one fetch be answered; return it."""
    fetch = session.next_fetch()
    assert fetch is not None
    assert session.on_answer(*node.answer(fetch))
    return fetch


def test_the_first_fetch_names_all_and_asks_for_a_session_without_waiting() -> None:
    session = a_session()
    assert session.next_fetch() is None
    session.want("a", 1)
    session.want("b", 2)
    fetch = session.next_fetch()
    assert fetch == FetchPlan(0, 0, [("a", 1), ("b", 2)], [], may_wait=False)
    assert not session.is_established
    assert session.on_answer(NONE, 7, ["b", "a"])
    assert session.is_established


def test_later_fetches_name_what_has_changed() -> None:
    session, _ = established("a", "b", "c")
    assert session.next_fetch() == FetchPlan(1, 1, [], [], may_wait=True)
    assert session.on_answer(NONE, 1, ["b"])
    session.want("b", 5)
    session.want("d", 9)
    session.forget("c")
    session.want("a", 0)  # as before
    assert session.next_fetch() == FetchPlan(1, 2, [("b", 5), ("d", 9)], ["c"], may_wait=True)
    assert [session.last_asked(key) for key in "abcd"] == [0, 5, None, 9]


def test_a_change_that_is_taken_back_is_not_told() -> None:
    session, _ = established("a", "b")
    session.want("a", 1)
    session.want("a", 0)
    session.want("c", 1)
    session.forget("c")
    session.forget("never wanted")
    assert not session.has_news
    fetch = session.next_fetch()
    assert fetch is not None
    assert not fetch.named
    assert not fetch.forgotten


def test_what_is_forgotten_and_wanted_again_begins_as_new() -> None:
    session, node = established("a", "b")
    session.forget("a")
    session.want("a", 0)
    assert exchange(session, node) == FetchPlan(1, 1, [], ["a"], may_wait=False)
    assert session.has_news
    assert exchange(session, node) == FetchPlan(1, 2, [("a", 0)], [], may_wait=True)


def test_what_is_forgotten_wanted_and_forgotten_again_is_only_forgotten() -> None:
    session, node = established("a", "b")
    session.forget("a")
    session.want("a", 0)
    session.forget("a")
    assert exchange(session, node) == FetchPlan(1, 1, [], ["a"], may_wait=True)
    assert not session.has_news


def test_many_partitions_are_told_in_parts_and_only_the_last_part_may_wait() -> None:
    keys = [f"p{index}" for index in range(7)]
    session, node = a_session(new_max=3), ModelNode(Random(1))
    for key in keys:
        session.want(key, 0)
    fetches = [exchange(session, node) for _ in range(4)]
    assert [[key for key, _ in fetch.named] for fetch in fetches] == [
        keys[:3],
        keys[3:6],
        keys[6:],
        [],
    ]
    assert [fetch.may_wait for fetch in fetches] == [False, False, True, True]


def test_all_that_are_to_be_forgotten_are_at_once() -> None:
    """The node would count the fetcher as one that still has what the others say."""
    keys = [f"p{index}" for index in range(7)]
    session, node = established(*keys, new_max=7)
    session._new_max = 2
    for key in keys[:5]:
        session.forget(key)
    session.want("new", 1)
    assert exchange(session, node) == FetchPlan(1, 1, [("new", 1)], keys[:5], may_wait=True)


def test_more_to_forget_than_a_fetch_may_name_begins_another_session() -> None:
    keys = [f"p{index}" for index in range(7)]
    session, node = established(*keys, new_max=7, named_max=7)
    session._named_max = 4
    under_way = session.next_fetch()
    for key in keys[:5]:
        session.forget(key)
    assert under_way is not None
    assert session.next_fetch() is None  # A full fetch comes alone.
    assert session.on_answer(*node.answer(under_way))
    fetch = exchange(session, node)
    assert fetch == FetchPlan(1, 0, [("p5", 0), ("p6", 0)], [], may_wait=False)
    assert list(node.sessions) == [2]


def test_all_that_have_moved_are_named_whatever_is_new() -> None:
    """The node would send the same records again."""
    keys = [f"p{index}" for index in range(7)]
    session, node = established(*keys, new_max=7, named_max=9)
    session._new_max = 3
    new = [f"n{index}" for index in range(4)]
    for key in new:
        session.want(key, 0)
    for key in keys:
        session.want(key, 1)
    named = [[key for key, _ in exchange(session, node).named] for _ in range(3)]
    assert named == [keys[:6] + new[:3], [keys[6], new[3]], []]


def test_records_of_many_hot_partitions_are_sent_once() -> None:
    keys = [f"p{index}" for index in range(1_000)]
    session, node = a_session(new_max=250, named_max=10_000), ModelNode(Random(1))
    session_id = appended = sent = 0
    for key in keys:
        session.want(key, 0)
    while session.has_news:
        exchange(session, node)
    (session_id,) = node.sessions
    for end in range(1, 6):
        appended += len(keys)
        while True:
            fetch = session.next_fetch()
            assert fetch is not None
            node.answer(fetch)
            offsets = node.sessions[session_id].partitions
            found = [key for key in keys if offsets[key] < end]
            assert session.on_answer(NONE, session_id, found)
            sent += sum(end - offsets[key] for key in found)
            for key in found:
                session.want(key, end)
            if not found:
                break
    assert sent == appended


def test_a_node_without_sessions_is_told_everything_each_time() -> None:
    session, node = a_session(new_max=2), ModelNode(Random(1), slots=0)
    for key in "abc":
        session.want(key, 0)
    assert [key for key, _ in exchange(session, node).named] == ["a", "b"]
    for _ in range(2):
        fetch = exchange(session, node)
        assert fetch == FetchPlan(0, 0, [("a", 0), ("b", 0), ("c", 0)], [], may_wait=True)
        assert not session.is_established
    session.want("b", 1)
    assert exchange(session, node).named == [("a", 0), ("c", 0), ("b", 1)]
    node.slots = 1
    exchange(session, node)
    assert exchange(session, node) == FetchPlan(1, 1, [], [], may_wait=True)


def test_a_node_that_lets_no_session_grow_is_told_everything_at_once() -> None:
    """Or it would be asked for a session that grows, again and again."""
    session, node = a_session(new_max=2, named_max=4), ModelNode(Random(1))
    for key in "abc":
        session.want(key, 0)
    exchange(session, node)
    assert session.next_fetch() == FetchPlan(1, 1, [("c", 0)], [], may_wait=True)
    assert not session.on_answer(ErrorCode.fetch_session_id_not_found, 0, [])
    node.slots = 0
    fetch = exchange(session, node)
    assert fetch == FetchPlan(0, 0, [("a", 0), ("b", 0), ("c", 0)], [], may_wait=True)


def test_a_session_that_cannot_grow_to_all_is_not_asked_for_before_there_may_be_room() -> None:
    """Or the same part of it would be opened again and again, and none grows."""
    clock = Clock()
    session = a_session(new_max=1, named_max=2, clock=clock)
    node = ModelNode(Random(1))
    for key in "abc":
        session.want(key, 0)
    exchange(session, node)
    session.next_fetch()
    assert not session.on_answer(ErrorCode.fetch_session_id_not_found, 0, [])
    fetches = [exchange(session, node) for _ in range(3)]
    assert [fetch.session_epoch for fetch in fetches] == [FINAL_EPOCH] * 3
    assert [[key for key, _ in fetch.named] for fetch in fetches] == [
        ["a", "b"],
        ["c", "a"],
        ["b", "c"],
    ]
    clock.now_ms += int(GROWTH_RETRY_SECONDS * 1000)
    assert exchange(session, node).session_epoch == 0
    assert session.is_established


def test_the_last_fetch_ends_the_session() -> None:
    session, _ = established("a")
    session.next_fetch()
    assert session.last_fetch() == FetchPlan(1, FINAL_EPOCH, [], [], may_wait=False)
    assert session.last_fetch() is None
    assert session.next_fetch() == FetchPlan(0, 0, [("a", 0)], [], may_wait=False)


def test_too_many_partitions_for_a_node_without_sessions_have_their_turns() -> None:
    session = a_session(new_max=1, named_max=2)
    node = ModelNode(Random(1), slots=0)
    for key in "abc":
        session.want(key, 0)
    exchange(session, node)
    named = [[key for key, _ in exchange(session, node).named] for _ in range(3)]
    assert named == [["a", "b"], ["c", "a"], ["b", "c"]]


@pytest.mark.parametrize(
    ("error", "session_id"),
    [
        (ErrorCode.fetch_session_id_not_found, 0),
        (ErrorCode.invalid_fetch_session_epoch, 1),
        (ErrorCode.fetch_session_topic_id_error, 1),
        (ErrorCode.unknown_server_error, 1),
    ],
)
def test_an_error_of_the_session_makes_the_next_fetch_full(
    error: ErrorCode, session_id: int
) -> None:
    session, _ = established("a", "b")
    session.want("a", 1)
    session.next_fetch()
    assert not session.on_answer(error, 0, [])
    assert session.last_asked("b") is None
    expected = FetchPlan(session_id, 0, [("b", 0), ("a", 1)], [], may_wait=False)
    assert session.next_fetch() == expected


def test_a_lost_answer_makes_the_next_fetch_full_and_closes_the_old_session() -> None:
    session, node = established("a")
    session.next_fetch()
    session.restart()
    assert exchange(session, node) == FetchPlan(1, 0, [("a", 0)], [], may_wait=False)
    assert list(node.sessions) == [2]


@pytest.mark.parametrize("answered", [[], ["a"], ["a", "a"], ["a", "b", "c"], ["a", "c"]])
def test_a_full_answer_must_have_what_was_asked_for(answered: list[str]) -> None:
    session = a_session()
    session.want("a", 0)
    session.want("b", 0)
    session.next_fetch()
    assert not session.on_answer(NONE, 7, answered)
    fetch = session.next_fetch()
    assert fetch is not None
    assert (fetch.session_id, fetch.session_epoch) == (7, 0)


def test_an_incremental_answer_must_have_only_what_is_in_the_session() -> None:
    session, _ = established("a")
    session.want("b", 0)
    session.next_fetch()
    assert not session.on_answer(NONE, 1, ["a", "c"])
    assert not session.is_established


def test_an_answer_of_another_session_is_not_used() -> None:
    session, _ = established("a")
    session.next_fetch()
    assert not session.on_answer(NONE, 2, ["a"])


def test_a_node_that_closes_the_session_with_a_good_answer_gets_a_full_fetch() -> None:
    session, _ = established("a")
    session.next_fetch()
    assert session.on_answer(NONE, 0, ["a"])
    assert session.last_asked("a") == 0
    assert session.next_fetch() == FetchPlan(0, 0, [("a", 0)], [], may_wait=False)


def test_a_second_fetch_may_follow_while_one_is_under_way() -> None:
    session, node = established("a", "b")
    first = session.next_fetch()
    session.want("c", 0)
    session.forget("a")
    second = session.next_fetch()
    assert first is not None
    assert second == FetchPlan(1, 2, [("c", 0)], ["a"], may_wait=True)
    node.answer(first)
    assert session.on_answer(NONE, 1, ["a"])  # forgotten by now, which is no reason to doubt it
    assert session.on_answer(*node.answer(second))
    assert session.is_established


def test_epochs_go_on_at_one_after_the_highest() -> None:
    session, _ = established("a")
    session._epoch = EPOCH_MAX
    for expected in (EPOCH_MAX, 1):
        fetch = session.next_fetch()
        assert fetch is not None
        assert fetch.session_epoch == expected
        assert session.on_answer(NONE, 1, [])


def test_exactly_what_is_given_is_wanted() -> None:
    session, node = established("a", "b")
    session.replace({"b": 1, "c": 2})
    fetch = exchange(session, node)
    assert (fetch.named, fetch.forgotten) == ([("b", 1), ("c", 2)], ["a"])
    session.replace({"b": 1, "c": 2})
    assert not session.has_news


@pytest.mark.parametrize("seed", range(60))
def test_fetcher_and_node_agree_whatever_is_lost_or_mixed_up(seed: int) -> None:
    """After each answer that is used the node has what the fetcher has told it, no more."""
    random = Random(seed)
    session = a_session(new_max=random.choice([1, 2]), named_max=random.choice([2, 5, 100]))
    node = ModelNode(random, slots=random.choice([0, 1, 2, 3]))
    keys = [f"p{index}" for index in range(random.choice([1, 3, 8]))]
    wanted: dict[str, int] = {}
    heard: set[str] = set()  # answered since they came into the session

    def change() -> None:
        key = random.choice(keys)
        if random.random() < 0.3:
            session.forget(key)
            wanted.pop(key, None)
        else:
            wanted[key] = random.randint(0, 3)
            session.want(key, wanted[key])

    def fetch_once(*, is_faulty: bool) -> None:
        fault = random.random() if is_faulty else 1.0
        fetch = session.next_fetch()
        assert (fetch is None) == (not wanted)
        if fetch is None:
            return
        if fault < 0.1:
            session.restart()  # the fetch itself is lost
            return
        if fault < 0.15 and node.sessions:  # another fetcher uses this one's id
            stolen = random.choice(list(node.sessions))
            node.answer(FetchPlan(stolen, node.sessions[stolen].epoch, [], [], may_wait=True))
        if fault < 0.2:
            node.evict()
        error, session_id, answered = node.answer(fetch)
        if 0.2 < fault < 0.3:
            session.restart()
            return
        if 0.3 < fault < 0.35:
            answered.append("never asked for")
        if not session.on_answer(error, session_id, answered):
            heard.clear()
            assert not session.is_established
            return
        if fetch.session_epoch == 0:
            heard.clear()
        heard.difference_update(fetch.forgotten)
        heard.update(answered)
        if session_id:
            kept = node.sessions[session_id].partitions
            assert kept == {key: session.last_asked(key) for key in kept}, f"seed {seed}"
            assert all(session.last_asked(key) is None for key in keys if key not in kept)
            assert kept.keys() == heard, f"seed {seed}: the fetcher knows of all of them"

    for _ in range(random.randint(5, 60)):
        for _ in range(random.randint(0, 3)):
            change()
        fetch_once(is_faulty=True)
    for _ in range(4 * len(keys) + 4):
        fetch_once(is_faulty=False)
    if wanted and node.slots > 0 and session.is_established:
        assert session._sent == wanted, f"seed {seed}"
        assert not session.has_news

"""Which clock may decide what is too old."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.retention.clock_rule import (
    OWN_STEADY_CLOCK,
    WITNESS_AGE_MS_MAX,
    ClockBounds,
    ClockReading,
    Judgement,
    Witness,
    first_judgement,
    judge_clock,
)

DAY_MS = 86_400_000
MINUTE_MS = 60_000
T0_MS = 1_700_000_000_000
BOUNDS = ClockBounds(ahead_max_ms=10 * MINUTE_MS, settle_ms=60 * MINUTE_MS)
LATE_MS_MAX = 5_000  # between a clock's word and its being heard


@dataclass
class Scene:
    """A process, its clocks, and others that it hears. True time begins at 0."""

    at_ms: int = 0
    off_ms: int = 0  # how far the process's wall clock is ahead
    heard: dict[str, Witness] = field(default_factory=dict)
    judgement: Judgement = field(init=False)

    def __post_init__(self) -> None:
        self.judgement = first_judgement(self.reading())

    def reading(self) -> ClockReading:
        return ClockReading(T0_MS + self.at_ms + self.off_ms, self.at_ms)

    def hear(
        self, name: str, *, off_ms: int = 0, late_ms: int = 0, is_independent: bool = False
    ) -> None:
        """Hear a clock; what it says is counted as said when it was asked, a little before."""
        asked_ms = self.at_ms - late_ms
        self.heard[name] = Witness(name, T0_MS + self.at_ms + off_ms, asked_ms, is_independent)

    def may_expire(self) -> bool:
        self.judgement = judge_clock(self.reading(), self.heard.values(), self.judgement, BOUNDS)
        return self.judgement.doubt is None


def test_a_clock_days_ahead_of_any_other_decides_nothing() -> None:
    for is_independent in (True, False):
        scene = Scene()
        scene.hear("other", is_independent=is_independent)
        assert scene.may_expire()
        scene.off_ms = 8 * DAY_MS
        assert not scene.may_expire()
        doubt = scene.judgement.doubt
        assert doubt is not None
        assert (doubt.ahead_ms, doubt.ahead_of) == (8 * DAY_MS, "other")
        scene.off_ms = 0
        assert scene.may_expire()


def test_it_is_the_same_for_a_process_that_begins_with_a_wrong_clock() -> None:
    scene = Scene(off_ms=8 * DAY_MS)
    scene.hear("other")
    assert not scene.may_expire()


def test_clocks_that_are_a_little_apart_or_behind_are_no_reason() -> None:
    scene = Scene(off_ms=BOUNDS.ahead_max_ms)
    scene.hear("other", is_independent=True)
    assert scene.may_expire()
    scene.off_ms = -30 * DAY_MS
    assert scene.may_expire()


def test_an_independent_clock_has_the_last_word() -> None:
    """A node whose clock is days behind keeps nobody from removing what is too old."""
    scene = Scene()
    scene.hear("other", off_ms=-8 * DAY_MS)
    assert not scene.may_expire()
    scene.hear("aws", is_independent=True)
    assert scene.may_expire()


def test_a_clock_that_is_set_right_is_believed_where_an_independent_one_agrees() -> None:
    scene = Scene(off_ms=-20 * DAY_MS)
    assert scene.may_expire()
    scene.off_ms = 0
    assert not scene.may_expire()
    scene.hear("aws", is_independent=True)
    assert scene.may_expire()


@pytest.mark.parametrize("agreeing", [(), ("another node of this machine",)])
def test_a_jump_that_nobody_confirms_is_doubted_for_a_time_only(agreeing: tuple[str, ...]) -> None:
    scene = Scene()
    assert scene.may_expire()
    scene.off_ms = 8 * DAY_MS
    since_ms = scene.at_ms
    while not scene.may_expire():
        doubt = scene.judgement.doubt
        assert doubt is not None
        assert doubt.ahead_of == OWN_STEADY_CLOCK
        scene.at_ms += MINUTE_MS
        for name in agreeing:
            scene.hear(name, off_ms=scene.off_ms)
    assert scene.at_ms - since_ms == BOUNDS.settle_ms
    assert scene.may_expire()


def test_a_jump_that_is_taken_back_is_forgotten() -> None:
    scene = Scene()
    for _ in range(100):
        scene.off_ms = 8 * DAY_MS
        assert not scene.may_expire()
        scene.at_ms += BOUNDS.settle_ms - MINUTE_MS
        scene.off_ms = 0
        assert scene.may_expire()
        scene.at_ms += MINUTE_MS


def test_a_clock_that_runs_fast_is_doubted_only_by_others() -> None:
    scene = Scene()
    for _ in range(1000):
        scene.at_ms += MINUTE_MS
        scene.off_ms += MINUTE_MS
        assert scene.may_expire()
    scene.hear("other")
    assert not scene.may_expire()


def test_a_machine_that_was_stopped_is_not_held_back_for_ever() -> None:
    """Its steady clock stood still, and what it heard before counts from a wrong moment."""
    scene = Scene()
    scene.hear("other")
    scene.off_ms = 8 * DAY_MS  # as it looks from the inside
    waited_ms = 0
    while not scene.may_expire():
        scene.at_ms += MINUTE_MS
        waited_ms += MINUTE_MS
    assert waited_ms <= WITNESS_AGE_MS_MAX + BOUNDS.settle_ms + MINUTE_MS


OFFSETS_MS = st.one_of(
    st.just(0),
    st.integers(-2 * BOUNDS.ahead_max_ms, 2 * BOUNDS.ahead_max_ms),
    st.integers(-30 * DAY_MS, 30 * DAY_MS),
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2 * WITNESS_AGE_MS_MAX),  # how long nothing happens
        st.one_of(st.none(), OFFSETS_MS),  # what the clock is set to
        st.sets(st.sampled_from(["aws", "peer-1", "peer-2"])),  # who is heard
        st.integers(0, LATE_MS_MAX),
    ),
    max_size=20,
)


@given(STEPS)
def test_honest_clocks_hold_a_wrong_one_back_and_never_a_right_one(
    steps: list[tuple[int, int | None, set[str], int]],
) -> None:
    scene = Scene()
    for wait_ms, off_ms, names, late_ms in steps:
        scene.at_ms += wait_ms
        scene.off_ms = scene.off_ms if off_ms is None else off_ms
        for name in names:
            scene.hear(name, late_ms=late_ms, is_independent=name == "aws")
        allowed = scene.may_expire()
        fresh = {
            witness.name
            for witness in scene.heard.values()
            if scene.at_ms - witness.heard_steady_ms <= WITNESS_AGE_MS_MAX
        }
        if fresh and scene.off_ms > BOUNDS.ahead_max_ms + LATE_MS_MAX:
            assert not allowed
        if "aws" in fresh and scene.off_ms <= BOUNDS.ahead_max_ms:
            assert allowed


@given(STEPS, st.sets(st.sampled_from(["peer-1", "peer-2"])))
def test_a_right_clock_waits_no_longer_than_it_takes_to_settle(
    steps: list[tuple[int, int | None, set[str], int]], others: set[str]
) -> None:
    """Whatever it was set to before, and whoever is heard: all of them are honest."""
    scene = Scene()
    for wait_ms, off_ms, names, late_ms in steps:
        scene.at_ms += wait_ms
        scene.off_ms = scene.off_ms if off_ms is None else off_ms
        for name in names:
            scene.hear(name, late_ms=late_ms, is_independent=name == "aws")
        scene.may_expire()
    scene.off_ms = 0
    right_from_ms = scene.at_ms
    while not scene.may_expire():
        scene.at_ms += MINUTE_MS
        for name in others:
            scene.hear(name)
    assert scene.at_ms - right_from_ms <= BOUNDS.settle_ms + MINUTE_MS

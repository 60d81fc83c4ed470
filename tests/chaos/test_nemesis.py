"""Lanes of faults against a cluster of nothing: what is begun is ended, and pauses are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from tests.chaos.faults import Faults, Undo
from tests.chaos.history import Fault, History
from tests.chaos.nemesis import Nemesis
from tests.chaos.plan import FaultKind, PlannedFault


class SleepClock:
    """Time that passes when somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        real_sleep = asyncio.sleep

        async def sleep(seconds: float) -> None:
            until_s = self.now_s + seconds
            await real_sleep(0)
            self.now_s = max(self.now_s, until_s)

        monkeypatch.setattr("tests.chaos.nemesis.asyncio.sleep", sleep)


class Recorder:
    """Takes faults as ``Faults`` does and notes when; ending one takes ``slowness_s`` more."""

    def __init__(self, clock: SleepClock, slowness_s: float = 0.0) -> None:
        self.on: set[int] = set()
        self.begun_s: list[float] = []
        self._clock = clock
        self._slowness_s = slowness_s

    async def begin(self, fault: PlannedFault) -> Undo:
        if fault.kind is FaultKind.RESTART:
            raise RuntimeError("the node does not start")
        self.begun_s.append(self._clock.now_s)
        self.on.add(id(fault))

        async def undo() -> str:
            self._clock.now_s += self._slowness_s
            self.on.remove(id(fault))
            return ""

        return undo

    async def undo_all(self) -> None:
        assert not self.on


def lock(
    at_s: float, duration_s: float = 1.0, kind: FaultKind = FaultKind.STORE_LOCK
) -> PlannedFault:
    return PlannedFault(kind, at_s, duration_s, (1,), 0.5)


def run(
    recorder: Recorder,
    clock: SleepClock,
    *lanes: Sequence[PlannedFault],
    leaves_nothing_out: bool = False,
) -> list[Fault]:
    history = History()
    nemesis = Nemesis(
        cast("Faults", recorder),
        lanes,
        history,
        lambda: clock.now_s,
        leaves_nothing_out=leaves_nothing_out,
    )
    asyncio.run(nemesis.run())
    return history.faults


def test_faults_come_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SleepClock(monkeypatch)
    recorder = Recorder(clock)
    assert len(run(recorder, clock, [lock(1), lock(4), lock(9)])) == 3
    assert recorder.begun_s == [1, 4, 9]


def test_a_lane_that_falls_behind_keeps_its_pauses_and_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SleepClock(monkeypatch)
    recorder = Recorder(clock, slowness_s=5)
    # Each takes six seconds instead of one; two seconds of pause are planned between them.
    assert len(run(recorder, clock, [lock(1 + 3 * n) for n in range(10)])) == 4
    assert recorder.begun_s == [1, 9, 17, 25]


def test_a_lane_that_must_do_everything_falls_behind_and_does_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SleepClock(monkeypatch)
    recorder = Recorder(clock, slowness_s=50)
    lane = [lock(1 + 3 * n) for n in range(10)]
    assert len(run(recorder, clock, lane, leaves_nothing_out=True)) == 10
    assert recorder.begun_s[:3] == [1, 54, 107]


def test_what_is_on_is_ended_when_another_lane_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SleepClock(monkeypatch)
    recorder = Recorder(clock)
    with pytest.raises(ExceptionGroup):
        run(recorder, clock, [lock(1, 50)], [lock(2, kind=FaultKind.RESTART)])
    assert recorder.begun_s == [1]
    assert not recorder.on

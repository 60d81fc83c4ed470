"""What sessions of the pipeline do step by step, and which of it is told of an anomaly."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tests.chaos.history import PartitionKey, PipelineStep, Step
from tests.chaos.scene import Scene

AROUND_MAX = 12  # steps with the partition, before and after those in question
SHOWN_MAX = 60


class StepNotes:
    """Notes the steps of one session."""

    def __init__(self, scene: Scene, session: str) -> None:
        self._scene = scene
        self._session = session

    def note(
        self,
        step: Step,
        places: Iterable[tuple[str, int, int]],
        detail: str = "",
        *,
        number: int = -1,
    ) -> None:
        """Note a step with these partitions; ``number`` is the transaction's that it is of."""
        told = tuple(places)
        if told:
            at_s = self._scene.clock_s()
            self._scene.history.add(PipelineStep(self._session, at_s, step, number, told, detail))

    def transaction(
        self, number: int, records: Iterable[tuple[str, int, int]]
    ) -> list[tuple[str, int, int]]:
        """Note a transaction of these records; return the places behind them, to be committed."""
        firsts: dict[tuple[str, int], int] = {}
        nexts: dict[tuple[str, int], int] = {}
        for topic, partition, offset in records:
            firsts.setdefault((topic, partition), offset)
            nexts[topic, partition] = offset + 1
        places = [(*name, offset) for name, offset in nexts.items()]
        self.note(Step.READ, [(*name, offset) for name, offset in firsts.items()], number=number)
        self.note(Step.SENT, places, number=number)
        return places


def steps_about(
    steps: Collection[PipelineStep], source: PartitionKey, offset: int
) -> list[PipelineStep]:
    """Return the steps with the partition from shortly before the offset was first read.

    To shortly after it was last read, ``SHOWN_MAX`` at most. All where nobody has read it.
    """
    mine = sorted((step for step in steps if source in _offsets(step)), key=lambda step: step.at_s)
    ends = {
        (step.session, step.number): _offsets(step)[source]
        for step in mine
        if step.step is Step.SENT
    }
    found = [
        index
        for index, step in enumerate(mine)
        if step.step is Step.READ
        and _offsets(step)[source] <= offset < ends.get((step.session, step.number), offset + 1)
    ]
    first, last = (found[0], found[-1]) if found else (0, len(mine))
    return mine[max(0, first - AROUND_MAX) : last + AROUND_MAX + 1][:SHOWN_MAX]


def tell_steps(steps: Sequence[PipelineStep], source: PartitionKey) -> list[str]:
    """Return a line for each step, about this partition alone."""
    lines = []
    for step in steps:
        number = "" if step.number < 0 else f" transaction {step.number}"
        told = f"{step.at_s:9.3f} s  {step.session}{number} {step.step} {source}"
        lines.append(f"{told} {_offsets(step)[source]} {step.detail}".rstrip())
    return lines


def _offsets(step: PipelineStep) -> dict[PartitionKey, int]:
    return {PartitionKey(topic, partition): offset for topic, partition, offset in step.places}

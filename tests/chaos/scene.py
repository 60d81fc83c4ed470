"""What every client of a run shares: the clock, the history, which partitions there are."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tests.chaos.history import History, Note, Outcome, PartitionKey, Poll, Write


@dataclass(slots=True)
class Scene:
    """Shared by all clients; a session in a process of its own has one that follows it."""

    bootstrap: str
    seed: int
    history: History
    started_s: float  # by the machine's monotonic clock
    partitions: list[PartitionKey] = field(default_factory=list)  # only ever longer
    transactional: list[PartitionKey] = field(default_factory=list)  # written in transactions only
    piped: list[PartitionKey] = field(default_factory=list)  # where the pipeline writes
    is_writing: bool = True
    is_reading: bool = True
    goal: dict[PartitionKey, int] = field(default_factory=dict)  # end offsets; set at the end
    open_writes: dict[str, Write] = field(default_factory=dict)  # by value

    def clock_s(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self.started_s

    def chance(self, name: str) -> random.Random:
        """Return a source of chance of this client's own."""
        return random.Random(f"{self.seed}:{name}")

    def topics(self) -> list[str]:
        """Return the topics that are written without transactions."""
        return sorted({name.topic for name in self.partitions})

    def note(self, about: str, text: str) -> None:
        """Put a line into the history."""
        self.history.add(Note(self.clock_s(), about, text))


class Numbers:
    """Counts a session's records, partition by partition, and makes their values."""

    def __init__(self, session: str, chance: random.Random) -> None:
        self._session = session
        self._chance = chance
        self._next: dict[PartitionKey, int] = {}

    def take(self, name: PartitionKey) -> tuple[int, str]:
        """Return the next number and a value that no other record of the run has."""
        number = self._next.get(name, 0)
        self._next[name] = number + 1
        padding = "~" * int(self._chance.expovariate(1 / 60))
        return number, f"{self._session}:{name}:{number}{padding}"


def invoke(
    scene: Scene,
    session: str,
    name: PartitionKey,
    numbers: Numbers,
    *,
    acks: int,
    once: bool,
    is_ordered: bool,
    may_resend: bool = False,
) -> Write:
    """Note that a record is about to be written; nothing is known of it yet."""
    number, value = numbers.take(name)
    write = Write(
        session=session,
        topic=name.topic,
        partition=name.partition,
        number=number,
        value=value,
        is_idempotent=once,
        is_ordered=is_ordered,
        may_resend=may_resend,
        acks=acks,
        invoked_s=scene.clock_s(),
        completed_s=-1.0,
        outcome=Outcome.INFO,
    )
    scene.open_writes[value] = write
    return write


def complete(
    scene: Scene, write: Write, outcome: Outcome, *, offset: int = -1, problem: str = ""
) -> None:
    """Note what became of the record."""
    if scene.open_writes.pop(write.value, None) is None:
        return
    scene.history.add(
        replace(
            write,
            completed_s=scene.clock_s(),
            outcome=outcome,
            offset=offset,
            problem=problem,
        )
    )


def close_writes(scene: Scene) -> None:
    """Whatever has no outcome by now has none."""
    for write in list(scene.open_writes.values()):
        complete(scene, write, Outcome.INFO, problem="no outcome by the end of the run")


class Progress:
    """How far readers that share a position have come, to know when they have it all."""

    def __init__(self) -> None:
        self._next: dict[PartitionKey, int] = {}

    def note(self, poll: Poll) -> None:
        """Take what a poll handed out."""
        for topic, number, offset, _ in poll.records:
            name = PartitionKey(topic, number)
            self._next[name] = max(self._next.get(name, 0), offset + 1)

    def reach(self, name: PartitionKey, next_offset: int) -> None:
        """Take note that everything below the offset is done."""
        self._next[name] = max(self._next.get(name, 0), next_offset)

    def missing(self, goal: dict[PartitionKey, int]) -> dict[PartitionKey, str]:
        """Return the partitions that are not read to their end, and how far they are."""
        return {
            name: f"{self._next.get(name, 0)} of {end}"
            for name, end in goal.items()
            if self._next.get(name, 0) < end
        }


class Delivered:
    """Which records a share group was given, in any order, to know when it had them all."""

    def __init__(self) -> None:
        self._offsets: dict[PartitionKey, set[int]] = {}

    def add(self, name: PartitionKey, offsets: Iterable[int]) -> None:
        """Take note of records of a partition."""
        self._offsets.setdefault(name, set()).update(offsets)

    def missing(self, goal: dict[PartitionKey, int]) -> dict[PartitionKey, str]:
        """Return the partitions of which records below their end are left, and how many were had."""
        counts = {
            # A copy, because the threads of clients add to the set.
            name: sum(offset < end for offset in tuple(self._offsets.get(name, ())))
            for name, end in goal.items()
        }
        return {
            name: f"{counts[name]} of {end}" for name, end in goal.items() if counts[name] < end
        }


async def pause(seconds: float, is_wanted: Callable[[], bool]) -> None:
    """Sleep, but not long past the moment when nobody wants us any more."""
    end = time.monotonic() + seconds
    left = seconds
    while is_wanted() and left > 0:
        await asyncio.sleep(min(left, 0.2))
        left = end - time.monotonic()

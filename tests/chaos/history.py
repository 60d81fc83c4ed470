"""What was done to the cluster and what it answered: the only thing the checker looks at.

A history is kept as JSON lines, one event a line with its kind first, so that a run can
be checked again without being run again. Times are seconds since the run began.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

HISTORY = "history.jsonl"  # in the directory of a run
UNKNOWN_OFFSET = -1
STEPS_KEPT_MAX = 200_000  # of the pipeline; the oldest go
PIPED = ">"  # between a value and what a pipeline adds to it


class PartitionKey(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Outcome(StrEnum):
    """What a producer knows of a write, in Jepsen's words."""

    OK = "ok"  # acknowledged
    FAIL = "fail"  # certainly not in the log, and never will be
    INFO = "info"  # nobody knows


@dataclass(frozen=True, slots=True)
class Write:
    """One record that a producer session tried to write, once its outcome was known.

    ``number`` counts the records of one session to one partition, from 0: the order in
    which they were handed to the client.
    """

    session: str
    topic: str
    partition: int
    number: int
    value: str  # unique in the run
    is_idempotent: bool
    is_ordered: bool  # the client promises that acknowledged records keep their order
    may_resend: bool  # the client begins epochs, and then sends what is unanswered again
    acks: int  # -1: all
    invoked_s: float
    completed_s: float
    outcome: Outcome
    offset: int = UNKNOWN_OFFSET  # a leader need not know it any more for a duplicate
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Positioned:
    """A consumer session starts (again) somewhere in these partitions, no one says where."""

    session: str
    at_s: float
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll handed out: (topic, partition, offset, value), in this order."""

    session: str
    group: str  # empty: assigned by hand
    at_s: float
    records: tuple[tuple[str, int, int, str], ...]


@dataclass(frozen=True, slots=True)
class FinalLog:
    """A partition as a fresh consumer read it after all faults had ended."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int  # exclusive: the high watermark
    records: tuple[tuple[int, str], ...]  # offset, value; in the order they were handed out


@dataclass(frozen=True, slots=True)
class Resent:
    """A value that stands in several batches of one producer, each of another producer epoch.

    Within an epoch it is the log that keeps a value from being written twice. Between
    epochs only the client can.
    """

    topic: str
    partition: int
    value: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one producer session wrote in a transaction, once its outcome was known.

    OK: it was told that it is committed. FAIL: told that it is aborted, or never asked for
    the commit and replaced by the next session. INFO: nobody knows.
    """

    session: str
    number: int  # of the session's, from 0
    values: tuple[tuple[str, int, str], ...]  # topic, partition, value; in the order sent
    invoked_s: float
    completed_s: float
    outcome: Outcome
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Every record of one topic is to become one record of another, in transactions.

    What it becomes begins with its value and ``PIPED``.
    """

    source: str
    target: str


class Step(StrEnum):
    """What a session of the pipeline does, and what the offsets of its places mean."""

    ASSIGNED = "is assigned"  # the committed offset, negative where there is none
    REVOKED = "gives back"
    LOST = "has lost"
    RESET = "has no position in"  # where it was
    READ = "reads"  # the first offset read for a transaction
    SENT = "commits"  # the offset that the transaction commits


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """One step of a session of the pipeline, to tell how an anomaly came about."""

    session: str
    at_s: float
    step: Step
    number: int  # of the session's transaction, -1 where it belongs to none
    places: tuple[tuple[str, int, int], ...]  # topic, partition, offset
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CommittedPoll:
    """What one poll handed out to a reader of what is committed, who began at the log's start."""

    session: str
    at_s: float
    records: tuple[tuple[str, int, int, str], ...]  # topic, partition, offset, value


@dataclass(frozen=True, slots=True)
class CommittedLog:
    """What is committed of a partition, after all faults had ended."""

    topic: str
    partition: int
    stable_offset: int  # exclusive: the last stable offset
    end_offset: int  # exclusive: the high watermark
    records: tuple[tuple[int, str], ...]  # offset, value; in the order they were handed out


@dataclass(frozen=True, slots=True)
class Shared:
    """Records that one fetch handed to a member of the share group, delivered as often as that."""

    session: str
    asked_s: float
    at_s: float
    topic: str
    partition: int
    delivery_count: int
    records: tuple[tuple[int, str], ...]  # offset, value


@dataclass(frozen=True, slots=True)
class Settled:
    """What a member of the share group said of records: accepted, or given back.

    OK: it was told that this is stored. INFO: nobody knows.
    """

    session: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int  # inclusive
    is_accepted: bool
    said_s: float
    completed_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, from its start to its end."""

    kind: str
    target: str
    started_s: float
    ended_s: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth a line in the report: an admin action, a consumer that had to start over."""

    at_s: float
    about: str
    text: str


Transactional = Transaction | Pipeline | PipelineStep | CommittedPoll | CommittedLog
Sharing = Shared | Settled
Event = Write | Positioned | Poll | FinalLog | Resent | Transactional | Sharing | Fault | Note
# Where a history keeps the events of a kind, in the order in which they are saved.
_LISTS: dict[type[Any], str] = {
    Fault: "faults",
    Note: "notes",
    Write: "writes",
    Poll: "readings",
    Positioned: "readings",
    FinalLog: "finals",
    Resent: "resent",
    Transaction: "transactions",
    Pipeline: "pipelines",
    PipelineStep: "steps",
    CommittedPoll: "committed_polls",
    CommittedLog: "committed_logs",
    Shared: "shared",
    Settled: "settled",
}
_KINDS = {cls.__name__: cls for cls in _LISTS}


@dataclass(slots=True)
class History:
    """All events of a run; the polls and positions of one session in their order."""

    writes: list[Write] = field(default_factory=list)
    readings: list[Poll | Positioned] = field(default_factory=list)
    finals: list[FinalLog] = field(default_factory=list)
    resent: list[Resent] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    pipelines: list[Pipeline] = field(default_factory=list)
    steps: deque[PipelineStep] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT_MAX))
    committed_polls: list[CommittedPoll] = field(default_factory=list)
    committed_logs: list[CommittedLog] = field(default_factory=list)
    shared: list[Shared] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Take one event. Safe from any thread."""
        getattr(self, _LISTS[type(event)]).append(event)

    def events(self) -> Iterable[Event]:
        """Yield every event, kind by kind."""
        for name in dict.fromkeys(_LISTS.values()):
            yield from getattr(self, name)


def encode(event: Event) -> str:
    """Return the event as one line of JSON, without the line's end."""
    fields = {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
    return json.dumps([type(event).__name__, fields])


def decode(line: str | bytes) -> Event:
    """Return the event of a line that ``encode`` made."""
    kind, fields = json.loads(line)
    for name in ("records", "partitions", "values", "places"):
        if name in fields:
            fields[name] = tuple(tuple(item) for item in fields[name])
    if "outcome" in fields:
        fields["outcome"] = Outcome(fields["outcome"])
    if "step" in fields:
        fields["step"] = Step(fields["step"])
    event: Event = _KINDS[kind](**fields)
    return event


def save(history: History, path: Path) -> None:
    """Write the history as JSON lines."""
    with path.open("w") as file:
        for event in history.events():
            file.write(encode(event) + "\n")


def load(path: Path) -> History:
    """Read back what ``save`` has written."""
    history = History()
    with path.open() as file:
        for line in file:
            history.add(decode(line))
    return history

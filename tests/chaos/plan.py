"""Which faults come when: a function of the seed, so that a run can be had again.

Faults run in lanes: one fault at a time in each, lanes beside each other. A lane's kinds
would get in each other's way on one node; those of different lanes add up.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

GAP_SECONDS = 0.5, 3.0  # between two faults of a lane
LEAD_SECONDS = 1.0  # before the first


class FaultKind(StrEnum):
    """What can be done to a cluster."""

    KILL = "kill"  # kill -9, start again
    RESTART = "restart"  # SIGTERM, start again
    PAUSE = "pause"  # SIGSTOP for longer than the lease, SIGCONT
    PAUSE_MACHINE = "pause-machine"  # likewise, and all workers of the node too
    PAUSE_WORKERS = "pause-workers"  # likewise, only the workers
    CLOCK = "clock"  # the wall clock jumps, and back
    FILE_LIMIT = "file-limit"  # files cannot grow past a size: a write is cut short there
    DISK_FULL = "disk-full"  # nothing can be written
    DISK_FAILING = "disk-failing"  # EIO on whatever is read or written
    TORN = "torn"  # kill -9, and what was not flushed is lost or garbled
    KILL_ALL = "kill-all"  # kill -9 of every node at once
    DISK_LOST = "disk-lost"  # kill -9, and the data directory is gone
    CUT = "cut"  # connections reset, no new ones
    HOLD = "hold"  # one direction says nothing, then everything at once
    SLOW = "slow"  # delay and little bandwidth
    RESET = "reset"  # connections reset in the middle of what is sent
    BIG_REQUEST = "big-request"  # a client asks for too much, or lies about it
    STORE_LOCK = "store-lock"  # somebody else writes to SQLite, for seconds
    STORE_SLOW = "store-slow"  # DynamoDB answers late
    STORE_FAILING = "store-failing"  # DynamoDB throttles, and loses answers after commits
    STORE_CUT = "store-cut"  # a node cannot reach DynamoDB
    OBJECTS_SLOW = "objects-slow"  # the bucket answers late
    OBJECTS_STORM = "objects-storm"  # it answers 503 to most requests
    OBJECTS_LATE = (
        "objects-late"  # PUTs and DELETEs are applied when nobody waits for them any more
    )
    OBJECTS_LOST = "objects-lost"  # requests are carried out, and their answers lost
    OBJECTS_CUT = "objects-cut"  # the bucket cannot be reached
    OBJECTS_GONE = "objects-gone"  # the folder of the object store is gone
    OBJECTS_EMPTY = "objects-empty"  # an empty folder is in its place
    CONVERT = "convert"  # a topic is to be diskless, or replicated again


PROCESS_LANE = (
    FaultKind.KILL,
    FaultKind.RESTART,
    FaultKind.PAUSE,
    FaultKind.PAUSE_MACHINE,
    FaultKind.PAUSE_WORKERS,
    FaultKind.CLOCK,
    FaultKind.FILE_LIMIT,
    FaultKind.DISK_FULL,
    FaultKind.DISK_FAILING,
    FaultKind.TORN,
    FaultKind.KILL_ALL,
    FaultKind.DISK_LOST,
)
DISK_FAULTS = frozenset({FaultKind.DISK_FULL, FaultKind.DISK_FAILING})
NETWORK_LANE = (FaultKind.CUT, FaultKind.HOLD, FaultKind.SLOW, FaultKind.RESET)
CLIENT_LANE = (FaultKind.BIG_REQUEST,)
STORE_LANE = (
    FaultKind.STORE_LOCK,
    FaultKind.STORE_SLOW,
    FaultKind.STORE_FAILING,
    FaultKind.STORE_CUT,
)
CONVERSION_LANE = (FaultKind.CONVERT,)
BUCKET_LANE = (
    FaultKind.OBJECTS_SLOW,
    FaultKind.OBJECTS_STORM,
    FaultKind.OBJECTS_LATE,
    FaultKind.OBJECTS_LOST,
    FaultKind.OBJECTS_CUT,
)
FOLDER_LANE = (FaultKind.OBJECTS_GONE, FaultKind.OBJECTS_EMPTY)
_LANES = (
    *(PROCESS_LANE, NETWORK_LANE, STORE_LANE, CLIENT_LANE, CONVERSION_LANE, BUCKET_LANE),
    FOLDER_LANE,
)
# No node has what the others lack: any disk may go, all at once too.
_DISKLESS_ONLY = frozenset({FaultKind.KILL_ALL, FaultKind.DISK_LOST})
_LONG = frozenset({FaultKind.OBJECTS_STORM, FaultKind.OBJECTS_CUT})
_DYNAMODB_ONLY = frozenset({FaultKind.STORE_SLOW, FaultKind.STORE_FAILING, FaultKind.STORE_CUT})
# At once, for how many nodes: mostly one.
_TARGET_WEIGHTS = (8, 3, 1)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault. ``amount``, in [0, 1), says how bad it is where that can be chosen."""

    kind: FaultKind
    at_s: float
    duration_s: float
    targets: tuple[int, ...]  # node ids
    amount: float

    @property
    def end_s(self) -> float:
        """When it is to end."""
        return self.at_s + self.duration_s


def kinds_for(
    *,
    replication_factor: int,
    has_dynamodb: bool,
    has_bucket: bool = False,
    is_diskless: bool = False,
    is_converting: bool = False,
) -> tuple[FaultKind, ...]:
    """Return the kinds that such a cluster must stand.

    ``is_converting``: the topics are converted all the time. While they are replicated their disks
    count, but kill -9 of all nodes leaves the disks.
    """
    left_out: set[FaultKind] = set() if is_diskless else set(_DISKLESS_ONLY)
    if is_converting:
        left_out.discard(FaultKind.KILL_ALL)
        left_out.add(FaultKind.DISK_LOST)
    else:
        left_out.add(FaultKind.CONVERT)
    left_out |= set(FOLDER_LANE if has_bucket else BUCKET_LANE)
    if replication_factor == 1 and (is_converting or not is_diskless):
        left_out.add(FaultKind.TORN)  # Nobody else has what is lost.
    left_out |= {FaultKind.STORE_LOCK} if has_dynamodb else _DYNAMODB_ONLY
    return tuple(kind for kind in FaultKind if kind not in left_out)


def plan_faults(
    seed: int,
    *,
    seconds: float,
    node_count: int,
    kinds: Sequence[FaultKind],
    lease_s: float,
) -> list[list[PlannedFault]]:
    """Return the lanes, each in order of time; every fault ends before ``seconds``.

    A lane takes its kinds in turns, shuffled each time, so that a short run has them too.
    """
    return [
        list(itertools.takewhile(lambda fault: fault.end_s <= seconds, endless))
        for _, endless in _lanes(seed, kinds, node_count, lease_s)
    ]


def plan_rounds(
    seed: int,
    *,
    rounds: int,
    node_count: int,
    kinds: Sequence[FaultKind],
    lease_s: float,
) -> list[list[PlannedFault]]:
    """Return the lanes, each with every one of its kinds ``rounds`` times."""
    return [
        list(itertools.islice(endless, rounds * kind_count))
        for kind_count, endless in _lanes(seed, kinds, node_count, lease_s)
    ]


def _lanes(
    seed: int, kinds: Sequence[FaultKind], node_count: int, lease_s: float
) -> Iterator[tuple[int, Iterator[PlannedFault]]]:
    """Yield the number of kinds of each lane that has any, and its faults without an end."""
    for number, lane_kinds in enumerate(_LANES):
        wanted = [kind for kind in lane_kinds if kind in kinds]
        if wanted:
            chance = random.Random(f"{seed}:lane {number}")
            yield len(wanted), _lane(chance, wanted, node_count, lease_s)


def _lane(
    chance: random.Random, kinds: Sequence[FaultKind], node_count: int, lease_s: float
) -> Iterator[PlannedFault]:
    at_s = LEAD_SECONDS + chance.uniform(0, 1)
    while True:
        for kind in chance.sample(list(kinds), len(kinds)):
            duration_s = _duration(chance, kind, lease_s)
            count = chance.choices((1, 2, 3), _TARGET_WEIGHTS)[0]
            if kind is FaultKind.TORN:
                count = 1  # More than one at a time is more than replication promises.
            # A bucket that fails does so for every node, half of the times.
            is_for_all = kind is FaultKind.KILL_ALL or kind in FOLDER_LANE
            if is_for_all or (kind in BUCKET_LANE and chance.random() < 0.5):
                count = node_count
            targets = chance.sample(range(1, node_count + 1), min(count, node_count))
            yield PlannedFault(kind, at_s, duration_s, tuple(sorted(targets)), chance.random())
            at_s += duration_s + chance.uniform(*GAP_SECONDS)


def _duration(chance: random.Random, kind: FaultKind, lease_s: float) -> float:
    match kind:
        case FaultKind.PAUSE | FaultKind.PAUSE_MACHINE | FaultKind.PAUSE_WORKERS:
            return lease_s + chance.uniform(0.5, 2.0)
        case (
            FaultKind.KILL
            | FaultKind.TORN
            | FaultKind.RESTART
            | FaultKind.KILL_ALL
            | FaultKind.DISK_LOST
        ):
            # Back at once, or when others have taken over.
            return chance.choice((0.0, chance.uniform(0, 2.0), lease_s + chance.uniform(1.0, 3.0)))
        case FaultKind.RESET:
            return 0.2
        case FaultKind.CUT | FaultKind.HOLD:
            return chance.choice((chance.uniform(0.2, 2.0), lease_s + chance.uniform(1.0, 3.0)))
    if kind in _LONG and chance.random() < 1 / 3:
        return chance.uniform(10.0, 30.0)  # so long that nodes give up what they lead
    return chance.uniform(1.0, 4.0)

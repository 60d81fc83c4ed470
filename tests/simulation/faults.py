"""What goes wrong in a run: a plan drawn from the seed before the run begins.

A plan is a value: a run of fewer of its faults is a run of its own, which is how a failing
schedule is made smaller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random

FAULTY_MS = 4_000.0  # faults begin before this
KINDS = {
    "crash": 10,
    "power-loss": 8,
    "disk-loss": 3,
    "pause": 12,
    "stall": 12,
    "isolate": 10,
    "isolate-one-way": 8,
    "cut-link": 8,
    "cut-link-one-way": 8,
    "cut-store": 10,
    "cut-all": 4,
    "store-slow": 5,
    "store-refuses": 5,
    "store-unknown": 9,
    "lossy-network": 6,
    "slow-network": 5,
    "doubling-network": 4,
    "reassign": 8,
    "cancel-reassignment": 3,
    "drain": 4,
    "delete-records": 3,
    "tier": 8,
}
# What happens to fetch sessions. Drawn apart from all others, which stay what they are.
SESSION_KINDS = {"break-log": 3, "evict-sessions": 2}
# A cascade is several of these in quick succession, on those who matter just then.
CASCADE_KINDS = {
    "crash": 10,
    "power-loss": 8,
    "pause": 8,
    "stall": 6,
    "isolate": 4,
    "cut-link": 8,
    "cut-store": 8,
    "store-slow": 5,
    "store-unknown": 8,
    "slow-network": 6,
}
DURATIONS_MS = (30.0, 150.0, 400.0, 1_000.0, 1_600.0)
CASCADE_GAP_MS = 120.0


class Target(Enum):
    """Whom a fault hits."""

    LEADER = "leader"  # whoever leads when it happens
    MEMBER = "member"  # another member of the ISR then
    FOLLOWER = "follower"  # another replica, in the ISR or not
    PLACE = "place"  # the broker that the plan names


@dataclass(frozen=True, slots=True)
class Step:
    """One fault of a pattern: begins that long after the step before it."""

    kind: str
    target: Target
    gap_ms: tuple[float, float]
    duration_ms: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Several things that go wrong one after the other; when exactly is left to chance.

    Chance alone would take very long to line them up.
    """

    steps: tuple[Step, ...]
    replica_count: int = 3
    produce_interval_ms: float | None = None  # None: the plan's
    duplication: float = 0.0


_BRIEF, _SHORT, _LONG = (20.0, 60.0), (100.0, 400.0), (1_200.0, 2_400.0)
_OUT_OF_ISR = Step("cut-link", Target.FOLLOWER, (0, 0), (450, 1_100))

PATTERNS: Mapping[str, Pattern] = {
    "cut off while its return is written": Pattern(
        (
            _OUT_OF_ISR,
            Step("store-slow", Target.PLACE, (400, 1_000), (300, 900)),
            Step("cut-link", Target.FOLLOWER, (20, 300), (300, 1_500)),
            Step("crash", Target.LEADER, (0, 250), _LONG),
        ),
        replica_count=2,
    ),
    "cut off until its departure is written": Pattern(
        (
            Step("cut-link", Target.FOLLOWER, (0, 0), (600, 1_500)),
            Step("cut-store", Target.LEADER, (50, 400), _LONG),
        ),
        replica_count=2,
    ),
    "cut off while nobody knows whether its return is written": Pattern(
        (
            _OUT_OF_ISR,
            Step("store-unknown", Target.PLACE, (400, 1_000), (200, 600)),
            Step("cut-link", Target.FOLLOWER, (20, 500), (800, 2_000)),
            Step("crash", Target.LEADER, (100, 1_500), _LONG),
        ),
        replica_count=2,
    ),
    "loses what it has caught up with": Pattern(
        (
            _OUT_OF_ISR,
            Step("store-unknown", Target.PLACE, (400, 900), (150, 400)),
            Step("power-loss", Target.FOLLOWER, (20, 200), (5, 30)),
            Step("cut-link", Target.FOLLOWER, (0, 20), (600, 900)),
            Step("crash", Target.LEADER, (200, 450), _LONG),
        ),
        replica_count=2,
    ),
    "returns to a leader that knows little": Pattern(
        (
            _OUT_OF_ISR,
            Step("crash", Target.LEADER, (450, 1_000), _BRIEF),
            Step("cut-link", Target.MEMBER, (0, 40), (400, 900)),
            Step("crash", Target.LEADER, (150, 500), _LONG),
            Step("crash", Target.MEMBER, (0, 60), _LONG),
        ),
    ),
    "leads when the one before it and the one after it are cut off": Pattern(
        (
            Step("isolate", Target.FOLLOWER, (0, 0), (1_000, 1_700)),
            Step("crash", Target.LEADER, (30, 250), _LONG),
            Step("crash", Target.LEADER, (950, 1_450), _LONG),
        ),
    ),
    "sleeps while its renewal is on the way": Pattern(
        (
            Step("store-slow", Target.PLACE, (0, 0), (300, 600)),
            Step("pause", Target.LEADER, (20, 200), (200, 800)),
            Step("cut-store", Target.LEADER, (0, 100), _LONG),
        ),
    ),
    "stands still until it is not renewed any more": Pattern(
        (
            Step("stall", Target.LEADER, (0, 0), (1_100, 2_400)),
            Step("store-slow", Target.PLACE, (200, 900), (200, 500)),
        ),
    ),
    "is stopped while it stands still": Pattern(
        (
            Step("stall", Target.LEADER, (0, 0), (700, 1_700)),
            Step("pause", Target.LEADER, (20, 600), (200, 1_100)),
            Step("cut-store", Target.LEADER, (0, 500), (200, 900)),
        ),
    ),
    "renews while it is being replaced": Pattern(
        (
            Step("cut-store", Target.LEADER, (0, 0), (700, 1_300)),
            Step("store-slow", Target.PLACE, (500, 900), (200, 500)),
        ),
    ),
}

SESSION_PATTERNS: Mapping[str, Pattern] = {
    "comes back with less of its log": Pattern(
        (
            Step("break-log", Target.FOLLOWER, (0, 0), (0, 0)),
            Step("crash", Target.LEADER, (150, 400), _LONG),
        ),
        replica_count=2,
        produce_interval_ms=500.0,
    ),
    "hears everything twice": Pattern(
        (Step("evict-sessions", Target.LEADER, (0, 0), (0, 0)),), duplication=0.5
    ),
}
ALL_PATTERNS = {**PATTERNS, **SESSION_PATTERNS}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens; ``place`` and ``other`` pick brokers, ``amount`` what it needs."""

    kind: str
    at_ms: float
    duration_ms: float
    target: Target
    place: int
    other: int
    amount: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One schedule, fully."""

    seed: int
    broker_count: int
    replica_count: int
    min_insync_replicas: int
    is_unclean_allowed: bool
    fetch_count_max: int  # few records a fetch keep followers behind
    session_slots: int  # of each node; fewer than followers leave some without a session
    duplication: float  # of messages, also once all else is healed
    produce_interval_ms: float
    lag_time_max_ms: int
    faults: tuple[Fault, ...]


def draw_plan(seed: int) -> Plan:
    """Return the plan of a seed: faults by chance, in cascades and, in some runs, a pattern."""
    random = Random(seed)
    broker_count = random.choice((3, 3, 3, 4, 5))
    replica_count = random.choice((2, 3, 3, 3))
    faults = [
        _draw_fault(random, KINDS, broker_count, random.random() * FAULTY_MS)
        for _ in range(random.randint(1, 7))
    ]
    for _ in range(random.choice((0, 0, 1, 1, 2))):
        at_ms = random.random() * FAULTY_MS * 0.9
        for _ in range(random.randint(2, 5)):
            faults.append(_draw_fault(random, CASCADE_KINDS, broker_count, at_ms))
            at_ms += random.expovariate(1 / CASCADE_GAP_MS)
    if random.random() < 0.4:
        pattern = random.choice(list(PATTERNS.values()))
        faults += _draw_pattern(random, pattern, broker_count)
    apart = Random(f"sessions of {seed}")
    for _ in range(apart.choice((0, 1, 2, 4))):
        at_ms = apart.random() * FAULTY_MS
        faults.append(_draw_fault(apart, SESSION_KINDS, broker_count, at_ms))
    if apart.random() < 0.3:  # also when nothing is written any more that would hide it
        at_ms = FAULTY_MS + 1_500 + apart.random() * 1_000
        faults.append(_draw_fault(apart, SESSION_KINDS, broker_count, at_ms))
    if apart.random() < 0.1:
        faults += _draw_pattern(apart, apart.choice([*SESSION_PATTERNS.values()]), broker_count)
    return Plan(
        seed=seed,
        broker_count=broker_count,
        replica_count=replica_count,
        min_insync_replicas=random.choice((1, 1, 2)),
        is_unclean_allowed=random.random() < 0.1,
        fetch_count_max=random.choice((1, 2, 8)),
        session_slots=apart.choice((0, 1, 4, 4, 4, 4, 4)),
        duplication=apart.choice((0.0, 0.0, 0.0, 0.2)),
        produce_interval_ms=random.choice((15.0, 40.0, 100.0)),
        lag_time_max_ms=random.choice((200, 400)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
    )


def draw_pattern_plan(seed: int, name: str) -> Plan:
    """Return a plan of a seed in which one pattern and nothing else goes wrong."""
    random, pattern = Random(seed), ALL_PATTERNS[name]
    plan = draw_plan(seed)
    return dataclasses.replace(
        plan,
        produce_interval_ms=pattern.produce_interval_ms or plan.produce_interval_ms,
        duplication=pattern.duplication,
        session_slots=4,
        broker_count=3,
        replica_count=pattern.replica_count,
        min_insync_replicas=1,
        is_unclean_allowed=False,
        faults=tuple(_draw_pattern(random, pattern, 3)),
    )


def _draw_fault(random: Random, kinds: Mapping[str, int], broker_count: int, at_ms: float) -> Fault:
    place, other = random.sample(range(broker_count), 2)
    return Fault(
        kind=random.choices(list(kinds), list(kinds.values()))[0],
        at_ms=at_ms,
        duration_ms=random.choice(DURATIONS_MS) * (0.5 + random.random()),
        target=random.choice(list(Target)),
        place=place,
        other=other,
        amount=random.random(),
    )


def _draw_pattern(random: Random, pattern: Pattern, broker_count: int) -> list[Fault]:
    at_ms = 300 + random.random() * FAULTY_MS * 0.4
    faults = []
    for step in pattern.steps:
        at_ms += random.uniform(*step.gap_ms)
        place, other = random.sample(range(broker_count), 2)
        duration_ms = random.uniform(*step.duration_ms)
        faults.append(
            Fault(step.kind, at_ms, duration_ms, step.target, place, other, random.random())
        )
    return faults

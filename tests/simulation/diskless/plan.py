"""What happens to a cluster of a seed, and when."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

FAULTY_MS, SUSPICIOUS_MS = 450.0, 1_200.0

KINDS = (
    *("kill", "pause", "suspect", "collect", "clock", "move"),
    *("cut-objects", "cut-items", "items-unknown", "items-refuse"),
    *("objects-refuse", "objects-unknown", "objects-conflict", "objects-double", "objects-tear"),
    *("objects-slow", "kill-all", "trim", "disk"),
)
WEIGHTS = (5, 6, 8, 6, 2, 4, 2, 2, 2, 1, 2, 5, 2, 2, 2, 1, 1, 7, 3)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, when and for how long, whom it hits and how hard."""

    kind: str
    at_ms: float
    duration_ms: float
    place: int
    other: int
    amount: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A seed's run."""

    seed: int
    node_count: int
    partition_count: int
    is_bursty: bool  # clients send for a while, then rest
    tier_chance: float  # of a leader to tier something, each time that it looks
    faulty_ms: float  # how long it goes on
    faults: tuple[Fault, ...]


def draw_plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    random = Random(seed)
    node_count = random.choice((2, 3, 3, 4))
    faults = []
    for _ in range(random.randint(3, 12)):
        kind = random.choices(KINDS, WEIGHTS)[0]
        place = random.randrange(node_count)
        faults.append(
            Fault(
                kind,
                random.random() * FAULTY_MS,
                20 + random.random() ** 2 * 300,
                place,
                (place + 1 + random.randrange(node_count - 1)) % node_count,
                random.random(),
            )
        )
    return Plan(
        seed,
        node_count,
        random.choice((1, 2, 2, 3)),
        random.random() < 0.4,
        random.choice((0.7, 0.7, 0.05)),
        FAULTY_MS,
        tuple(sorted(faults, key=lambda fault: fault.at_ms)),
    )


def draw_suspicious_plan(seed: int) -> Plan:
    """Return a plan in which leaders that rest are suspected again and again, and nothing else."""
    random = Random(seed)
    node_count = 3
    # Slow answers: more objects in flight when clients rest.
    faults = [Fault("objects-slow", 0.0, SUSPICIOUS_MS, 0, 1, 0.1)]
    at_ms = 60.0
    while at_ms < SUSPICIOUS_MS:
        place = random.randrange(node_count)
        kind = "kill" if random.random() < 0.3 else "suspect"
        other = (place + 1 + random.randrange(node_count - 1)) % node_count
        faults.append(Fault(kind, at_ms, 60.0, place, other, 1.0))
        at_ms += 20 + random.random() * 150
    return Plan(seed, node_count, 1, True, 0.7, SUSPICIOUS_MS, tuple(faults))


def draw_moving_plan(seed: int) -> Plan:
    """Return a plan in which leaders trim logs that are hardly tiered, and hand them over."""
    random = Random(seed)
    node_count = 2
    faults = []
    at_ms = 60.0
    while at_ms < FAULTY_MS:
        place = random.randrange(node_count)
        kind = "trim" if random.random() < 0.5 else "move"
        faults.append(Fault(kind, at_ms, 60.0, place, 1 - place, 0.0))
        at_ms += 20 + random.random() * 60
    return Plan(seed, node_count, 3, False, 0.02, FAULTY_MS, tuple(faults))

"""What sessions that write ask of the log, ours and librdkafka's alike."""

from __future__ import annotations

import random
from dataclasses import dataclass

ACKS_ALL = -1
SESSION_SECONDS = 4.0, 20.0
BURST_MAX = 10
ABRUPT_PART = 0.3  # of the sessions end with records under way
# Request and delivery timeouts of a session, milliseconds: some give up within a fault.
TIMEOUTS = ((1_000, 2_000), (2_000, 6_000), (5_000, 30_000))


@dataclass(frozen=True, slots=True)
class Promise:
    """What a session is promised."""

    acks: int
    is_idempotent: bool


_PROMISES = (
    Promise(ACKS_ALL, True),
    Promise(ACKS_ALL, False),
    Promise(1, False),
    Promise(0, False),
)
_WEIGHTS = (12, 3, 4, 1)


def choose_promise(chance: random.Random) -> Promise:
    """Return a session's promise: mostly the strongest."""
    return chance.choices(_PROMISES, _WEIGHTS)[0]

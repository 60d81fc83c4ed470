"""How long the processes of a job wait for the first node that answers.

A job whose nodes are gone is to say so soon. Spark repeats a task that has failed, three times by
default: the first attempt waits for a node that is restarted, a later one no longer than connecting
may take.
"""

from __future__ import annotations

FIRST_NODE_MS = 15_000  # A node that is restarted is back sooner.
REPEATED_MS = 5_000


def wait_of_attempt_ms(attempt: int) -> int:
    """Return how long an attempt of a task waits; the first is 0."""
    return REPEATED_MS if attempt else FIRST_NODE_MS

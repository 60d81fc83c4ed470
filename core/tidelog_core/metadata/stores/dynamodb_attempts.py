"""Limits the retries of requests to DynamoDB, and waits between them."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from tidelog_core.back_off import back_off_seconds
from tidelog_core.errors import OutcomeUnknown, StoreUnavailable
from tidelog_core.metadata.stores.dynamodb_failures import Failure, Outcome

ATTEMPTS_MAX = 60  # of one commit, contention on the cluster version included
ATTEMPTS_UNREACHABLE_MAX = 6  # without an answer
DELAY_FIRST, DELAY_MAX = 0.01, 0.5  # seconds, before jitter


@dataclass(slots=True)
class Attempts:
    """The number of attempts of a call, and whether one of them may have been carried out."""

    count: int = 0
    unanswered_count: int = 0
    may_be_done: bool = False

    async def again(self, failure: Failure, error: Exception) -> None:
        """Wait before the next attempt.

        If there is none, raises ``StoreUnavailable``, or ``OutcomeUnknown`` if an attempt may have
        been carried out.
        """
        self.count += 1
        if failure.outcome is Outcome.UNKNOWN:
            self.may_be_done = True
        if failure.outcome in (Outcome.UNKNOWN, Outcome.UNREACHABLE):
            self.unanswered_count += 1
        if (
            failure.outcome in (Outcome.REFUSED, Outcome.CONDITION_FAILED)
            or self.count >= ATTEMPTS_MAX
            or self.unanswered_count >= ATTEMPTS_UNREACHABLE_MAX
        ):
            if self.may_be_done:
                raise OutcomeUnknown(failure.reason) from error
            raise StoreUnavailable(failure.reason) from error
        longest = back_off_seconds(self.count, first=DELAY_FIRST, longest=DELAY_MAX)
        await asyncio.sleep(random.uniform(0, longest))


def turn_delay_s_max(losses: int) -> float:
    """Return the longest wait before a logged commit that has conflicted so often in a row.

    It doubles each time: the number of other writers is unknown, and with many of them most
    simultaneous commits conflict and cost as much as successful ones.
    """
    doublings = min(losses + 1, 16)
    return min(DELAY_MAX, DELAY_FIRST * float(2**doublings))

"""Retries work on a led partition with growing delays, without blocking other partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from tidelog_core.errors import (
    NotLeaderOrFollower,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    TierRewritten,
    TierUnavailable,
    UnknownTopicOrPartition,
)
from tidelog_core.model import TopicPartition
from tidelog_core.subscribers import Subscribers

from tidelog_node.tier.copier import SegmentSuspected
from tidelog_node.tier.led_partition import LedPartition

logger = logging.getLogger(__name__)

RETRY_DELAY_S_MIN = 1.0
RETRY_DELAY_S_MAX = 60.0


class Attempts:
    """Runs the attempts and delays the next one. For the tasks of one event loop."""

    def __init__(self) -> None:
        # Partition, base offset and reason: a segment that could not be copied, since its file may
        # be damaged.
        self.suspected = Subscribers[TopicPartition, int, TidelogError]()

    async def run(
        self, led: LedPartition, action: str, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Run the work; on failure delay the partition's next attempt."""
        try:
            await work()
        except (TidelogError, OSError) as error:
            if led.replica.is_dropped:
                led.reset()  # Its files are gone, and nobody visits it again.
            else:
                self._note_failure(led, action, error)
        except Exception as error:
            self.wait(led)
            led.reset()
            logger.exception("tier work broke, will retry", extra=trouble_of(led, action, error))
        else:
            led.failure_count = 0

    def _note_failure(self, led: LedPartition, action: str, error: TidelogError | OSError) -> None:
        self.wait(led)
        match error:
            case NotLeaderOrFollower() | UnknownTopicOrPartition():
                # The image shows it, now or soon; until then nothing can be done here.
                led.reset()
            case TierUnavailable() | StoreUnavailable() | OutcomeUnknown() | TierRewritten():
                logger.info("tier work waits", extra=trouble_of(led, action, error))
            case SegmentSuspected():
                # The repair checks the file and reports its damage.
                led.reset()
                logger.info("tier work waits", extra=trouble_of(led, action, error))
                self.suspected.notify(led.replica.partition, error.base_offset, error)
            case _:
                led.reset()
                logger.error("tier work failed, will retry", extra=trouble_of(led, action, error))

    def wait(self, led: LedPartition) -> None:
        """Delay the partition's next attempt, longer after each failure."""
        delay_s = min(RETRY_DELAY_S_MIN * 2**led.failure_count, RETRY_DELAY_S_MAX)
        led.failure_count = min(led.failure_count + 1, 16)
        led.not_before = asyncio.get_running_loop().time() + delay_s


def trouble_of(led: LedPartition, action: str, error: Exception) -> Mapping[str, str]:
    """Return the fields of a log line about failed work."""
    return {
        "partition": str(led.replica.partition),
        "action": action,
        "reason": f"{type(error).__name__}: {error}",
    }

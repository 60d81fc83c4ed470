"""Limits for the PUTs of a chain: their number in flight, their repetition, their cost.

- A token bucket bounds the objects a second. A full buffer is flushed without a token. It pays
  later, unless another one has yet to: what follows a busy hour waits for one token, not for
  thousands. Hedges are not counted: their percentile bounds them.
- A PUT that is not answered after a percentile of the last answers' times is sent once more.
- A store that asks to slow down (503) halves the PUTs in flight and ends hedging for a while.
  Every answer in time adds a part of one again.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass

from tidelog_core.back_off import back_off_seconds
from tidelog_core.quotas.token_bucket import TokenBucket

SAMPLE_COUNT_MAX = 128
SAMPLE_COUNT_MIN = 16  # fewer say nothing of a 95th percentile
THROTTLED_MS = 1_000.0  # no hedges for so long after a 503


@dataclass(frozen=True, slots=True)
class PaceLimits:
    """The settings of a chain's PUTs."""

    in_flight_max: int = 8  # diskless.append.uploads.max
    hedge_percentile: float = 95.0  # diskless.append.hedge.percentile; 0: never
    first_hedge_ms: float = 400.0  # until there are enough samples
    hedge_ms_min: float = 20.0
    puts_per_second_max: float = 10.0  # diskless.append.puts.per.second.max; 0: unlimited
    retry_ms_first: float = 50.0
    retry_ms_max: float = 2_000.0


class LatencyPercentile:
    """A percentile of the last answers' times."""

    __slots__ = ("_order", "_sorted")

    def __init__(self) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, latency_ms: float) -> None:
        """Count an answer."""
        if len(self._order) == SAMPLE_COUNT_MAX:
            self._sorted.remove(self._order.popleft())
        self._order.append(latency_ms)
        insort(self._sorted, latency_ms)

    def value(self, percentile: float) -> float | None:
        """Return the percentile, ``None`` while there are too few samples."""
        count = len(self._sorted)
        if count < SAMPLE_COUNT_MIN:
            return None
        return self._sorted[min(count - 1, int(count * percentile / 100))]


class PutPace:
    """The pace of one chain. Times are steady milliseconds."""

    __slots__ = ("_bucket", "_latency", "_throttled_until_ms", "_window", "limits")

    def __init__(self, limits: PaceLimits) -> None:
        self.limits = limits
        self._latency = LatencyPercentile()
        self._bucket = TokenBucket(window_count=1, size_ms=1_000)
        self._window = float(limits.in_flight_max)
        self._throttled_until_ms = 0.0

    @property
    def in_flight_max(self) -> int:
        """The PUTs that may be in flight now; at least one."""
        return int(self._window)

    def on_answer(self, latency_ms: float) -> None:
        """A PUT was answered."""
        self._latency.add(latency_ms)
        self._window = min(self.limits.in_flight_max, self._window + 0.25)

    def on_throttled(self, now_ms: float) -> None:
        """The store has asked to slow down."""
        self._window = max(1.0, self._window / 2)
        self._throttled_until_ms = now_ms + THROTTLED_MS

    def hedge_delay_ms(self, now_ms: float) -> float | None:
        """Return after how long a PUT is sent once more, ``None`` for never."""
        if not self.limits.hedge_percentile or now_ms < self._throttled_until_ms:
            return None
        value = self._latency.value(self.limits.hedge_percentile)
        return max(self.limits.hedge_ms_min, self.limits.first_hedge_ms if value is None else value)

    def retry_delay_ms(self, failure_count: int) -> float:
        """Return how long to wait after so many failures in a row of one object."""
        first, longest = self.limits.retry_ms_first, self.limits.retry_ms_max
        return back_off_seconds(failure_count - 1, first=first, longest=longest)

    def take_token(self, now_ms: float) -> None:
        """Count an object, unless the bucket is overdrawn already."""
        rate = self.limits.puts_per_second_max
        if rate and not self._bucket.is_overdrawn(rate, int(now_ms)):
            self._bucket.take(1.0, rate, int(now_ms))

    def token_delay_ms(self, now_ms: float) -> float:
        """Return how long until the bucket has a token; 0 if it has one."""
        if not self.limits.puts_per_second_max:
            return 0.0
        return float(self._bucket.throttle_ms(self.limits.puts_per_second_max, int(now_ms)))

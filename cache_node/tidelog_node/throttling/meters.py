"""What clients have used of their quotas in the last windows of time, one meter for each limit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from tidelog_core.quotas.quota_keys import QuotaKey
from tidelog_core.quotas.token_bucket import TokenBucket
from tidelog_core.quotas.windowed_rate import WindowedRate

# Clients make up their ids, and each id may have a meter. Sessions keep those that they use.
METERS_MAX = 20_000
_LOOKED_AT = 100  # of the oldest, to find some that nobody uses

MeterKey = tuple[QuotaKey, tuple[str, str]]


class Meters:
    """The meters of a node, at most ``METERS_MAX``: beyond that those found first are forgotten."""

    def __init__(
        self,
        *,
        new_rate: Callable[[], WindowedRate],
        new_bucket: Callable[[], TokenBucket] | None = None,
        clock_ms: Callable[[], int],
    ) -> None:
        """Without ``new_bucket`` there are no buckets."""
        self._new_rate = new_rate
        self._new_bucket = new_bucket
        self._clock_ms = clock_ms
        self._rates: dict[MeterKey, WindowedRate] = {}
        self._buckets: dict[MeterKey, TokenBucket] = {}

    def rate(self, key: QuotaKey, shared_by: tuple[str, str]) -> WindowedRate:
        """Return the meter of all who share a limit."""
        found = self._rates.get((key, shared_by))
        if found is None:
            if len(self._rates) >= METERS_MAX:
                self._make_room()
            found = self._rates[key, shared_by] = self._new_rate()
        return found

    def bucket(self, key: QuotaKey, shared_by: tuple[str, str]) -> TokenBucket:
        """Return the bucket of all who share a limit."""
        found = self._buckets.get((key, shared_by))
        if found is None:
            if len(self._buckets) >= METERS_MAX:
                del self._buckets[next(iter(self._buckets))]
            assert self._new_bucket is not None
            found = self._buckets[key, shared_by] = self._new_bucket()
        return found

    def _make_room(self) -> None:
        now_ms = self._clock_ms()
        oldest = list(islice(self._rates.items(), _LOOKED_AT))
        for key, rate in oldest:
            if rate.is_idle(now_ms):
                del self._rates[key]
        if len(self._rates) >= METERS_MAX:
            del self._rates[oldest[0][0]]

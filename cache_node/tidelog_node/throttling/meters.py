"""Measures clients' use of their quotas in the last time windows, one meter for each limit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from tidelog_core.quotas.quota_keys import QuotaKey
from tidelog_core.quotas.token_bucket import TokenBucket
from tidelog_core.quotas.windowed_rate import WindowedRate

from tidelog_node.throttling.rate_limit import MeterKey, RateLimit

# Clients make up their ids, and each id may have a meter. Sessions keep those that they use.
METERS_MAX = 20_000
_LOOKED_AT = 100  # of the oldest, to find some that nobody uses


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
        self._limits: dict[MeterKey, RateLimit] = {}
        self._buckets: dict[MeterKey, TokenBucket] = {}
        self.active: list[RateLimit] | None = None  # limits made from now on, when they are used

    def limit(self, key: QuotaKey, shared_by: tuple[str, str]) -> RateLimit:
        """Return the limit of all who share it. A new one has no rate yet."""
        found = self._limits.get((key, shared_by))
        if found is None:
            if len(self._limits) >= METERS_MAX:
                self._make_room()
            found = RateLimit((key, shared_by), self._new_rate(), self.active)
            self._limits[key, shared_by] = found
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

    def limits(self) -> list[RateLimit]:
        """Return the limits that are kept, used or not."""
        return list(self._limits.values())

    def _make_room(self) -> None:
        now_ms = self._clock_ms()
        oldest = list(islice(self._limits.items(), _LOOKED_AT))
        for key, limit in oldest:
            if limit.meter.is_idle(now_ms):
                del self._limits[key]
        if len(self._limits) >= METERS_MAX:
            del self._limits[oldest[0][0]]

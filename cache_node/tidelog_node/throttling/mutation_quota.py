"""The quota of one request that creates or deletes partitions. Source: KIP-599."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from tidelog_core.errors import ThrottlingQuotaExceeded

from tidelog_node.throttling.client_limits import BucketLimit

K = TypeVar("K", bound=Hashable)


class MutationQuota:
    """Spends a client's tokens, one for each partition, and knows how long it must wait then.

    Strict: while the bucket is overdrawn nothing is spent, and topics are refused. Otherwise
    everything is spent, and the client waits. A topic may overdraw it once, however many partitions
    it has. Tokens are spent before the topics are changed, so requests at the same time do not
    spend the same ones, and given back for topics that were not changed.
    """

    def __init__(
        self, limit: BucketLimit | None, *, is_strict: bool, clock_ms: Callable[[], int]
    ) -> None:
        """Without a ``limit`` nothing is counted."""
        self._limit = limit
        self._is_strict = is_strict
        self._clock_ms = clock_ms
        self._until_ms = 0

    def spend(self, partition_counts: Mapping[K, int]) -> dict[K, ThrottlingQuotaExceeded]:
        """Spend tokens for each topic in turn; return the errors of those that are refused."""
        if self._limit is None:
            return {}
        (bucket, rate), now_ms = self._limit, self._clock_ms()
        refused: dict[K, ThrottlingQuotaExceeded] = {}
        for topic, count in partition_counts.items():
            if self._is_strict and bucket.is_overdrawn(rate, now_ms):
                refused[topic] = ThrottlingQuotaExceeded(
                    "The throttling quota has been exceeded: the client may create and delete"
                    f" {rate:g} partitions a second."
                )
            else:
                bucket.take(count, rate, now_ms)
        if refused or not self._is_strict:
            self._until_ms = now_ms + bucket.throttle_ms(rate, now_ms)
        return refused

    def give_back(self, partition_count: int) -> None:
        """Give back tokens for partitions that were not created or deleted."""
        if self._limit is not None and partition_count:
            self._limit.bucket.take(-partition_count, self._limit.rate, self._clock_ms())

    def throttle_ms(self) -> int:
        """Return how long the client must still wait."""
        return max(0, self._until_ms - self._clock_ms())

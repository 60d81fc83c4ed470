"""A rate limit, and its use by all clients that share it."""

from __future__ import annotations

from tidelog_core.quotas.quota_keys import QuotaKey
from tidelog_core.quotas.windowed_rate import WindowedRate

ACTIVE_MAX = 4_000
MeterKey = tuple[QuotaKey, tuple[str, str]]
"""The kind of limit, and the user and client id that share it."""


class RateLimit:
    """One limit on this node. Sessions keep a reference, so a changed rate counts for all."""

    __slots__ = ("_active", "is_active", "key", "meter", "over_ms", "quota", "rate", "used")

    def __init__(
        self, key: MeterKey, meter: WindowedRate, active: list[RateLimit] | None = None
    ) -> None:
        """When it is used it adds itself to ``active``, unless there are very many.

        Once, until ``is_active`` is set to false.
        """
        self.key = key
        self.meter = meter
        self.quota = 0.0  # a second, as it is stored
        self.rate = 0.0  # a second, for this node
        self.used = 0.0  # since ``take_used``
        self.over_ms: int | None = None  # when it was last known that more is wanted
        self.is_active = False
        self._active = active

    def count(self, amount: float, now_ms: int) -> int:
        """Count an amount; return for how many ms its client must wait."""
        self.meter.add(amount, now_ms)
        self.used += amount
        if not self.is_active:
            self._activate()
        wait_ms = self.meter.throttle_ms(self.rate, now_ms)
        if wait_ms:
            self.over_ms = now_ms
        return wait_ms

    def note_waiting(self, now_ms: int) -> None:
        """Note that a client waits: it wants more."""
        self.over_ms = now_ms
        if not self.is_active:
            self._activate()

    def take_back(self, amount: float, now_ms: int) -> None:
        """Count an amount no longer that was counted at the same time."""
        self.meter.add(-amount, now_ms)
        self.used -= amount

    def _activate(self) -> None:
        active = self._active
        if active is not None and len(active) < ACTIVE_MAX:
            self.is_active = True
            active.append(self)

    def take_used(self) -> float:
        """Return the amount that was used since the last call."""
        used, self.used = self.used, 0.0
        return used

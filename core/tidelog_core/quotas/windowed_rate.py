"""A rate over the last windows of time, as Kafka measures it.

The sum of the last windows (11 of one second, by default) is divided by the time since the oldest
began, which counts as all but one window at least. So a client that was idle may use the quota of
ten windows at once.
Source: Kafka's ``Rate``, ``SampledStat``, ``QuotaUtils``.
"""

from __future__ import annotations

from collections import deque


class _Window:
    __slots__ = ("begin_ms", "last_ms", "sum")

    def __init__(self, now_ms: int) -> None:
        self.begin_ms = now_ms
        self.last_ms = now_ms  # of the newest amount
        self.sum = 0.0


class WindowedRate:
    """The amounts of the last windows. Times come from one clock that does not go back."""

    __slots__ = ("_newest", "_oldest", "_sum", "_windows", "size_ms", "window_count")

    def __init__(self, *, window_count: int, size_ms: int) -> None:
        """``window_count`` includes the one that is not over yet."""
        self.window_count = window_count
        self.size_ms = size_ms
        self._windows: deque[_Window] = deque()
        self._oldest: _Window | None = None  # the first and the last of ``_windows``
        self._newest: _Window | None = None
        self._sum = 0.0

    def add(self, amount: float, now_ms: int) -> None:
        """Count an amount. A negative one takes back an amount that was counted at this time."""
        newest = self._newest
        if newest is None or now_ms - newest.begin_ms >= self.size_ms:
            newest = _Window(now_ms)
            self._windows.append(newest)
            self._newest = newest
            if self._oldest is None:
                self._oldest = newest
            self._forget_old(now_ms)
        newest.sum += amount
        newest.last_ms = now_ms
        self._sum += amount

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return for how long nothing may be added until the rate is at the limit; 0 within it.

        ``limit`` is a rate per second.
        """
        self._forget_old(now_ms)
        elapsed_ms = self._elapsed_ms(now_ms)
        rate = self._sum / (elapsed_ms / 1000)
        if rate <= limit:
            return 0
        return int((rate - limit) / limit * elapsed_ms + 0.5)

    def rate(self, now_ms: int) -> float:
        """Return the rate per second."""
        self._forget_old(now_ms)
        return self._sum / (self._elapsed_ms(now_ms) / 1000)

    def is_idle(self, now_ms: int) -> bool:
        """Return whether it is as if nothing had ever been added."""
        self._forget_old(now_ms)
        return self._oldest is None

    def _elapsed_ms(self, now_ms: int) -> int:
        oldest, size_ms = self._oldest, self.size_ms
        elapsed_ms = now_ms - oldest.begin_ms if oldest is not None else 0
        missing_count = self.window_count - 1 - elapsed_ms // size_ms
        return max(elapsed_ms + max(0, missing_count) * size_ms, 1)

    def _forget_old(self, now_ms: int) -> None:
        oldest, oldest_ms = self._oldest, now_ms - self.window_count * self.size_ms
        if oldest is None or oldest.last_ms > oldest_ms:
            return
        windows = self._windows
        while windows and windows[0].last_ms <= oldest_ms:
            windows.popleft()
        self._oldest = windows[0] if windows else None
        if not windows:
            self._newest = None
        self._sum = sum([window.sum for window in windows])

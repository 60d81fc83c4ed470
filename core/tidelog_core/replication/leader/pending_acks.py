"""The ``acks=all`` answers that wait for the high watermark."""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, NamedTuple, TypeVar

from tidelog_core.errors import TidelogError

Token = TypeVar("Token")


class ReleasedAck(NamedTuple, Generic[Token]):
    """An ack to send now; ``error`` is ``None`` for a success."""

    token: Token
    error: TidelogError | None


class PendingAcks(Generic[Token]):
    """The pending acks and their offsets; each is taken once, released or failed."""

    def __init__(self) -> None:
        # (required offset, number, token): plain tuples, because every produce request with
        # acks=all is compared with others here. Numbers are unique, so tokens are not compared.
        self._pending: list[tuple[int, int, Token]] = []
        self._order = itertools.count()
        self._released: list[ReleasedAck[Token]] = []

    def add(self, required_offset: int, token: Token) -> None:
        """Remember that ``token`` waits for every record below ``required_offset``."""
        heapq.heappush(self._pending, (required_offset, next(self._order), token))

    def release(self, high_watermark: int, error: TidelogError | None) -> None:
        """Release the acks that the high watermark has passed, with this outcome."""
        pending = self._pending
        while pending and pending[0][0] <= high_watermark:
            self._released.append(ReleasedAck(heapq.heappop(pending)[2], error))

    def fail_all(self, error: TidelogError) -> None:
        """Fail all pending acks, including completed ones that were not called yet."""
        tokens = [ack.token for ack in self._released]
        tokens += [token for _, _, token in sorted(self._pending)]
        self._pending.clear()
        self._released = [ReleasedAck(token, error) for token in tokens]

    def take(self) -> list[ReleasedAck[Token]]:
        """Return the acks to send now."""
        released, self._released = self._released, []
        return released

"""Limits how much of a leader's answers one turn of the event loop applies.

A turn ends behind the batch that reaches a limit. 1,000 of the smallest batches take some 4 ms
compiled. A partition counts as one more batch.
"""

from __future__ import annotations

from tidelog_core.log.values import AppendInfo, AppendLimit

TURN_BATCHES_MAX = 1_000
TURN_BYTES_MAX = 4_194_304


class TurnRoom:
    """The batches and bytes that one turn may still apply."""

    __slots__ = ("_batches_left", "_bytes_left")

    def __init__(self) -> None:
        self._batches_left = TURN_BATCHES_MAX
        self._bytes_left = TURN_BYTES_MAX

    @property
    def is_used_up(self) -> bool:
        """Whether the turn must end now."""
        return self._batches_left <= 0 or self._bytes_left <= 0

    @property
    def limit(self) -> AppendLimit:
        """The limit of the next append."""
        return AppendLimit(self._batches_left, self._bytes_left)

    def note_append(self, info: AppendInfo) -> None:
        """Note an append."""
        self._batches_left -= info.batch_count
        self._bytes_left -= info.size_bytes

    def note_partition(self) -> None:
        """Note that a partition's result was applied."""
        self._batches_left -= 1

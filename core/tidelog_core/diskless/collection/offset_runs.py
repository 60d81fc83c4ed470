"""The end offsets of one partition by object, in a few bytes for each.

A chain of an hour has tens of thousands of objects, and each may have slices of a thousand
partitions. Sequences and offsets grow, so only their differences are stored, as varints.
"""

from __future__ import annotations

from collections.abc import Iterator

_CUT_BYTES = 4_096  # that were read, before they are dropped


class _Run:
    """Pairs of a sequence and an offset, both growing. The first one can be taken."""

    __slots__ = ("_at", "_data", "_last_sequence", "end_offset", "first_offset", "first_sequence")

    def __init__(self, sequence: int, end_offset: int) -> None:
        self.first_sequence = self._last_sequence = sequence
        self.first_offset = self.end_offset = end_offset
        self._data = bytearray()
        self._at = 0

    def add(self, sequence: int, end_offset: int) -> None:
        """Add a pair behind the last one."""
        _write(self._data, sequence - self._last_sequence)
        _write(self._data, end_offset - self.end_offset)
        self._last_sequence, self.end_offset = sequence, end_offset

    def drop_first(self) -> bool:
        """Go on with the second pair. Returns whether there is one."""
        if self._at == len(self._data):
            return False
        step, self._at = _read(self._data, self._at)
        self.first_sequence += step
        step, self._at = _read(self._data, self._at)
        self.first_offset += step
        if self._at > _CUT_BYTES:
            del self._data[: self._at]
            self._at = 0
        return True


class OffsetRuns:
    """The objects that have records of one partition, by the offset that they end at.

    Offsets grow with the sequence, but for a gateway's, whose offsets nobody knows. One that is
    smaller than the last begins a run of its own.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def add(self, sequence: int, end_offset: int) -> None:
        """Note that an object ends there; sequences grow."""
        fitting = [run for run in self._runs if run.end_offset <= end_offset]
        if fitting:
            max(fitting, key=_end_offset).add(sequence, end_offset)
        else:
            self._runs.append(_Run(sequence, end_offset))

    def take(self, up_to: int) -> Iterator[int]:
        """Yield and forget the sequences of the objects that end at or below the offset."""
        left: list[_Run] = []
        for run in self._runs:
            is_there = True
            while is_there and run.first_offset <= up_to:
                yield run.first_sequence
                is_there = run.drop_first()
            if is_there:
                left.append(run)
        self._runs = left

    def __bool__(self) -> bool:
        return bool(self._runs)


def _end_offset(run: _Run) -> int:
    return run.end_offset


def _write(data: bytearray, number: int) -> None:
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)


def _read(data: bytearray, at: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := data[at]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    return number | byte << shift, at + 1

"""The rules on which the safety of chains rests, each one a decision of its own.

``docs/internals/diskless.md`` says why each of them holds. The simulation leaves them out one at a
time, and must notice (``tests/simulation/diskless``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidelog_core.diskless.wal.header import WalHeader, WalKind


class ChainRules:
    """The rules that owners, heirs and collectors of a chain must keep."""

    def committed_end(self, committed_end: int, stored: Collection[int]) -> int:
        """Return the first sequence that is not known to exist, from the last known end on."""
        while committed_end in stored:
            committed_end += 1
        return committed_end

    def may_refer(self, sequence: int, gateway_committed_end: int) -> bool:
        """Return whether a reference to a gateway's object may be put into a leader's chain."""
        return sequence < gateway_committed_end

    def known_end(self, known_end: int, headers: Iterable[WalHeader]) -> int:
        """Return the sequence below which every object has existed, by the listed headers."""
        return max([known_end, *(header.committed_end for header in headers)])

    def is_end(self, header: WalHeader) -> bool:
        """Return whether the object at the chain's known end ends it for good."""
        return header.kind is WalKind.SEAL

    def confirms_stored_seals(self) -> bool:
        """Whether an heir lists the chain again once it has put a seal.

        A seal whose PUT was late may have got the place of an object that its owner had collected.
        Then it ends nothing, and the owner never meets it. Something above it says so.
        """
        return True

    def confirms_found_seals(self) -> bool:
        """Whether another process's seal counts only in a listing that was made after it was put.

        The listing may have named an object that was collected, and whose place a late seal
        got, before its header was read.
        """
        return True

    def may_take_over(self, *, is_sealed: bool) -> bool:
        """Return whether an heir may write the next epochs of a chain's partitions."""
        return is_sealed

    def collection_end(self, last_committed: WalHeader) -> int:
        """Return the sequence below which an owner may delete objects that nobody needs.

        The header of the last committed object, which stays, shows that these existed.
        Others might take a place that was deleted earlier for one that was never filled.
        """
        return last_committed.committed_end

    def keeps_seal(self) -> bool:
        """Whether a collected chain keeps its seal: without it the owner could go on."""
        return True

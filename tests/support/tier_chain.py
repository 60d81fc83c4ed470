"""Check that tiered segments follow one another, from their index objects alone."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog_core.errors import CorruptObject
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.integrity import CHAIN_PROBLEM, continued_hashes, continues_chain


def verify_chain(indexes: Iterable[tuple[str, IndexFile]]) -> None:
    """Check that each index follows those before it, by base offset and end offset.

    The first may follow segments that retention has removed. Raises ``CorruptObject``.
    """
    bases: dict[bytes, int] = {}
    first_end = end_offset = 0
    for key, index in indexes:
        if not bases:
            first_end = end_offset = index.end_offset
        elif index.base_offset > end_offset:
            raise CorruptObject(
                key, f"offsets [{end_offset}, {index.base_offset}) are missing before it"
            )
        elif not continues_chain(
            index.base_offset, index.previous_hash, first_end=first_end, bases=bases
        ):
            raise CorruptObject(key, CHAIN_PROBLEM)
        bases.update(continued_hashes(index))
        end_offset = max(end_offset, index.end_offset)

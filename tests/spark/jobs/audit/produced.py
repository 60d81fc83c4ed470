"""Batches of producers that number what they send."""

from __future__ import annotations

from tests.support.batches import batch


def produced(
    base_offset: int,
    producer_id: int,
    epoch: int,
    sequence: int,
    count: int = 1,
    timestamp_ms: int = 0,
) -> bytes:
    """Return a batch as a log has it."""
    return bytes(
        batch(
            count,
            timestamps=[timestamp_ms] * count,
            key=b"k",
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )

"""The limits of a chain's writer, by the node's settings and its store's prices."""

from __future__ import annotations

from dataclasses import replace

from tidelog_core.config import NodeConfig
from tidelog_core.diskless.chain.chain_writer import WriterLimits
from tidelog_core.diskless.chain.put_pace import PaceLimits

PAID_NOTE_MS = 5.0  # a part of what an idle chain waits before it puts an object
FREE_FLUSH_MS = 10.0  # while another object is being written
FREE_IDLE_FLUSH_MS = 0.5  # as long as a turn of the loop may take, which brings several appends
# What came while an object was written would go into the next one alone, and what its clients send
# once they are acknowledged would wait for that one: twice the objects, and no ack comes sooner.
FREE_GATHER_MS = 1.0


def writer_limits(config: NodeConfig, *, pays_for_requests: bool = True) -> WriterLimits:
    """Return the limits of a chain by the node's settings.

    Where requests cost nothing there is no budget for them, and what waits is put soon after
    nothing is in flight: the store's own pace decides how much goes into an object. Nothing is
    written twice at once: on one machine that would only delay the first write.
    """
    limits = WriterLimits(
        flush_bytes=config.diskless_append_buffer_max_bytes,
        flush_ms=config.diskless_append_commit_interval_ms,
        note_ms=min(PAID_NOTE_MS, config.diskless_append_commit_interval_ms / 4),
        buffer_bytes_max=config.diskless_buffer_max_bytes,
        pace=PaceLimits(
            in_flight_max=config.diskless_append_uploads_max,
            hedge_percentile=config.diskless_append_hedge_percentile,
            puts_per_second_max=config.diskless_append_puts_per_second_max,
        ),
    )
    if pays_for_requests:
        return limits
    return replace(
        limits,
        flush_ms=min(limits.flush_ms, FREE_FLUSH_MS),
        idle_flush_ms=FREE_IDLE_FLUSH_MS,
        gather_ms=FREE_GATHER_MS,
        note_ms=0.0,  # at the end of the turn of the loop
        pace=replace(limits.pace, hedge_percentile=0.0, puts_per_second_max=0.0),
    )


def kept_bytes_max(limits: WriterLimits) -> int:
    """Return the bytes of objects that the worker may keep: those in flight, and one more."""
    return (limits.pace.in_flight_max + 1) * limits.object_bytes_max

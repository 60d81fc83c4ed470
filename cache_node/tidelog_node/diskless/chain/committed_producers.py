"""Producers of led partitions at committed offsets, for checkpoints of the chain.

    take        at the ends of the logs, where logs know their producers
    committed   of those, what the chain has committed by now

Whatever a log has appended is committed a moment later, or its chain ends. So a snapshot counts
once the high watermark has reached its offset, and then it is right for ever.

A checkpoint has room for some of them; partitions with long tails come first. An heir of the others
reads footers instead. An earlier snapshot takes room as well: it counts until the next one does.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_core.diskless.wal.build import Snapshot
from tidelog_core.log.producers.producer_snapshot import encode_snapshot
from tidelog_core.turns import Turn

from tidelog_node.diskless.chain.chain_partition import ChainPartition

SNAPSHOTS_BYTES_MAX = 512 << 10  # of all partitions together
PRODUCERS_MAX = 1_000  # of a partition: more would hold up the loop


class CommittedProducers:
    """Snapshots of a chain's partitions. For the node's event loop."""

    def __init__(self, bytes_max: int = SNAPSHOTS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._taken: dict[ChainPartition, Snapshot] = {}
        self._committed: dict[ChainPartition, Snapshot] = {}  # the last ones

    async def take(self, partitions: Sequence[ChainPartition]) -> None:
        """Take snapshots of partitions that are in the chain, at the ends of their logs."""
        self.committed(partitions)
        taken: dict[ChainPartition, Snapshot] = {}
        kept: dict[ChainPartition, Snapshot] = {}
        left_bytes, turn = self._bytes_max, Turn()
        for one in sorted(partitions, key=lambda one: one.object_count, reverse=True):
            await turn.step()
            last = self._committed.get(one)
            snapshot = _snapshot(one, last)
            size_bytes = max((len(some.data) for some in (last, snapshot) if some), default=0)
            if size_bytes > left_bytes:
                continue
            left_bytes -= size_bytes
            if last is not None:
                kept[one] = last
            if snapshot is not None:
                taken[one] = snapshot
        self._taken, self._committed = taken, kept

    def committed(self, partitions: Sequence[ChainPartition]) -> tuple[Snapshot, ...]:
        """Return the last snapshots of these partitions that have been committed since.

        A partition that has left the chain has none: what it had pending may never be committed.
        """
        left = [one for one in partitions if one.replica.chain is one]
        committed = {one: self._committed[one] for one in left if one in self._committed}
        for one in left:
            log, taken = one.replica.opened_log, self._taken.get(one)
            if taken is not None and log is not None and log.high_watermark >= taken.end_offset:
                committed[one] = taken
        self._committed = committed
        return tuple(committed.values())


def _snapshot(one: ChainPartition, last: Snapshot | None) -> Snapshot | None:
    """Return the producers at the end of the partition's log; ``last`` is an earlier snapshot."""
    log = one.replica.opened_log
    if one.replica.chain is not one or log is None or log.is_offline:
        return None
    state = log.producers.state
    if last is not None and last.end_offset == state.end_offset:
        return last
    if state.end_offset != log.log_end_offset or len(state) > PRODUCERS_MAX:
        return None
    topic_id, partition = one.name
    data = encode_snapshot(state)
    return Snapshot(topic_id, partition, state.end_offset, data, one.leader_epoch)

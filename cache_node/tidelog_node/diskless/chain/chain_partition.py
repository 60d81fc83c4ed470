"""A partition in its leader's chain, and the appends that the chain has not noted yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tidelog_core.diskless.wal.build import ForeignSlice, WalSlice, refer_to
from tidelog_core.errors import StorageError
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.model import INT64_MAX

from tidelog_node.replicas.replica import Replica

# A partition with more bytes or appends that are not noted is noted at once.
NOTE_BYTES_MAX = 1 << 20
NOTE_APPENDS_MAX = 1024


def let_go_of_files(replica: Replica, up_to: int = INT64_MAX) -> None:
    """Let the log delete files that it kept until the chain had their records below ``up_to``."""
    log = replica.opened_log
    if log is None or not log.is_held:
        return
    try:
        log.release(up_to)
    except StorageError as error:
        replica.note_failure(error)


class CommittedForeign(NamedTuple):
    """A slice in a committed object of a gateway's chain."""

    gateway: ChainName
    committed_end: int  # of the gateway's chain
    sequence: int
    position: int
    content: WalSlice
    # Of the slice if the content has only the header of its batch: the log gets the rest later.
    crc32c: int | None = None
    now_s: float = 0.0  # the loop's time


class ChainPartition:
    """Adds up a partition's appends until they are noted: nothing is done per record."""

    __slots__ = (
        "_begin",
        "_flush",
        "_leave",
        "_refer",
        "_referring",
        "append_count",
        "base_offset",
        "chain_end",
        "end_offset",
        "leader_epoch",
        "name",
        "object_count",
        "replica",
        "sealed_s",
        "segment_base_offset",
        "size_bytes",
        "unread",
    )

    def __init__(
        self,
        replica: Replica,
        leader_epoch: int,
        *,
        begin: Callable[[ChainPartition], None],
        flush: Callable[[], None],
        leave: Callable[[Replica], None],
        refer: Callable[[ForeignSlice, int], None],
        object_count: int = 0,
    ) -> None:
        """``begin`` is called with the first of the appends, ``flush`` if they are many bytes.

        ``refer`` gets references, and how far the gateway's chain is committed. ``object_count``
        says how long a tail the partition comes with.
        """
        self.replica = replica
        self.name = replica.name
        self.leader_epoch = leader_epoch
        self.base_offset = 0
        self.end_offset = 0
        self.size_bytes = 0  # 0: nothing waits to be noted
        self.append_count = 0
        self.chain_end = 0  # the chain has every record below, as far as was heard
        # Base offsets of batches whose records the log does not have yet, ascending, and since when
        # by the loop's time. The high watermark does not pass the first one.
        self.unread: dict[int, float] = {}
        # Of ``LongTails``: objects with records of the active segment, as far as it was seen.
        self.object_count = object_count
        self.segment_base_offset = -1
        self.sealed_s: float | None = None  # the loop's time; of a segment with a long tail
        self._begin = begin
        self._flush = flush
        self._leave = leave
        self._refer = refer
        self._referring: CommittedForeign | None = None

    @contextmanager
    def referring_to(self, foreign: CommittedForeign) -> Iterator[None]:
        """Put a reference into the chain for the records appended in this context, not their bytes.

        The append is that of the slice, or none.
        """
        self._referring = foreign
        try:
            yield
        finally:
            self._referring = None

    def note_committed(self, end_offset: int) -> int:
        """Note that the chain has every record below; return where the high watermark may go."""
        self.chain_end = max(self.chain_end, end_offset)
        return min(end_offset, next(iter(self.unread), end_offset))

    def note_read(self, base_offset: int) -> None:
        """Note that the log has the records of a batch now."""
        self.unread.pop(base_offset, None)
        if self.replica.chain is self:
            self.replica.on_chain_committed(self.note_committed(self.chain_end))

    def leave(self, replica: Replica) -> None:
        """Take nothing more of the partition: another leader epoch began, or it was dropped."""
        self._leave(replica)

    def on_append(
        self,
        replica: Replica,  # noqa: ARG002 - chains are told of all replicas alike
        base_offset: int,
        end_offset: int,
        size_bytes: int,
    ) -> None:
        """Note that the log has got records with these offsets."""
        foreign = self._referring
        if foreign is not None:
            reference = refer_to(
                foreign.content,
                gateway=foreign.gateway,
                sequence=foreign.sequence,
                position=foreign.position,
                leader_epoch=self.leader_epoch,
                base_offset=base_offset,
            )
            if foreign.crc32c is not None:
                self.unread[base_offset] = foreign.now_s
                row = reference.row._replace(crc32c=foreign.crc32c)
                reference = reference._replace(row=row)
            self._refer(reference, foreign.committed_end)
            return
        if self.size_bytes == 0:
            self.base_offset = base_offset
            self._begin(self)
        self.end_offset = end_offset
        self.size_bytes += size_bytes
        self.append_count += 1
        if self.size_bytes >= NOTE_BYTES_MAX or self.append_count >= NOTE_APPENDS_MAX:
            self._flush()

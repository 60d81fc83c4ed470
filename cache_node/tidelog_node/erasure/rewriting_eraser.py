"""Erases keys from the segments of this node's replicas, for topics without a tier.

A request is an item in the metadata store (``KeyErasure``). It stays until every replica has
carried it out, so a replica that is down finds it when it is back.

    leader       rolls, and writes the end offset of the erasure once all below is committed
    each replica waits until it has all records below that, committed and flushed, and rolls
                 has a process rewrite the segments that hold the key (``rewriter``)
                 names each segment in the request, then replaces it
                 reports in the request that it is done

Possible interleavings, and why they are safe:

- Followers fetch. Leader and follower erase from their own files, in any order. A follower begins
  when its high watermark has reached the offset, so it has fetched all records below by then. Every
  batch keeps its header, so positions, epochs and offsets are the same before and after.
- Truncation. Committed records are cut only by an unclean election or when a disk is lost. A run
  stops when the log is cut (``SegmentsChanged``). If the log was cut later, or does not reach the
  offset after a restart while the request exists, the replica takes its report back: it may fetch
  the records again from a leader that has not erased them yet.
- A damaged segment, or the whole log, is fetched from the leader again (``SegmentRepair``,
  ``LogReopener``), which may not have erased yet. The log counts the first as a cut; the second
  makes another log object. Either way the replica takes its report back.
- Retention deletes segments: they need no erasure, and the run starts again.
- Compaction. One task at a time rewrites a log (``busy``). Either order leaves the same records:
  all records of the key go, so none that a newer one hid comes back.
- Leadership moves. The offset is stored, and all records below were committed when it was written,
  so the next leader has them. While replicas rewrite, nothing depends on the leader.
- Tiering is turned on. A segment is not replaced while it is copied (``holding_copies``). The
  caller of the erasure rewrites segments copied before in the tier, once all replicas are done.
- A crash at any file operation leaves the old segment or the new one, and the request. A segment
  is named before it is replaced, so after a crash one may be named and not replaced; the next run
  replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Collection

from tidelog_core.compaction.sealed_files import CleanedGroup
from tidelog_core.erasure.log_files import plan_erasing
from tidelog_core.errors import CorruptRecordBatch, OutcomeUnknown, TidelogError, VersionConflict
from tidelog_core.log.cleaned_segments import SegmentsChanged, SegmentToClean
from tidelog_core.log.cleaning import CleaningSource
from tidelog_core.log.local_log import LocalLog
from tidelog_core.metadata import records
from tidelog_core.metadata.erasures import (
    KEY_ERASURE_COLLECTION,
    KeyErasure,
    ReplacedSegment,
    ReplicaErasure,
)
from tidelog_core.metadata.store import Item, ItemKey, Write
from tidelog_core.metadata.update import update
from tidelog_core.model import TopicPartition
from tidelog_core.waiting import wait_and_clear

from tidelog_node.compaction.log_cleaner import ReplicaSource, Tier
from tidelog_node.compaction.messages import RewriteEnd, RewriterJob
from tidelog_node.compaction.rewriter_process import put_in_place, rewrite
from tidelog_node.erasure.committed_ends import CommittedEnds
from tidelog_node.erasure.stored_requests import READ_SECONDS, StoredRequests
from tidelog_node.node_context import NodeContext
from tidelog_node.processes.worker_version import VersionWatch
from tidelog_node.replicas.replica import Replica

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0  # between two checks of replication, flushes and compaction
FAILURE_BACKOFF_SECONDS = 60.0  # before a log whose erasure has failed is tried again
WRITE_ATTEMPTS_MAX = 20  # other replicas write the same item


_Work = Callable[[KeyErasure, Replica], Awaitable[None]]


class _Withdrawn(Exception):
    """The request is gone, or another one has replaced it."""


class RewritingEraser:
    """Carries out the requests for this node's replicas, one by one. For one event loop."""

    def __init__(
        self, node: NodeContext, *, replicas: ReplicaSource, tier: Tier, busy: set[Replica]
    ) -> None:
        """``busy`` holds the replicas whose segments any task is replacing."""
        self._node = node
        self._versions = VersionWatch(node.health, "rewriter")
        self._replicas = replicas
        self._tier = tier
        self._busy = busy
        self._ends = CommittedEnds(node.store, node.broker_id)
        self._requests = StoredRequests(node.store, KEY_ERASURE_COLLECTION, KeyErasure.from_item)
        self._changed = asyncio.Event()
        self._not_before: dict[ItemKey, float] = {}  # the loop's time
        # The log, and how often it was cut, when it was last known to be done with a request.
        self._done_logs: dict[ItemKey, tuple[LocalLog, int]] = {}

    async def start(self) -> None:
        """Take back reports that the logs no longer confirm, before anything is fetched into them.

        If the store cannot be read, ``run`` tries again.
        """
        await self._read()
        for request in self._requests:
            await self._attempt(request, self._check_done)

    async def run(self) -> None:
        """Carry out requests until cancelled."""
        unwatch = self._node.view.watch(KEY_ERASURE_COLLECTION, self._on_changed)
        try:
            while True:
                try:
                    await self._round()
                except Exception:
                    logger.exception("search for keys to erase broke, will retry")
                wait_s = CHECK_SECONDS if self._requests else READ_SECONDS
                await wait_and_clear(self._changed, wait_s)
        finally:
            unwatch()

    def _on_changed(self, keys: Collection[ItemKey]) -> None:  # noqa: ARG002
        self._requests.note_change()
        self._changed.set()

    async def _round(self) -> None:
        await self._read()
        now = asyncio.get_running_loop().time()
        for request in self._requests:
            if self._not_before.get(request.item_id, 0.0) <= now:
                await self._attempt(request, self._carry_out)

    async def _read(self) -> None:
        await self._requests.refresh()
        kept = {request.item_id for request in self._requests}
        for known in (self._not_before, self._done_logs):
            for gone in known.keys() - kept:
                del known[gone]

    async def _attempt(
        self,
        request: KeyErasure,
        work: _Work,
    ) -> None:
        replica = self._replica(request)
        if replica is None:
            return
        try:
            await work(request, replica)
        except (_Withdrawn, VersionConflict, OutcomeUnknown):
            self._requests.note_change()
        except SegmentsChanged as error:
            logger.info(
                "erasure starts again",
                extra={"partition": str(replica.partition), "reason": str(error)},
            )
        except (TidelogError, OSError) as error:
            later = asyncio.get_running_loop().time() + FAILURE_BACKOFF_SECONDS
            self._not_before[request.item_id] = later
            # A damaged batch may hold the key: the erasure is not done until the log is repaired.
            level = logging.ERROR if isinstance(error, CorruptRecordBatch) else logging.WARNING
            logger.log(
                level,
                "key not erased, will retry",
                extra={"partition": str(replica.partition), "reason": str(error)},
            )

    def _replica(self, request: KeyErasure) -> Replica | None:
        topic = self._node.view.image.topic_by_id(request.topic_id)
        if topic is None:
            return None
        replica = self._replicas.get(TopicPartition(topic.name, request.partition))
        if replica is None or replica.topic_id != request.topic_id or replica.is_in_trouble:
            return None
        return replica

    async def _check_done(self, request: KeyErasure, replica: Replica) -> None:
        """Withdraw this replica's «done» where the log may have the records again."""
        if not request.of(self._node.broker_id).is_done:
            return
        log, key = replica.log, request.item_id
        done_log, cut_count = self._done_logs.setdefault(key, (log, log.cut_count))
        is_same = done_log is log and cut_count == log.cut_count
        if is_same and log.log_end_offset >= request.up_to:
            return
        await self._say(request, lambda mine: dataclasses.replace(mine, is_done=False))
        del self._done_logs[key]

    async def _carry_out(self, request: KeyErasure, replica: Replica) -> None:
        """Take the steps that are possible now; the next check tries the others."""
        if request.of(self._node.broker_id).is_done:
            await self._check_done(request, replica)
            return
        if not request.is_taken_up:
            if replica.is_leader:
                await self._take_up(request, replica)
            return
        log = replica.log
        if log.high_watermark >= request.up_to > log.active_segment_base_offset:
            log.roll()
        segments = log.segments_to_erase(request.up_to)
        if segments is None:
            replica.note_changed()
            return
        if replica in self._busy:
            return
        self._busy.add(replica)
        try:
            await self._erase(request, replica, log, segments)
        finally:
            self._busy.discard(replica)

    async def _take_up(self, request: KeyErasure, replica: Replica) -> None:
        found = await self._ends.end_for(request.item_id, request.version, replica)
        if found is None:
            return
        up_to, is_led = found
        taken_up = dataclasses.replace(request, up_to=up_to)
        await self._node.store.commit([records.put(taken_up)], checks=[is_led])
        self._ends.forget(request.item_id)
        self._requests.note_change()
        self._changed.set()

    async def _erase(
        self,
        request: KeyErasure,
        replica: Replica,
        log: LocalLog,
        segments: tuple[SegmentToClean, ...],
    ) -> None:
        cut_count = log.cut_count
        if segments:
            source = log.begin_cleaning(segments)
            try:
                await self._rewrite(request, replica, source)
            except FileNotFoundError as error:
                if log.is_offline or log.local_log_start_offset > segments[0].base_offset:
                    raise SegmentsChanged(f"segments of {log.partition} were removed") from error
                raise
        self._done_logs[request.item_id] = log, cut_count
        await self._say(request, lambda mine: dataclasses.replace(mine, is_done=True))
        logger.info(
            "key erased",
            extra={"partition": str(replica.partition), "up_to": request.up_to},
        )

    async def _rewrite(self, request: KeyErasure, replica: Replica, source: CleaningSource) -> None:
        log, config = replica.log, self._node.config()
        task = plan_erasing(
            source,
            up_to=request.up_to,
            key_sha256=bytes.fromhex(request.key_sha256),
            index_interval_bytes=replica.config.index_interval_bytes,
        )
        job = RewriterJob(task, config.log_cleaner_io_max_bytes_per_second)
        async with contextlib.aclosing(rewrite(job, self._versions)) as results:
            async for result in results:
                if isinstance(result, RewriteEnd):
                    self._require_current(replica, log)
                    log.end_cleaning(source, 0)
                    return
                await self._put_in_place(request, replica, source, result)

    async def _put_in_place(
        self, request: KeyErasure, replica: Replica, source: CleaningSource, group: CleanedGroup
    ) -> None:
        cleaned, log = group.cleaned, replica.log
        if cleaned is None:
            return
        seal = cleaned.seal
        named = ReplacedSegment(seal.base_offset, seal.end_offset, group.removed_record_count)
        await self._say(request, lambda mine: mine.with_replaced(named))
        async with self._tier.holding_copies(replica):
            self._require_current(replica, log)
            await put_in_place(log, source, cleaned, self._node.executor)
            replica.note_changed()

    def _require_current(self, replica: Replica, log: LocalLog) -> None:
        is_same = self._replicas.get(replica.partition) is replica and replica.opened_log is log
        if not is_same or log.is_offline:
            raise SegmentsChanged(f"{replica.partition} has changed while a key was erased")

    async def _say(
        self, request: KeyErasure, change: Callable[[ReplicaErasure], ReplicaErasure]
    ) -> None:
        """Change this replica's report in the request. Raises ``_Withdrawn``."""

        def say(item: Item | None) -> tuple[None, Write]:
            if item is None:
                raise _Withdrawn
            found = KeyErasure.from_item(item)
            if found.up_to != request.up_to:
                raise _Withdrawn
            return None, records.put(found.with_replica(change(found.of(self._node.broker_id))))

        await update(self._node.store, request.item_id, say, attempts_max=WRITE_ATTEMPTS_MAX)
        self._requests.note_change()
        self._changed.set()

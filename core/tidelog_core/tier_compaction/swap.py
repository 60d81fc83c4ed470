"""Replaces tiered segments with a rewritten one.

1. the claim on the partition, with a rewrite epoch that is greater than all before it
2. the new segment's item: COPY_STARTED          names the objects, for a later clean-up
3. its log object, then its index object
4. in one commit: the new segment COPY_FINISHED, the old ones DELETE_STARTED with the time of
   deletion, the claim renewed and logged        readers find the old or the new ones, complete;
                                                 nodes read the segments again
5. file.delete.delay.ms later: the old objects and items are deleted, as in retention

Every step is conditional, so any number of processes may take part and fail:

- The claim keeps two processes from doing the same work. It does not make a swap safe, because its
  expiry is wall-clock time. Commit 4 expects the claim as its holder left it, and every segment as
  it was read. A late process conflicts, and removes its own objects.
- Retention, the deletion of a topic and the clean-up of an older claim change a segment's item:
  commit 4 then fails as a whole. After commit 4 the old segments are in the state that retention
  leaves, and any process that applies retention (``tidelog_core.tier.lifecycle``), or the claim's
  next holder, deletes them.
- A new leader and the copier add segments, and never change a finished one. A segment that they
  chain to a replaced segment continues the new one, which names it.
- A crash before commit 4 leaves a COPY_STARTED item: the next holder deletes both objects and the
  item before it swaps anything. An object that is put even later has a lower rewrite epoch than
  the current ones, in the bucket too, and the scrub removes it.
- Step 2 requires the partition's item, so nothing is begun for a deleted topic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

from tidelog_core.errors import (
    OutcomeUnknown,
    TidelogError,
    UnknownTopicOrPartition,
    VersionConflict,
)
from tidelog_core.metadata import records
from tidelog_core.metadata.records import Partition, SegmentMeta, SegmentState
from tidelog_core.metadata.rewrite_claims import RELEASED_MS, RewriteClaim, rewrite_claim_key
from tidelog_core.metadata.store import ABSENT, COMMIT_WRITES_MAX, Check, MetadataStore, Write
from tidelog_core.metadata.update import ATTEMPTS_MAX, retried
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import SegmentKeys
from tidelog_core.tier.lifecycle import (
    AT_ONCE,
    end_deletions,
    finished,
    marked_for_deletion,
    read_segments,
    select_deletable,
    start_deletions,
)

CLAIM_MS = 900_000  # renewed with every step; longer than reading one segment takes
OLD_SEGMENTS_MAX = COMMIT_WRITES_MAX - 2  # besides the new segment and the claim


class PartitionClaimed(TidelogError):
    """Another process rewrites the partition's segments, or has taken the claim over."""

    hint = "try again once the other job has ended"

    def __init__(self, topic_id: UUID, partition: int) -> None:
        super().__init__(
            f"partition {partition} of {topic_id} is being rewritten by another process"
        )
        self.topic_id, self.partition = topic_id, partition


async def take_claim(
    store: MetadataStore, topic_id: UUID, partition: int, *, holder: UUID, now_ms: int
) -> RewriteClaim:
    """Take the claim for ``holder`` and return it.

    Raises ``PartitionClaimed``, ``UnknownTopicOrPartition`` and the errors of the store.
    """

    async def attempt() -> RewriteClaim:
        owner = await check_of_partition(store, topic_id, partition)
        item = await store.get(rewrite_claim_key(topic_id, partition))
        held = None if item is None else RewriteClaim.from_item(item)
        if held is not None and held.holder != holder and held.expires_ms > now_ms:
            raise PartitionClaimed(topic_id, partition)
        # A restored cluster has segments of claims whose items are lost.
        epochs = [meta.rewrite_epoch for meta in await read_segments(store, topic_id, partition)]
        claim = RewriteClaim(
            topic_id=topic_id,
            partition=partition,
            rewrite_epoch=1 + max([0 if held is None else held.rewrite_epoch, *epochs]),
            holder=holder,
            expires_ms=now_ms + CLAIM_MS,
            version=ABSENT if held is None else held.version,
        )
        await store.commit([records.put(claim, is_logged=False)], checks=[owner])
        return dataclasses.replace(claim, version=claim.version + 1)

    return await retried(attempt)


class SegmentSwaps:
    """The swaps of one partition under one claim. One task at a time."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        claim: RewriteClaim,
        *,
        keys_of: Callable[[SegmentMeta], SegmentKeys],
        clock_ms: Callable[[], int],
        kms_key_id: str = "",
    ) -> None:
        """``kms_key_id``: the key of KMS that new objects are encrypted with; empty: none."""
        self._store = store
        self._objects = objects
        self._claim = claim
        self._keys_of = keys_of
        self._clock_ms = clock_ms
        self._kms_key_id = kms_key_id

    @property
    def rewrite_epoch(self) -> int:
        """The claim's epoch, which the new segments have."""
        return self._claim.rewrite_epoch

    @property
    def claim(self) -> RewriteClaim:
        """The claim, under which other processes may begin segments."""
        return self._claim

    async def abandon_started(self) -> None:
        """Remove the segments that were begun under this claim and not swapped in."""
        metas = await read_segments(self._store, self._claim.topic_id, self._claim.partition)
        for meta in metas:
            if meta.state is SegmentState.COPY_STARTED and meta.rewrite_epoch == self.rewrite_epoch:
                await self.abandon(meta)

    async def clean_up(self) -> None:
        """Remove the unfinished segments of earlier claims, and replaced segments that are due."""
        metas = await read_segments(self._store, self._claim.topic_id, self._claim.partition)
        left = [
            meta
            for meta in metas
            if meta.state is SegmentState.COPY_STARTED
            and 0 < meta.rewrite_epoch < self.rewrite_epoch
        ]
        for meta in left:
            await self.abandon(meta)
        await self._end_deletions(metas)

    async def renew(self) -> None:
        """Renew the claim once a third of its time is over. Raises ``PartitionClaimed``."""
        if self._claim.expires_ms - self._clock_ms() < CLAIM_MS * 2 // 3:
            await self._commit([])

    async def next_round(self) -> None:
        """Give the claim a new epoch, so that segments swapped in under this one can be replaced.

        Raises ``PartitionClaimed``.
        """
        await self._commit([], rewrite_epoch=self.rewrite_epoch + 1)

    async def start(self, segment: SegmentMeta) -> SegmentMeta:
        """Record that the new segment's objects may exist from now on.

        Raises ``PartitionClaimed``, ``UnknownTopicOrPartition`` if the topic is deleted.
        """
        assert segment.state is SegmentState.COPY_STARTED
        assert segment.rewrite_epoch == self.rewrite_epoch
        topic_id, partition = self._claim.topic_id, self._claim.partition

        async def attempt() -> SegmentMeta:
            owner = await check_of_partition(self._store, topic_id, partition)
            await self._commit([records.put(segment, is_logged=False)], checks=[owner])
            return dataclasses.replace(segment, version=segment.version + 1)

        return await retried(attempt, on=(VersionConflict,))  # of the partition's item

    async def put(self, segment: SegmentMeta, log: Path, index: bytes) -> None:
        """Store the new segment's objects, the index last; durable on return."""
        keys = self._keys_of(segment)
        await self._objects.put_file(keys.log, log, kms_key_id=self._kms_key_id)
        await self._objects.put(keys.index, index, kms_key_id=self._kms_key_id)

    async def finish(
        self, new: SegmentMeta, old: Sequence[SegmentMeta], *, delete_delay_ms: int
    ) -> bool:
        """Replace the old segments with the new one; return whether that was done.

        False if one of them has changed; the new one is removed then. Raises
        ``PartitionClaimed`` and, if the outcome is not known, ``OutcomeUnknown``.
        """
        assert len(old) <= OLD_SEGMENTS_MAX
        deletable_ms = self._clock_ms() + delete_delay_ms
        marked = [marked_for_deletion(segment, deletable_ms=deletable_ms) for segment in old]
        # By which retention judges records without a timestamp.
        created_ms = max(segment.created_ms for segment in old)
        whole = dataclasses.replace(finished(new), created_ms=created_ms)
        writes = [records.put(segment, is_logged=False) for segment in (whole, *marked)]
        try:
            await self._commit(writes, is_logged=True)
        except VersionConflict:
            await self.abandon(new)
            return False
        return True

    async def mark_compacted(self, segment: SegmentMeta, compacted_up_to: int) -> None:
        """Record that compaction leaves the segment's bytes unchanged.

        A reader of the bucket alone does not see this. Raises ``PartitionClaimed``.
        """
        marked = dataclasses.replace(segment, compacted_up_to=compacted_up_to)
        try:
            await self._commit([records.put(marked, is_logged=False)])
        except VersionConflict:
            return  # Retention has taken it.

    async def abandon(self, segment: SegmentMeta) -> None:
        """Remove a new segment that will not be swapped in, unless its item has changed."""
        try:
            given_up = await start_deletions(self._store, [segment], deletable_ms=AT_ONCE)
        except VersionConflict:
            return  # It was swapped in after all.
        await self._end_deletions(given_up)

    async def release(self) -> None:
        """Release the claim."""
        try:
            await self._commit([], expires_ms=RELEASED_MS)
        except PartitionClaimed:
            return

    async def _end_deletions(self, segments: Sequence[SegmentMeta]) -> None:
        due = select_deletable(segments, now_ms=self._clock_ms())
        await end_deletions(self._store, self._objects, due, keys_of=self._keys_of)

    async def _commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        expires_ms: int | None = None,
        rewrite_epoch: int | None = None,
        is_logged: bool = False,
    ) -> None:
        """Commit under the claim, and renew it.

        Raises ``PartitionClaimed`` if another process has the claim, ``VersionConflict``
        if another item has changed. An unknown outcome is settled by reading the claim.
        """
        until_ms = self._clock_ms() + CLAIM_MS if expires_ms is None else expires_ms
        epoch = self.rewrite_epoch if rewrite_epoch is None else rewrite_epoch
        renewed = dataclasses.replace(self._claim, expires_ms=until_ms, rewrite_epoch=epoch)
        claim = records.put(renewed, is_logged=is_logged)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                await self._store.commit([claim, *writes], checks=checks)
            except (VersionConflict, OutcomeUnknown) as error:
                found = await self._store.get(claim.id)
                version = ABSENT if found is None else found.version
                is_ours = found is not None and dict(found.body) == dict(renewed.to_body())
                if is_ours and version == self._claim.version + 1:
                    break  # This attempt or an earlier one succeeded: no other process writes this.
                if version != self._claim.version:
                    raise PartitionClaimed(self._claim.topic_id, self._claim.partition) from None
                if isinstance(error, VersionConflict) or attempt == ATTEMPTS_MAX:
                    raise
            else:
                break
        self._claim = dataclasses.replace(renewed, version=renewed.version + 1)


async def check_of_partition(store: MetadataStore, topic_id: UUID, partition: int) -> Check:
    """Return the condition that the partition's item stays. Raises ``UnknownTopicOrPartition``."""
    item = await store.get(records.partition_key(topic_id, partition))
    if item is None:
        raise UnknownTopicOrPartition(f"there is no partition {partition} of {topic_id}")
    return records.check(Partition.from_item(item))

"""Stores the offsets that a producer commits for a group until its transaction ends.

They are pending in the store and in memory here, apart from the group's committed offsets. A marker
commits or drops them. Until then a consumer that asks for stable offsets has to retry.

The coordinator of a shard first writes the shard's claim, then reads the pending offsets. Every
write is conditional on that claim and on the group's record, so a write of an earlier coordinator
precedes the read or fails. The transaction may end between its coordinator's answer and the write;
the number of the producer's last marker shows that.
Source: ``GroupMetadataManager`` and ``OffsetMetadataManager`` of Kafka; KIP-447.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Collection
from typing import NamedTuple, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode
from tidelog_core.errors import (
    CoordinatorNotAvailable,
    CorruptItem,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutcomeUnknown,
    VersionConflict,
)
from tidelog_core.metadata.coordination.groups import GROUP_COLLECTION_PREFIX, OffsetsByTopic
from tidelog_core.metadata.coordination.transactions import (
    PendingOffsets,
    PendingOffsetsClaim,
    pending_offsets_claim_key,
    pending_offsets_collection,
)
from tidelog_core.metadata.records import delete, put
from tidelog_core.metadata.store import ABSENT, Item, ItemKey, Write
from tidelog_core.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.led_shards import Leadership
from tidelog_node.groups.classic_messages import GroupCaller
from tidelog_node.node_context import NodeContext
from tidelog_node.transactions.pending_shard import PendingShard
from tidelog_node.transactions.retries import Retries
from tidelog_node.transactions.verifier import TransactionVerifier

logger = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS_MAX = 5
ADDS_FROM = 5  # from this version on the group's coordinator adds the partition
KNOWS_ABORTABLE_FROM = 4


class _Verified(NamedTuple):
    """The coordinator's answer, and the producer's last marker as of before it was asked."""

    shard: PendingShard
    marker: int
    code: ErrorCode


class TransactionalOffsets:
    """The pending offsets of the groups that this node coordinates. For one event loop."""

    def __init__(self, node: NodeContext, *, groups: GroupCoordinator) -> None:
        self._node = node
        self._groups = groups
        self._shards: dict[int, PendingShard] = {}
        self._loading: dict[int, asyncio.Lock] = {}
        node.view.watch(GROUP_COLLECTION_PREFIX, self._forget_changed)

    async def commit(
        self,
        group_id: str,
        offsets: OffsetsByTopic,
        caller: GroupCaller,
        *,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        api_version: int,
        verifier: TransactionVerifier,
    ) -> ErrorCode:
        """Store the offsets until the transaction ends. Durable on return of ``none``.

        From API version ``ADDS_FROM`` on the group's shard is added to the transaction; in earlier
        versions it must already be part of it. Raises ``TidelogError``.
        """
        index = self._groups.shard_index(group_id)
        shard, marker, code = await self._verified(
            index,
            transactional_id,
            producer_id,
            producer_epoch,
            adds=api_version >= ADDS_FROM,
            verifier=verifier,
        )
        if code is not ErrorCode.none:
            return _for_committer(code, api_version)
        async with shard.exclusive(producer_id):
            self._require_current(shard)
            if shard.last_marker(producer_id) != marker:
                raise InvalidTxnState("the transaction has ended")
            pending = shard.pending.get((producer_id, group_id)) or PendingOffsets(
                shard=index,
                group_id=group_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                offsets={},
                version=ABSENT,
            )
            if pending.producer_epoch > producer_epoch:
                raise InvalidProducerEpoch("a newer incarnation of the producer has committed")
            pending = dataclasses.replace(pending, producer_epoch=producer_epoch)
            return await self._commit_pending(shard, pending, offsets, caller)

    async def _commit_pending(
        self,
        shard: PendingShard,
        pending: PendingOffsets,
        offsets: OffsetsByTopic,
        caller: GroupCaller,
    ) -> ErrorCode:
        """Add offsets to the pending ones, in the store and then in memory."""

        def write(timed: OffsetsByTopic) -> Write:
            """Return the write of the offsets, which have their commit times now."""
            nonlocal pending
            pending = dataclasses.replace(pending, offsets=_merged(pending.offsets, timed))
            return put(pending, is_logged=False)

        error = await self._guarded(
            shard,
            self._groups.commit_transactional(
                pending.group_id, offsets, caller, write=write, checks=[shard.claim_check]
            ),
        )
        if error is ErrorCode.none:
            shard.pending[pending.producer_id, pending.group_id] = dataclasses.replace(
                pending, version=pending.version + 1
            )
        return error

    def _require_current(self, shard: PendingShard) -> None:
        """Raise ``CoordinatorNotAvailable`` if the shard was forgotten since it was looked up."""
        if self._shards.get(shard.index) is not shard:
            raise CoordinatorNotAvailable("the shard is being read again")

    async def _verified(
        self,
        index: int,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        adds: bool,
        verifier: TransactionVerifier,
    ) -> _Verified:
        """Ask whether the shard is in the producer's transaction, unless that is known here.

        Asks again while the producer's last transaction is still being ended.
        """
        partition = TopicPartition(CONSUMER_OFFSETS_TOPIC, index)
        retries = Retries()
        while True:
            shard = await self._shard(index)
            marker = shard.last_marker(producer_id)
            code = ErrorCode.none
            if not shard.is_in_transaction(producer_id, producer_epoch):
                codes = await verifier.ask(
                    transactional_id, producer_id, producer_epoch, [partition], adds=adds
                )
                code = codes[partition]
            is_overtaken = shard.last_marker(producer_id) != marker
            is_concurrent = adds and code is ErrorCode.concurrent_transactions
            if (is_overtaken or is_concurrent) and await retries.wait():
                continue
            return _Verified(shard, marker, code)

    async def complete_transaction(
        self,
        shard_index: int,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        coordinator_epoch: int,
    ) -> None:
        """Commit or drop the producer's pending offsets in the shard. Durable on return.

        Raises ``InvalidProducerEpoch`` and ``TransactionCoordinatorFenced`` if a newer epoch of the
        producer or coordinator is known here, and ``TidelogError``.

        That nothing is pending comes from memory, see ``unstable``: the claim is read after it. At
        the next coordinator something may be, and would stay.
        """
        for _ in range(ATTEMPTS_MAX):
            shard = await self._shard(shard_index)
            if await self._complete(
                shard,
                producer_id,
                producer_epoch,
                is_commit=is_commit,
                coordinator_epoch=coordinator_epoch,
            ):
                return
            self._forget(shard)
            await self._node.view.refresh()
        raise CoordinatorNotAvailable(f"group shard {shard_index} keeps being claimed")

    async def _complete(
        self,
        shard: PendingShard,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        coordinator_epoch: int,
    ) -> bool:
        """End the pending transactions; return whether the shard is still this node's."""
        async with shard.exclusive(producer_id):
            self._require_current(shard)
            shard.take_marker(producer_id, producer_epoch, coordinator_epoch)
            pending = shard.of_producer(producer_id)
            if not pending:
                return await self._has_claim(shard)
            for each in pending:
                check = shard.claim_check
                ending = delete(each, is_logged=False)
                if is_commit:
                    work = self._groups.commit_pending(
                        each.group_id, each.offsets, also=ending, checks=[check]
                    )
                else:
                    work = self._node.store.commit([ending], checks=[check])
                await self._guarded(shard, work)
                del shard.pending[producer_id, each.group_id]
            return True

    async def _has_claim(self, shard: PendingShard) -> bool:
        """Return whether no other node has claimed the shard since."""
        claim = await self._node.store.get(pending_offsets_claim_key(shard.index))
        return claim is not None and claim.version == shard.claim_version

    async def unstable(self, group_id: str) -> frozenset[tuple[str, UUID, int]]:
        """Return the group's offsets that wait for a transaction's end: topic, its id, partition.

        Call it before reading the committed offsets: they include those of a transaction that ends
        between the two reads.

        The answer comes from memory, which is stale in a coordinator that was replaced and has not
        noticed. The next coordinator writes the shard's claim before it accepts offsets, so the
        claim is read after memory: if it is still this node's, no other node had accepted offsets
        by then. Offsets accepted later do not matter to the caller: it asks after the rebalance
        that assigned its partitions, and their previous owner has committed by then or is refused
        for its generation.

        Costs one consistent read of a small item, nothing before the cluster's first transaction.
        Raises ``NotCoordinator``, ``CoordinatorNotAvailable``, ``StoreUnavailable``.
        """
        if self._node.view.image.topic(TRANSACTION_STATE_TOPIC) is None:
            return frozenset()  # There has never been a transaction.
        for _ in range(ATTEMPTS_MAX):
            index = self._groups.shard_index(group_id)
            shard = await self._shard(index)
            found = frozenset(
                (topic, topic_id, partition)
                for pending in shard.of_group(group_id)
                for (topic, topic_id), partitions in pending.offsets.items()
                for partition in partitions
            )
            if await self._has_claim(shard):
                return found
            self._forget(shard)
            # By the newest image another node has the shard, or this one must claim it again.
            await self._node.view.refresh()
        raise CoordinatorNotAvailable(f"group shard {index} keeps being claimed")

    async def _shard(self, index: int) -> PendingShard:
        """Return the shard in this leader term; claim and read it if it is not in memory."""
        for _ in range(ATTEMPTS_MAX):
            leadership = self._groups.shard_leadership(index)
            shard = self._shards.get(index)
            if shard is not None and shard.leadership == leadership:
                return shard
            async with self._loading.setdefault(index, asyncio.Lock()):
                shard = self._shards.get(index)
                if shard is None or shard.leadership != leadership:
                    self._shards[index] = await self._load(index, leadership)
        raise CoordinatorNotAvailable(f"group shard {index} keeps changing hands")

    async def _load(self, index: int, leadership: Leadership) -> PendingShard:
        key = pending_offsets_claim_key(index)
        item = await self._node.store.get(key)
        version = ABSENT if item is None else item.version
        claim = PendingOffsetsClaim(
            shard=index,
            broker_id=self._node.broker_id,
            leader_epoch=leadership.leader_epoch,
            version=version,
        )
        await self._node.store.commit([put(claim, is_logged=False)])
        shard = PendingShard(index, leadership, claim_version=version + 1)
        for found in await self._node.store.list(pending_offsets_collection(index)):
            pending = _read(found)
            if pending is not None:
                shard.pending[pending.producer_id, pending.group_id] = pending
        return shard

    def _forget_changed(self, keys: Collection[ItemKey]) -> None:
        """Forget the shards of changed groups that have pending offsets."""
        for key in keys:
            number = key.collection.removeprefix(GROUP_COLLECTION_PREFIX)
            shard = self._shards.get(int(number)) if number.isdecimal() else None
            if shard is not None and shard.of_group(key.key):
                del self._shards[int(number)]

    async def _guarded(self, shard: PendingShard, work: Awaitable[T]) -> T:
        """Return the result of the work; forget the shard if memory may be wrong."""
        try:
            return await work
        except (VersionConflict, OutcomeUnknown, asyncio.CancelledError):
            # A cancelled request may have written too; the outcome is not known here.
            self._forget(shard)
            raise

    def _forget(self, shard: PendingShard) -> None:
        """Forget the shard, so that it is read again before it is used."""
        if self._shards.get(shard.index) is shard:
            del self._shards[shard.index]


def _read(item: Item) -> PendingOffsets | None:
    try:
        return PendingOffsets.from_item(item)
    except CorruptItem as error:
        logger.error("pending offsets cannot be read", extra={"reason": str(error)})
        return None


def _merged(known: OffsetsByTopic, new: OffsetsByTopic) -> OffsetsByTopic:
    """Return the known offsets with the new ones in place of those of the same partitions."""
    merged = {topic: dict(partitions) for topic, partitions in known.items()}
    for topic, partitions in new.items():
        merged.setdefault(topic, {}).update(partitions)
    return merged


def _for_committer(code: ErrorCode, api_version: int) -> ErrorCode:
    """Return the code for TxnOffsetCommit. Source: ``GroupCoordinatorService``."""
    match code:
        case ErrorCode.transaction_abortable if api_version < KNOWS_ABORTABLE_FROM:
            return ErrorCode.invalid_txn_state
        case ErrorCode.concurrent_transactions if api_version < ADDS_FROM:
            return ErrorCode.coordinator_not_available
        case ErrorCode.network_exception | ErrorCode.request_timed_out:
            return ErrorCode.coordinator_load_in_progress
        case ErrorCode.coordinator_not_available | ErrorCode.not_coordinator:
            # The transaction's coordinator is missing; the client would look for the group's.
            return ErrorCode.coordinator_load_in_progress
        case _:
            return code

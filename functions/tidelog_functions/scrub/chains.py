"""The scrub's part for chains of diskless topics.

An owner deletes what nobody needs of its own chain. When its node has gone, the chain is sealed,
and the scrub deletes the rest: of which the tier has everything, and what is above the seal. Seals
stay for ever. A chain that is not sealed is never touched. What a gateway has for others goes once
no reference names it; that takes the footers of all objects, once a sweep.

What a chain is needed for is read from the partitions' items, without a request to the bucket: they
name the chains of records that may not be tiered. Only a chain that none of them needs, for an
hour, is read, and its objects are deleted by what their footers say
(``diskless.collection.sealed_chain``). If some stay, it is read again when orphans are old.
Retention does this too, more often (``collect_all``); only the scrub deletes objects of unknown
topics.

The notes of heirs stay for as long as the metadata store may be set back to before them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tidelog_core.diskless.chain.expiring_rules import chain_expiring_rules, describe_expiring
from tidelog_core.diskless.chain.store import ChainStore, ListedObject
from tidelog_core.diskless.chain.walk import looks_like_seal
from tidelog_core.diskless.collection.collection import UnneededEnds
from tidelog_core.diskless.collection.referenced_objects import Referenced, read_referenced
from tidelog_core.diskless.collection.sealed_chain import (
    collect_sealed,
    read_unneeded_ends,
    unneeded_end,
)
from tidelog_core.diskless.takeover.chain_seal import ChainNotSealed
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import (
    WAL_SUFFIX,
    chain_of_key,
    chain_prefix,
    chains_prefix,
    parse_heir_key,
    parse_wal_key,
)
from tidelog_core.errors import CorruptItem, CorruptObject, StoreUnavailable
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.metadata.records import (
    Partition,
    ScrubOrphans,
    Topic,
    partition_collection,
    scrub_orphans_key,
)
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.objects.store import ObjectMeta
from tidelog_core.tier.lifecycle import delete_objects

from tidelog_functions.scrub.scrub_run import ScrubRun

logger = logging.getLogger(__name__)

PROBLEMS_MAX = 100  # named; all are counted
# Footers prove that nobody needs an object, but a reader may have planned to read it.
CHAIN_AGE_MS = 3_600_000
# DynamoDB's point-in-time recovery goes back 35 days.
HEIR_AGE_MS = 40 * 24 * 3_600_000
DISKLESS_SETTING = "diskless.enable"  # in the settings of every topic that is or was diskless
# Names of times in the record of a chain.
UNNEEDED, READ = "unneeded", "read"


@dataclass(slots=True)
class ChainReport:
    """The findings of a sweep about chains."""

    chain_count: int = 0
    collected_count: int = 0  # objects removed, or found in a dry run
    collected_bytes: int = 0
    young_count: int = 0  # objects of chains that nobody needs since not long enough
    problem_count: int = 0
    problems: list[str] = field(default_factory=list)

    def add_problem(self, text: str) -> None:
        """Count and name a problem."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)
        logger.error("chain of diskless topics is damaged", extra={"reason": text})


@dataclass(frozen=True, slots=True)
class KnownTopics:
    """The topics that a sweep knows of."""

    live: Mapping[UUID, Topic]
    deleted: Collection[UUID]
    is_complete: bool  # all items could be read


@dataclass(frozen=True, slots=True)
class _Entry:
    """Records ``[first_offset, end_offset)`` of a partition that a chain has."""

    partition: Partition
    first_offset: int
    end_offset: int | None  # None: its current chain


class ChainScrub:
    """The chains of one sweep. For one use."""

    def __init__(self, run: ScrubRun, topics: KnownTopics) -> None:
        self._run = run
        self._topics = topics
        self._entries: dict[ChainName, list[_Entry]] | None = None  # not read yet
        self._ends: dict[PartitionName, int] = {}  # below, chains are not needed
        self._seen: set[ChainName] = set()
        self._referenced: Referenced | None = None  # not read yet
        self.report = ChainReport()

    async def check_rules(self) -> None:
        """Report rules of the bucket that delete objects of chains. One request.

        Raises ``CorruptItem`` and the metadata store's errors.
        """
        try:
            rules = await chain_expiring_rules(self._run.objects, self._run.cluster_id)
        except StoreUnavailable as error:
            logger.warning("lifecycle rules cannot be read", extra={"reason": str(error)})
            return
        if rules and await self._all_entries():
            for rule in rules:
                self.report.add_problem(describe_expiring(rule, self._run.cluster_id))

    async def visit(
        self, objects: Sequence[ObjectMeta], seen_ms: Mapping[str, int]
    ) -> dict[str, int]:
        """Scrub the chain with these objects; return the times to store for it.

        ``seen_ms`` has those of earlier sweeps. Raises the stores' errors, ``ChainNotSealed``,
        ``CorruptItem`` and ``CorruptObject``.
        """
        if not objects:
            return {}
        chain = chain_of_key(objects[0].key)
        assert chain is not None
        self._seen.add(chain)
        self.report.chain_count += 1
        await self._delete_old_notes(objects)
        useless = [one for one in objects if not _stays(one)]
        if not useless or await self._is_needed(chain):
            return {}
        now_ms = self._run.clock_ms()
        # A future time comes from a wrong clock.
        since_ms = min(seen_ms.get(UNNEEDED, now_ms), now_ms)
        read_ms = min(seen_ms[READ], now_ms) if READ in seen_ms else None
        times = {UNNEEDED: since_ms} | ({} if read_ms is None else {READ: read_ms})
        age_ms = self._run.settings.limits.orphan_age_ms
        is_young = now_ms - since_ms <= min(age_ms, CHAIN_AGE_MS)
        if is_young or (read_ms is not None and now_ms - read_ms <= age_ms):
            self.report.young_count += len(useless)
            return times
        is_doubtless = now_ms - since_ms > self._run.settings.limits.doubtful_age_ms
        if await self._collect(chain, objects, is_doubtless=is_doubtless):
            return {}
        return times | {READ: now_ms}

    async def check_missing(self) -> None:
        """Report chains that items need and that have no object left. One listing for each.

        Raises ``CorruptItem`` and the stores' errors.
        """
        for chain, entries in (await self._all_entries()).items():
            if chain in self._seen:
                continue
            for entry in entries:
                if entry.end_offset is None or entry.first_offset == entry.end_offset:
                    continue
                start = max(
                    entry.first_offset,
                    entry.partition.log_start_offset,
                    await self._end_of(entry.partition),
                )
                if start < entry.end_offset and not await self._has_any(chain):
                    self._run.limit.require()
                    where = self._describe(entry.partition)
                    prefix = chain_prefix(self._run.cluster_id, chain)
                    self.report.add_problem(
                        f"{prefix}: no object is left, not even the"
                        f" last one, but only this chain had offsets [{start}, {entry.end_offset})"
                        f" of {where}; look for a lifecycle rule of the bucket"
                    )

    async def collect_all(self) -> ChainReport:
        """Scrub all chains without a sweep. One listing if nothing has changed.

        A failure of one chain does not stop the others: it is a problem. Raises ``OutOfTime``, and
        the stores' errors.
        """
        prefix, group = "", list[ObjectMeta]()
        async for found in self._run.objects.list(chains_prefix(self._run.cluster_id)):
            of = group_of_chain(self._run.cluster_id, found.key)
            if of is None:
                continue
            if of != prefix:
                await self._visit_alone(prefix, group)
                prefix, group = of, []
            group.append(found)
        await self._visit_alone(prefix, group)
        return self.report

    async def _visit_alone(self, prefix: str, group: Sequence[ObjectMeta]) -> None:
        """Visit a chain with the times that are stored for it, unless it has seals alone."""
        if all(map(_stays, group)):
            await self._delete_old_notes(group)
            return
        key = scrub_orphans_key(prefix)
        item = await self._run.store.get(key)
        try:
            before = {} if item is None else ScrubOrphans.from_item(item).first_seen_ms
            times = await self.visit(group, before)
        except (CorruptItem, CorruptObject, ChainNotSealed) as error:
            self.report.add_problem(f"{prefix}: {error}")
            return
        if times != before:
            body = ScrubOrphans(prefix=prefix, first_seen_ms=times).to_body() if times else None
            await self._run.store.commit([Write(key, body, ANY_VERSION, False)])

    # -- one chain --

    async def _delete_old_notes(self, objects: Sequence[ObjectMeta]) -> None:
        """Delete the notes of heirs that no metadata of an earlier time can need."""
        oldest_ms = self._run.clock_ms() - HEIR_AGE_MS
        old = [one for one in objects if _is_note(one) and one.modified_ms < oldest_ms]
        if old and not self._run.settings.is_dry_run:
            await delete_objects(self._run.objects, [one.key for one in old])

    async def _collect(
        self, chain: ChainName, objects: Sequence[ObjectMeta], *, is_doubtless: bool
    ) -> bool:
        """Delete the unneeded objects; return whether only seals are left."""
        topics = self._topics

        async def read_unneeded(names: Collection[PartitionName]) -> UnneededEnds:
            unknown = {name for name in names if name.topic_id not in topics.live}
            return await read_unneeded_ends(
                self._run.store,
                names,
                deleted={name for name in names if name.topic_id in topics.deleted},
                unknown=unknown if is_doubtless and topics.is_complete else (),
                keeps_restored=not is_doubtless,
            )

        chains = ChainStore(self._run.objects, self._run.cluster_id)
        collected = await collect_sealed(
            chains,
            self._run.cluster_id,
            chain,
            read_unneeded,
            is_dry_run=self._run.settings.is_dry_run,
            on_read=lambda _: self._run.limit.require(),
            read_referenced=self._read_referenced if self._is_settled(objects) else None,
        )
        for key, problem in collected.problems:
            self.report.add_problem(f"{key}: {problem}")
        if collected.sealed_at is None:
            return False
        # While a data object is needed, the checkpoints may be too.
        checkpoints = [] if collected.kept else [one for one in objects if _is_checkpoint(one)]
        if checkpoints and not self._run.settings.is_dry_run:
            await delete_objects(self._run.objects, [one.key for one in checkpoints])
        count = len(collected.deleted) + len(checkpoints)
        size_bytes = collected.deleted_bytes + sum(one.size_bytes for one in checkpoints)
        self.report.collected_count += count
        self.report.collected_bytes += size_bytes
        is_dry_run = self._run.settings.is_dry_run
        logger.info(
            "objects of a sealed chain found" if is_dry_run else "sealed chain collected",
            extra={"chain": str(chain), "count": count, "size_bytes": size_bytes},
        )
        return not collected.kept

    def _is_settled(self, objects: Sequence[ObjectMeta]) -> bool:
        """Whether the chain was sealed so long ago that no leader still puts references to it.

        One may have read a gateway's object just before, and not have stored its own yet.
        """
        sealed_ms = [one.modified_ms for one in objects if _is_seal(one)]
        return bool(sealed_ms) and self._run.clock_ms() - max(sealed_ms) > CHAIN_AGE_MS

    async def _read_referenced(self) -> Referenced:
        if self._referenced is None:
            self._referenced = await read_referenced(
                self._run.objects, self._run.cluster_id, lambda _: self._run.limit.require()
            )
        return self._referenced

    async def _is_needed(self, chain: ChainName) -> bool:
        """Return whether, by an item, the chain may have records that the tier lacks."""
        for entry in (await self._all_entries()).get(chain, ()):
            if entry.end_offset is None or entry.end_offset > await self._end_of(entry.partition):
                return True
        return False

    async def _end_of(self, partition: Partition) -> int:
        name = PartitionName(partition.topic_id, partition.partition)
        if name not in self._ends:
            self._run.limit.require()
            self._ends[name] = await unneeded_end(self._run.store, partition)
        return self._ends[name]

    async def _all_entries(self) -> Mapping[ChainName, Sequence[_Entry]]:
        """Return the chains in the items of diskless topics, read once. Raises ``CorruptItem``."""
        if self._entries is None:
            found: dict[ChainName, list[_Entry]] = {}
            for topic in self._topics.live.values():
                if DISKLESS_SETTING not in topic.configs:
                    continue
                for item in await self._run.store.list(partition_collection(topic.topic_id)):
                    partition = Partition.from_item(item)
                    wal = partition.readable_wal
                    ends = [*(one.first_offset for one in wal[1:]), None]
                    for one, end in zip(wal, ends, strict=False):
                        entry = _Entry(partition, one.first_offset, end)
                        found.setdefault(one.chain, []).append(entry)
            self._entries = found
        return self._entries

    async def _has_any(self, chain: ChainName) -> bool:
        async for _ in self._run.objects.list(chain_prefix(self._run.cluster_id, chain)):
            return True
        return False

    def _describe(self, partition: Partition) -> str:
        topic = self._topics.live.get(partition.topic_id)
        name = str(partition.topic_id) if topic is None else topic.name
        return f"{name}-{partition.partition}"


def group_of_chain(cluster_id: str, key: str) -> str | None:
    """Return the prefix of the chain that the key or prefix is of, ``None`` if it is of none."""
    if not key.startswith(chains_prefix(cluster_id)):
        return None
    chain = chain_of_key(key)
    return None if chain is None else chain_prefix(cluster_id, chain)


def is_chain_prefix(cluster_id: str, prefix: str) -> bool:
    """Return whether the prefix is of one chain, and not of foreign objects."""
    return group_of_chain(cluster_id, f"{prefix}{0:020d}{WAL_SUFFIX}") == prefix


def _is_seal(found: ObjectMeta) -> bool:
    name = parse_wal_key(found.key)
    return (
        name is not None
        and not name.is_checkpoint
        and looks_like_seal(ListedObject(name.sequence, found.size_bytes))
    )


def _is_note(found: ObjectMeta) -> bool:
    return parse_heir_key(found.key) is not None


def _stays(found: ObjectMeta) -> bool:
    return _is_seal(found) or _is_note(found)


def _is_checkpoint(found: ObjectMeta) -> bool:
    name = parse_wal_key(found.key)
    return name is not None and name.is_checkpoint

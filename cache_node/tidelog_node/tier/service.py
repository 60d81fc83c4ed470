"""The tier as the rest of the node sees it: cold reads, and two loops in the background.

    every remote.task.interval.ms              copy what has been sealed      (copier)
    every log.retention.check.interval.ms      remove what is too old         (retention_loop)

The second waits as long before a partition's first time, from when this process holds it.
Both look only at partitions where there may be something to do: they are told what has changed
(``LogChanges``), and ``RetentionTimes`` has when something expires where nothing changes.
Per led partition one thing happens at a time, under its lock. A partition in trouble
waits longer and longer before it is tried again and holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from uuid import UUID

from tidelog_core.config import NodeConfig
from tidelog_core.errors import (
    NotLeaderOrFollower,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    TierRewritten,
    TierUnavailable,
    UnknownTopicOrPartition,
)
from tidelog_core.metadata.image import ClusterImage, ClusterView
from tidelog_core.metadata.leadership import Leadership
from tidelog_core.metadata.rewrite_claims import REWRITE_CLAIM_COLLECTION, claimed_partition
from tidelog_core.metadata.store import ItemKey, MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.objects.location import make_local_folder, parse_object_location
from tidelog_core.retention.clock_rule import Witness
from tidelog_core.rewriting.choice import compacted_end
from tidelog_core.tier.contents import read_tier

from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.tier.client import TierClient, WorkerCommand
from tidelog_node.tier.copier import Copier, SegmentSuspected
from tidelog_node.tier.history import TierHistory
from tidelog_node.tier.index_cache import IndexCache
from tidelog_node.tier.led_partition import (
    LedPartition,
    ReplicaSource,
    TieredReplica,
    has_sealed,
    known_tiered_end,
)
from tidelog_node.tier.remote_log import OpenChunks, RemoteLog, RemoteReader
from tidelog_node.tier.retention_loop import Retention, adopt_log_start
from tidelog_node.tier.retention_times import DELAY_SHARE, RetentionTimes

logger = logging.getLogger(__name__)

RETRY_DELAY_S_MIN = 1.0
RETRY_DELAY_S_MAX = 60.0
RETENTION_CONCURRENCY = 8
OPEN_AT_ONCE = 32  # logs that another thread opens before the loop has its turn
AHEAD_CACHE_SHARE = 4  # one reader's read-ahead takes at most this part of the cache


class TierService:
    """Copies to, reads from and cleans up the tier. For the node's event loop."""

    def __init__(
        self,
        *,
        replicas: ReplicaSource,
        view: ClusterView,
        store: MetadataStore,
        node_config: Callable[[], NodeConfig],
        broker_id: int,
        clock_ms: Callable[[], int],
        executor: Executor,
        inspector: BatchInspector,
        objects_url: str,
        socket: Path,
        cache_dir: Path,
        honour_erasures: Callable[[], Awaitable[None]],
        holds_files: Callable[[TieredReplica], bool] = lambda _: True,
        may_expire: Callable[[], bool] = lambda: True,
    ) -> None:
        """``honour_erasures`` lets local segments go that wait for nothing but their copies.

        ``holds_files`` says of a replica whose log is not open whether it is worth opening.

        ``may_expire`` says whether ``clock_ms`` can be trusted to tell what is too old.
        """
        self._replicas = replicas
        self._view = view
        self._node_config = node_config
        self._broker_id = broker_id
        self._honour_erasures = honour_erasures
        self._holds_files = holds_files
        self._objects_url = objects_url
        config = node_config()
        self._copy_interval_s = config.remote_task_interval_ms / 1000
        self._retention_interval_s = config.log_retention_check_interval_ms / 1000
        self._store = store
        self.client = TierClient(
            WorkerCommand(
                socket=socket, objects=objects_url, cache_dir=cache_dir, node_config=config
            )
        )
        self._indexes = IndexCache(self.client, executor=executor)
        self.history = TierHistory(store=store, indexes=self._indexes, view=view)
        self._executor = executor
        self._inspector = inspector
        self._open_chunks = OpenChunks()
        self._chunk_bytes = config.remote_chunk_bytes
        self._ahead_chunks_max = min(
            config.remote_fetch_concurrency,
            config.remote_cache_bytes // config.remote_chunk_bytes // AHEAD_CACHE_SHARE,
        )
        self._copier = Copier(
            store=store,
            client=self.client,
            view=view,
            node_config=node_config,
            clock_ms=clock_ms,
            may_expire=may_expire,
            has_own_clock=parse_object_location(objects_url).has_own_clock,
        )
        self._retention = Retention(
            copier=self._copier,
            client=self.client,
            inspector=inspector,
            store=store,
            view=view,
            broker_id=broker_id,
            clock_ms=clock_ms,
            may_expire=may_expire,
        )
        # Called with a segment's partition, its base offset, and why it could not be copied.
        self.on_suspected: Callable[[TopicPartition, int, TidelogError], None]
        self.on_suspected = lambda _, __, ___: None
        self._led: dict[tuple[UUID, int], LedPartition] = {}
        self._followed: dict[tuple[UUID, int], RemoteLog] = {}  # what followers have read
        self._copying: dict[tuple[UUID, int], asyncio.Task[None]] = {}
        self._refreshing: dict[tuple[UUID, int], asyncio.Task[None]] = {}
        self._copy_slots = asyncio.Semaphore(config.remote_upload_concurrency)
        self._to_copy: set[TieredReplica] = set()  # at least those with segments to copy
        self._times = RetentionTimes(
            interval_s=self._retention_interval_s,
            now=asyncio.get_running_loop().time,
            clock_ms=clock_ms,
        )
        self._may_lead_less = False  # there may be something to forget
        self._copy_now = asyncio.Event()
        self._retain_now = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._unwatch: list[Callable[[], None]] = []
        self._deleted_topics: frozenset[UUID] = frozenset()  # as last seen

    async def start(self) -> None:
        """Start the loops. The worker starts when it is first needed."""
        self._executor.submit(_make_folder, self._objects_url)
        self.client.start()
        self._unsubscribe = self._view.subscribe(self._on_image)
        self._unwatch = [
            self._view.watch(REWRITE_CLAIM_COLLECTION, self._on_rewritten),
        ]
        await self._honour_erasures()  # before anyone is served what is to be erased
        self._loops = [
            asyncio.create_task(self._copy_loop(), name="tier copier"),
            asyncio.create_task(self._retention_loop(), name="retention"),
        ]

    async def close(self) -> None:
        """Stop everything; what was under way is continued or cleaned up after a restart."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        for unwatch in self._unwatch:
            unwatch()
        tasks = [*self._loops, *self._copying.values(), *self._refreshing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._indexes.close()
        await self.client.close()

    def nudge(self) -> None:
        """Look for segments to copy now instead of at the next interval."""
        self._copy_now.set()

    async def compacted_up_to(self, replica: TieredReplica) -> int | None:
        """Return the offset below which no key has two records in the tier.

        ``None``: nothing of the partition is, or may come to be, in the tier. Raises what the
        store raises.
        """
        number = replica.partition.partition
        contents = await read_tier(self._store, replica.topic_id, number)
        if not contents and not replica.config.remote_storage_enable:
            return None
        return compacted_end(contents.finished)

    @contextlib.asynccontextmanager
    async def holding_copies(self, replica: TieredReplica) -> AsyncIterator[None]:
        """Keep segments of the partition from being copied while they are replaced."""
        led = self._led.get((replica.topic_id, replica.partition.partition))
        if led is None:
            yield
            return
        async with led.lock:
            yield
            if led.under_way is not None:
                # To go on with it could make one object of the old bytes and one of the new.
                led.reset()

    def witnesses(self) -> Iterable[Witness]:
        """Return what the bucket's clock was heard to say last."""
        return () if self._copier.witness is None else (self._copier.witness,)

    @property
    def status(self) -> Mapping[str, int]:
        """Counters for people and metrics."""
        return {
            "worker_is_connected": int(self.client.is_connected),
            "worker_restart_count": self.client.restart_count,
            "copied_segment_count": self._copier.copied_count,
            "copying_partition_count": len(self._copying),
            "failing_partition_count": sum(led.failure_count > 0 for led in self._led.values()),
            "evicted_bytes": self._copier.evicted_bytes,
            "deleted_segment_count": self._retention.deleted_count,
            "index_cache_bytes": self._indexes.size_bytes,
        }

    # -- reading

    def remote_log(self, replica: TieredReplica) -> RemoteLog:
        """Return the tiered part of a partition, whether this node leads it or follows.

        Raises ``NotLeaderOrFollower`` where it does neither.
        """
        if not replica.is_follower:
            if not replica.is_leader:
                raise NotLeaderOrFollower(f"{replica.partition} is no longer on this node")
            return self._lead(replica).remote
        key = (replica.topic_id, replica.partition.partition)
        remote = self._followed.get(key)
        if remote is None:
            remote = self._followed[key] = self._new_remote_log(replica)
        return remote

    def _new_remote_log(self, replica: TieredReplica) -> RemoteLog:
        reader = RemoteReader(
            cluster_id=self._view.image.cluster_id,
            store=self._store,
            client=self.client,
            indexes=self._indexes,
            open_chunks=self._open_chunks,
            executor=self._executor,
            inspector=self._inspector,
            chunk_bytes=self._chunk_bytes,
            ahead_chunks_max=self._ahead_chunks_max,
        )
        return RemoteLog(
            reader,
            replica.topic_id,
            replica.partition,
            tiered_end=lambda: known_tiered_end(replica.log),
        )

    def _known_led(self, replica: TieredReplica) -> LedPartition | None:
        """Return what is kept of the partition in its leader epoch, if anything is."""
        led = self._led.get((replica.topic_id, replica.partition.partition))
        is_same = (
            led is not None
            and led.replica is replica
            and led.leadership.leader_epoch == replica.leader_epoch
        )
        return led if is_same else None

    def _lead(self, replica: TieredReplica) -> LedPartition:
        """Return what is kept of the partition, anew where its leader epoch has changed."""
        led = self._known_led(replica)
        if led is None:
            key = (replica.topic_id, replica.partition.partition)
            leadership = Leadership(*key, replica.leader_epoch)
            remote = self._new_remote_log(replica)
            led = self._led[key] = LedPartition(replica, leadership, remote)
        return led

    def _leads(self, replica: TieredReplica) -> bool:
        """Whether this node leads the partition, as the newest image has it."""
        partition = self._view.image.partition(replica.partition)
        return (
            partition is not None
            and partition.topic_id == replica.topic_id
            and replica.is_leader
            and partition.leader_epoch == replica.leader_epoch
        )

    def on_changed(self, replicas: Collection[TieredReplica]) -> None:
        """Note what is to be looked at, of the partitions about whose logs something changed."""
        first_wait_s, now = self._times.wait_s, asyncio.get_running_loop().time()
        for replica in replicas:
            if replica.is_dropped:
                self._to_copy.discard(replica)
                self._times.forget(replica)
            elif replica.is_follower:
                if replica.config.remote_storage_enable and has_sealed(replica):
                    self._times.put_regular(replica, now)
            elif replica.is_leader:
                self._on_led_changed(replica)
        if self._times.wait_s < first_wait_s:
            self._retain_now.set()

    def _on_led_changed(self, replica: TieredReplica) -> None:
        if has_sealed(replica):
            self._to_copy.add(replica)
        led = self._known_led(replica)
        if replica.leader_epoch > 0 and (led is None or not led.was_looked_at):
            # What is tiered is compared with the log at once: a log that is behind its tier
            # must not go on. In epoch 0 nothing is tiered.
            self._times.put_in(replica, 0.0)
        else:
            looked_at = replica.held_since if led is None else led.retained_at
            self._times.put_regular(replica, looked_at)

    def _forget_others(self) -> None:
        """Forget what this node does not lead or follow any more."""
        if not self._may_lead_less:
            return
        self._may_lead_less = False
        for key, led in tuple(self._led.items()):
            if led.replica.is_dropped or not self._leads(led.replica):
                del self._led[key]
        for topic_id, number in tuple(self._followed):
            topic = self._view.image.topic_by_id(topic_id)
            named = None if topic is None else TopicPartition(topic.name, number)
            replica = None if named is None else self._replicas.get(named)
            if replica is None or replica.topic_id != topic_id or not replica.is_follower:
                del self._followed[topic_id, number]

    async def _evict_followed(self, replicas: Iterable[TieredReplica]) -> None:
        """Drop what followers need not keep; one that cannot is tried again next time."""
        for replica in replicas:
            try:
                await self._copier.evict_followed(replica)
                self._times.expires_at(replica, self._copier.next_eviction_ms(replica))
            except (TidelogError, OSError) as error:
                self._times.put_regular(replica, asyncio.get_running_loop().time())
                logger.warning(
                    "segments of a followed partition not dropped, will retry",
                    extra={"partition": str(replica.partition), "reason": str(error)},
                )

    # -- copying

    async def _copy_loop(self) -> None:
        while True:
            try:
                await self._honour_erasures()
                self._start_copies()
            except Exception:
                logger.exception("search for segments to copy broke, will retry")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._copy_interval_s):
                    await self._copy_now.wait()
            self._copy_now.clear()

    def _start_copies(self) -> None:
        if not self.client.may_answer:
            return
        now = asyncio.get_running_loop().time()
        for replica in tuple(self._to_copy):
            if not has_sealed(replica) or not self._leads(replica):
                self._to_copy.discard(replica)
                continue
            led = self._lead(replica)
            key = (led.leadership.topic_id, led.leadership.partition)
            if key in self._copying or led.not_before > now:
                continue
            if not led.needs_copying():
                self._to_copy.discard(replica)
                continue
            task = asyncio.create_task(self._copy_one(led), name=f"copy {led.replica.partition}")
            self._copying[key] = task
            task.add_done_callback(partial(self._end_copy, key))

    def _end_copy(self, key: tuple[UUID, int], _: asyncio.Task[None]) -> None:
        del self._copying[key]

    async def _copy_one(self, led: LedPartition) -> None:
        async with self._copy_slots, led.lock:
            await self._attempt(led, "copying", lambda: self._copier.copy(led))

    # -- retention

    async def _retention_loop(self) -> None:
        while True:
            try:
                wait_s = await self.apply_retention(only_due=True)
            except Exception:
                logger.exception("retention broke, will retry")
                wait_s = RETRY_DELAY_S_MAX
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._retain_now.wait()
            self._retain_now.clear()

    async def apply_retention(self, *, only_due: bool = False) -> float:
        """Do what retention has to do now; return in how many seconds there may be more.

        With ``only_due`` only the partitions that are due are looked at, and nothing expires of
        those for which it is not time again.
        """
        self._open_chunks.drop_unused()
        self._forget_others()
        slots = asyncio.Semaphore(RETENTION_CONCURRENCY)
        loop = asyncio.get_running_loop()

        async def apply(led: LedPartition) -> float:
            due: list[float | None] = []
            expires = not only_due or loop.time() >= self._expires_at(led)

            async def run() -> None:
                if led.replica.opened_log is None:
                    # After a start that is every log: not on the loop.
                    await loop.run_in_executor(self._executor, led.replica.open)
                due.append(await self._retention.apply(led, expires=expires))

            async with slots, led.lock:
                if led.not_before <= loop.time() and await self._is_worth_opening(led):
                    await self._attempt(led, "retention", run)
                led.was_looked_at = True
                if expires and led.failure_count == 0:
                    led.retained_at = loop.time()
                if led.not_before <= loop.time() and self._tells_of_topic(led):
                    tell = partial(self._copier.write_manifests, led)
                    await self._attempt(led, "manifests", tell)
                return await self._look_again_in_s(led, due[0] if due else None, expires=expires)

        replicas = self._times.take() if only_due else list(self._replicas.replicas())
        try:
            led_partitions = [self._lead(replica) for replica in replicas if self._leads(replica)]
            await self._open_held(led_partitions)
            looks = (self._guarded(led, apply) for led in led_partitions)
            waits = await asyncio.gather(*looks)
            await self._evict_followed(r for r in replicas if r.is_follower and _is_open(r))
        except Exception:
            for replica in replicas:
                self._times.put_in(replica, RETRY_DELAY_S_MAX)
            raise
        others_in_s = self._times.wait_s if only_due else self._retention_interval_s
        return max(0.0, min([*waits, others_in_s, await self._clean_deleted_topics()]))

    async def _guarded(
        self, led: LedPartition, look: Callable[[LedPartition], Awaitable[float]]
    ) -> float:
        """Return what the look at a partition returns; one that breaks keeps no other from its."""
        try:
            return await look(led)
        except Exception as error:
            self._wait(led)
            logger.exception("retention broke, will retry", extra=_trouble(led, "retention", error))
            wait_s = led.not_before - asyncio.get_running_loop().time()
            self._times.put_in(led.replica, wait_s)
            return wait_s

    async def _look_again_in_s(
        self, led: LedPartition, wait_s: float | None, *, expires: bool
    ) -> float:
        """Note when the partition is to be looked at again; return in how many seconds that is.

        At most the interval. ``wait_s`` is when a deletion is due.
        """
        replica, now = led.replica, asyncio.get_running_loop().time()
        if led.not_before <= now and expires:
            await self._attempt(led, "retention", lambda: self._note_expiry(led))
        if led.not_before > now:  # Something failed and waits.
            self._times.put_in(replica, led.not_before - now)
            return led.not_before - now
        if not expires:
            self._times.put_regular(replica, led.retained_at)
        if wait_s is None:
            return self._retention_interval_s
        self._times.put_in(replica, wait_s)
        return wait_s

    async def _note_expiry(self, led: LedPartition) -> None:
        self._times.expires_at(led.replica, await self._retention.next_expiry_ms(led))

    def _expires_at(self, led: LedPartition) -> float:
        return led.retained_at + self._retention_interval_s

    async def _open_held(self, led: Sequence[LedPartition]) -> None:
        """Open the logs that have files and that nobody has used since the node's start.

        On another thread, and several at a time: to hand each over by itself costs as much
        as to open it. One that cannot be opened says so where it is used.
        """
        unopened = [one.replica for one in led if one.replica.opened_log is None]
        held = [replica for replica in unopened if self._may_hold_files(replica)]
        for start in range(0, len(held), OPEN_AT_ONCE):
            some = held[start : start + OPEN_AT_ONCE]
            await asyncio.get_running_loop().run_in_executor(self._executor, _open_each, some)

    def _may_hold_files(self, replica: TieredReplica) -> bool:
        try:
            return self._holds_files(replica)
        except OSError:
            return True  # To open the log says what is wrong.

    def _tells_of_topic(self, led: LedPartition) -> bool:
        """Whether it is this partition's leader that has the bucket tell of its topic.

        So the bucket knows of topics that have tiered nothing yet, and of later changes.
        """
        is_first = led.leadership.partition == 0
        return is_first and led.replica.config.remote_storage_enable and self.client.may_answer

    async def _is_worth_opening(self, led: LedPartition) -> bool:
        if led.replica.opened_log is not None or self._may_hold_files(led.replica):
            return True
        found: list[bool] = []

        async def look() -> None:
            found.append(bool(await led.remote.segments()))

        await self._attempt(led, "retention", look)
        return any(found)

    async def _clean_deleted_topics(self) -> float:
        if self._view.image.deleted_topics and self.client.may_answer:
            wait_s = await self._retention.clean_deleted_topics()
            if wait_s is not None:
                return wait_s
        return self._retention_interval_s

    def _on_rewritten(self, keys: Collection[ItemKey]) -> None:
        """Read from the segments that replaced others, and end the deletion of those."""
        for partition in filter(None, map(claimed_partition, keys)):
            led, remote = self._led.get(partition), self._known_remote(partition)
            if remote is not None:
                remote.invalidate()
                if partition not in self._refreshing:
                    self._refreshing[partition] = asyncio.create_task(
                        self._refresh(partition), name="read what was rewritten"
                    )
            if led is not None:
                led.note_swap()
                self._times.put_in(led.replica, self._retention_interval_s * DELAY_SHARE)
                self._retain_now.set()

    def _known_remote(self, partition: tuple[UUID, int]) -> RemoteLog | None:
        led = self._led.get(partition)
        return self._followed.get(partition) if led is None else led.remote

    async def _refresh(self, partition: tuple[UUID, int]) -> None:
        """Read the partition's segments again until no swap has come that was not read.

        However many come, one reading at a time, with pauses (``known_segments``).
        """
        try:
            while (remote := self._known_remote(partition)) is not None and remote.is_behind:
                try:
                    await remote.refresh()
                except TidelogError as error:
                    logger.warning(
                        "replaced segments stay in use or cached", extra={"reason": str(error)}
                    )
                    await asyncio.sleep(RETRY_DELAY_S_MIN)
        finally:
            del self._refreshing[partition]

    def _on_image(self, image: ClusterImage, changed_topics: frozenset[str]) -> None:
        if image.deleted_topics.keys() - self._deleted_topics:
            self._retain_now.set()
        if changed_topics:
            self._may_lead_less = True
        for topic_id in self._deleted_topics - image.deleted_topics.keys():
            self._copier.forget_topic(topic_id)  # Someone has cleaned it up.
        self._deleted_topics = frozenset(image.deleted_topics)
        for name in changed_topics:
            self._adopt_log_starts(image, name)

    def _adopt_log_starts(self, image: ClusterImage, name: str) -> None:
        """Turn readers of led partitions away from what someone else has removed."""
        first = self._replicas.get(TopicPartition(name, 0))
        if first is not None:
            first.note_changed()  # Its leader has the bucket tell of the topic.
        for partition in image.partitions(name):
            if partition.leader != self._broker_id:
                continue
            replica = self._replicas.get(TopicPartition(name, partition.partition))
            if replica is None or replica.topic_id != partition.topic_id or not replica.is_leader:
                continue
            try:
                adopt_log_start(replica, partition.log_start_offset)
            except (TidelogError, OSError) as error:
                replica.note_changed()  # Retention tries again.
                logger.warning(
                    "log start not advanced",
                    extra={"partition": str(replica.partition), "reason": str(error)},
                )

    # -- trouble

    async def _attempt(
        self, led: LedPartition, action: str, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Run the work; on failure let the partition wait before it is tried again."""
        try:
            await work()
        except (NotLeaderOrFollower, UnknownTopicOrPartition):
            # The image says so, or will soon; until then there is nothing to do here.
            self._wait(led)
            led.reset()
        except (TierUnavailable, StoreUnavailable, OutcomeUnknown, TierRewritten) as error:
            self._wait(led)
            logger.info("tier work waits", extra=_trouble(led, action, error))
        except SegmentSuspected as error:
            # The mender checks the file, and says what is wrong.
            self._wait(led)
            led.reset()
            logger.info("tier work waits", extra=_trouble(led, action, error))
            self.on_suspected(led.replica.partition, error.base_offset, error)
        except TidelogError as error:
            self._wait(led)
            led.reset()
            logger.error("tier work failed, will retry", extra=_trouble(led, action, error))
        except Exception as error:
            self._wait(led)
            led.reset()
            logger.exception("tier work broke, will retry", extra=_trouble(led, action, error))
        else:
            led.failure_count = 0

    def _wait(self, led: LedPartition) -> None:
        delay_s = min(RETRY_DELAY_S_MIN * 2**led.failure_count, RETRY_DELAY_S_MAX)
        led.failure_count = min(led.failure_count + 1, 16)
        led.not_before = asyncio.get_running_loop().time() + delay_s


def _make_folder(objects_url: str) -> None:
    try:
        make_local_folder(objects_url)
    except OSError as error:
        logger.error("the tier's folder cannot be made", extra={"reason": str(error)})


def _open_each(replicas: Sequence[TieredReplica]) -> None:
    for replica in replicas:
        with contextlib.suppress(TidelogError, OSError):
            replica.open()


def _is_open(replica: TieredReplica) -> bool:
    log = replica.opened_log
    return log is not None and not log.is_offline


def _trouble(led: LedPartition, action: str, error: Exception) -> Mapping[str, str]:
    return {
        "partition": str(led.replica.partition),
        "action": action,
        "reason": f"{type(error).__name__}: {error}",
    }

"""The replicas of this node, and the role of each.

``ReplicaManager`` follows the cluster image. A partition that the image assigns to this
node has a ``Replica``. Its log is opened on first use. If the last shutdown was not clean,
every log is recovered before the node serves clients.

A partition with several replicas has a ``ReplicaRole`` too, and so has a diskless one. Its log is
opened soon: leader and followers need its end. The partitions of the reserved topics only have a
leader: no role and no log.

The log of a deleted topic's partition is renamed soon after the deletion, and its files are
removed by the executor. If the node was down at the deletion, its next start removes the log.
The log of a partition that has moved away goes, too; that of a diskless one once it is led
elsewhere (``LeftLogs``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from tidelog_core.config import TopicConfig, topic_config
from tidelog_core.errors import (
    StorageError,
    TidelogError,
)
from tidelog_core.log.append_checks import inspects_records, validates_schemas
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.record_source import RecordSource
from tidelog_core.log.segments.open_files import OpenFiles
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.readings import is_readable
from tidelog_core.metadata.records import Partition, Topic
from tidelog_core.model import TopicPartition
from tidelog_core.subscribers import Subscribers

from tidelog_node.disk.data_disk import DataDisk
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.logs.log_opener import LogOpener, open_each
from tidelog_node.logs.removal import LogRemoval, remove
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.leaders import Leaders
from tidelog_node.replicas.left_logs import LeftLogs
from tidelog_node.replicas.replica import Replica, has_flush_policy, require_epoch
from tidelog_node.replicas.replica_logs import ReplicaLogs
from tidelog_node.replicas.role_changes import RoleChanges

logger = logging.getLogger(__name__)

OPEN_RETRY_SECONDS = 2.0  # before a log that could not be opened is opened again
NEW_AT_ONCE = 500  # new partitions of one topic in one turn of the loop

RemoteOf = Callable[[Replica], RecordSource]


class ReplicaManager:
    """Keeps one ``Replica`` for every partition that the image assigns to this node."""

    def __init__(
        self,
        node: NodeContext,
        *,
        directories: LogDirectories,
        refusal: Callable[[Topic, Partition], TidelogError | None] = lambda _, __: None,
        open_files: OpenFiles | None = None,
        disk: DataDisk | None = None,
    ) -> None:
        """``refusal`` returns the reason not to create a missing log, ``None`` to create it.

        ``open_files`` limits the files that the logs keep open.
        """
        self._node = node
        self.open_files = open_files or OpenFiles(node.config().log_open_files_max)
        self._refusal = refusal
        self._remote_of: RemoteOf | None = None
        self.disk = disk or DataDisk()
        self.leaders = Leaders(node.view)
        self.clock_ms = node.membership.now_ms  # decides whether followers are late
        self.roles = RoleChanges(node, was_clean=directories.was_clean)
        # Each is notified with the replica.
        self.trouble = Subscribers[Replica]()
        # Its log was replaced, maybe by a shorter one, or it follows from elsewhere now.
        self.exchanged = Subscribers[Replica]()
        self.conversion = Subscribers[Replica]()  # it is in ``to_convert``
        self.to_convert: set[Replica] = set()  # those that are not what their topics say
        self._loop: asyncio.AbstractEventLoop | None = None  # once started
        self._directories = directories
        self._logs = ReplicaLogs(
            directories=directories,
            node_config=node.config,
            executor=node.executor,
            open_files=self.open_files,
        )
        self._opening = LogOpener(node.executor, self._on_opened)
        self._removal = LogRemoval(node.executor, self._logs.take_away)
        self._left = LeftLogs(self._removal.add)
        self._by_topic: dict[str, dict[int, Replica]] = {}
        self._changed: set[Replica] = set()  # since the last ``take_changed``
        self._troubled: set[Replica] = set()  # includes all that are in trouble
        # The partitions that this node leads, by their topic's encoded name and id.
        self.led_by_name: dict[bytes, dict[int, Replica]] = {}
        self.led_by_id: dict[bytes, dict[int, Replica]] = {}
        # Those that it follows, which consumers may read.
        self.followed_by_name: dict[bytes, dict[int, Replica]] = {}
        self.followed_by_id: dict[bytes, dict[int, Replica]] = {}
        self._configs: dict[str, TopicConfig] = {}  # by topic, as last applied
        self._topic_ids: dict[str, bytes] = {}  # by name, of the topics in the maps by id
        self._node_configs: Mapping[int | None, object] = {}
        self._unsubscribe: Callable[[], None] | None = None
        self._is_recovered = False  # roles need recovered logs
        # Why logs could not be opened, as logged: they are tried again every two seconds.
        self._unopened: dict[TopicPartition, str] = {}
        self._follow_timers: dict[str, asyncio.TimerHandle] = {}  # topics to follow again

    async def start(self, *, remote_of: RemoteOf | None = None) -> None:
        """Take over the partitions of this node in the image; recover logs if needed.

        ``remote_of`` returns the source of the records that a replica has evicted. If the last
        shutdown was not clean, every log is recovered and open on return.
        """
        self._loop = asyncio.get_running_loop()
        self._remote_of = remote_of
        image = self._node.view.image
        self._node_configs = image.node_configs
        known = {topic.topic_id for topic in image.topics.values()}
        labelled = self._directories.labelled()
        renamed = self._directories.clear_out(
            labelled, known, image.deleted_topics.keys(), is_unreadable=image.is_unreadable
        )
        self._node.executor.submit(remove, renamed)
        for name in image.topics:
            self._follow_topic(image, name)
        self._leave_left(labelled, image)
        await self._logs.recover([one for one in self.replicas() if self._needs_recovery(one)])
        self._is_recovered = True
        self._opening.allow_here(sum(map(len, image.partitions_by_topic.values())))
        for name in image.topics:
            self._follow_topic(image, name)
        self._unsubscribe = self._node.view.subscribe(self._on_image)

    def _needs_recovery(self, replica: Replica) -> bool:
        """Whether the log may not have been closed in order.

        A clean stop may have left some logs of diskless partitions so, which have returned since.
        """
        if not self._directories.was_clean:
            return True
        return replica.is_diskless and not self._directories.was_closed(replica)

    async def close(self) -> None:
        """Stop following the image, and close every log."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        for timer in self._follow_timers.values():
            timer.cancel()
        await self._opening.close()
        self._removal.finish()
        await self._logs.close(self._all(), self._left.opened())

    def replicas(self) -> Iterator[Replica]:
        """Yield the replicas that hold records: all but those of the reserved topics."""
        return (replica for replica in self._all() if not replica.is_internal)

    def take_changed(self) -> set[Replica]:
        """Return the replicas whose logs have changed since the last call.

        Includes dropped ones. See ``LogChanges``.
        """
        changed = self._changed
        # One by one: another thread that opens a log may add its replica during the loop.
        taken = {changed.pop() for _ in range(len(changed))}
        return {replica for replica in taken if not replica.is_internal}

    def in_trouble(self) -> list[Replica]:
        """Return those of ``replicas`` that are in trouble. Free if there are none."""
        found = []
        for replica in tuple(self._troubled):
            # Discarded first: another thread may add it again after the check.
            self._troubled.discard(replica)
            if replica.is_in_trouble and self.get(replica.partition) is replica:
                self._troubled.add(replica)
                if not replica.is_internal:
                    found.append(replica)
        return found

    def _all(self) -> list[Replica]:
        return [replica for held in self._by_topic.values() for replica in held.values()]

    def get(self, partition: TopicPartition) -> Replica | None:
        """Return this node's replica, as leader or follower; ``None`` if it has none."""
        return self._by_topic.get(partition.topic, {}).get(partition.partition)

    def leader(self, partition: TopicPartition, current_leader_epoch: int = -1) -> Replica:
        """Return the replica that this node leads.

        ``current_leader_epoch`` is the caller's, -1 if it has none. Raises
        ``UnknownTopicOrPartition``, ``NotLeaderOrFollower``, ``FencedLeaderEpoch``,
        ``UnknownLeaderEpoch``.
        """
        led = self.led_by_name.get(partition.topic.encode())
        replica = None if led is None else led.get(partition.partition)
        if replica is None:
            name = partition.topic.encode()
            raise self.leaders.refusal(name, partition.partition, is_id=False)
        require_epoch(replica, current_leader_epoch)
        return replica

    def has_leader_state(self, topic_id: UUID, partition: int) -> bool:
        """Whether this node leads the partition, and decides changes of its item by itself."""
        replica = self.led_by_id.get(topic_id.bytes, {}).get(partition)
        return replica is not None and replica.leader is not None

    def begin_hand_over(
        self, topic_id: UUID, partition: int, successor: int, *, is_leaving: bool
    ) -> bool:
        """Hand the partition over as soon as the successor, or the chain, has all records.

        Nothing changes if a diskless one is being handed over to the broker already. Returns
        false if this node does not lead it or has no leader state for it.
        """
        replica = self.led_by_id.get(topic_id.bytes, {}).get(partition)
        leader = None if replica is None else replica.leader
        if replica is None or leader is None:
            return False
        if replica.is_diskless and leader.is_handing_over_to(successor):
            return True
        leader.begin_hand_over(successor, is_leaving=is_leaving, now_ms=self.clock_ms())
        self.roles.wants_write.notify(replica)
        return True

    async def open_logs(self, replicas: Sequence[Replica]) -> None:
        """Open the logs in the executor, so that the loop does not wait for the disk.

        If one cannot be opened, its later users get the error.
        """
        await asyncio.get_running_loop().run_in_executor(self._node.executor, open_each, replicas)

    # -- following the image --

    def _on_image(self, image: ClusterImage, changed_topics: frozenset[str]) -> None:
        self._opening.allow_here()
        self._removal.allow_at_once()
        for name in changed_topics:
            self._follow_topic(image, name, only_news=True)
        if image.node_configs != self._node_configs:
            # The defaults of settings that topics leave to the node have changed.
            self._node_configs = image.node_configs
            for name in image.topics:
                self._follow_topic(image, name)

    def _follow_topic(self, image: ClusterImage, name: str, *, only_news: bool = False) -> None:
        """Update the topic's replicas to the image.

        With ``only_news``, replicas whose record has not changed are skipped: a takeover of a
        thousand partitions arrives in a dozen images.
        """
        topic, held = image.topic(name), self._by_topic.get(name, {})
        known_id = self._topic_ids.pop(name, b"")
        self.led_by_id.pop(known_id, None)
        self.followed_by_id.pop(known_id, None)
        broker_id = self._node.broker_id
        here = {p.partition for p in image.partitions(name) if broker_id in p.replicas}
        dropped = [
            replica
            for index, replica in held.items()
            if topic is None or replica.topic_id != topic.topic_id or index not in here
        ]
        for replica in dropped:
            del held[replica.partition.partition]
        if dropped:
            self._drop(dropped, image)
        self._left.follow_topic(image, name)
        self.led_by_name.pop(name.encode(), None)
        self.followed_by_name.pop(name.encode(), None)
        if topic is None:
            self._by_topic.pop(name, None)
            self._configs.pop(name, None)
            self._node.counters.topics.forget(name)
            return
        config = topic_config(topic.configs, self._node.config())
        only_news = only_news and self._configs.get(name) == config
        self._configs[name] = config
        led: dict[int, Replica] = {}
        followed: dict[int, Replica] = {}
        held_count_max = len(held) + NEW_AT_ONCE
        for partition in image.partitions(name):
            index = partition.partition
            if broker_id not in partition.replicas:
                continue
            known = held.get(index)
            if known is None and len(held) == held_count_max and self._is_recovered:
                self._follow_later(name, 0.0)
                continue
            replica = self._make(topic, partition, config) if known is None else known
            held[index] = replica
            if not (only_news and replica.followed is partition):
                with replica.opening:
                    self._update(replica, partition, config)
            if replica.is_leader:
                led[index] = replica
            elif replica.is_follower:
                followed[index] = replica
        self._by_topic[name] = held
        self._topic_ids[name] = topic.topic_id.bytes
        self.led_by_name[name.encode()] = self.led_by_id[topic.topic_id.bytes] = led
        if followed:
            self.followed_by_name[name.encode()] = followed
            self.followed_by_id[topic.topic_id.bytes] = followed

    def _make(self, topic: Topic, partition: Partition, config: TopicConfig) -> Replica:
        named = TopicPartition(topic.name, partition.partition)
        self._make_room(named)
        replica = Replica(
            named,
            topic.topic_id,
            config=_config_of(partition, config),
            log_start_offset=partition.log_start_offset,
            open_log=self._open_log,
            changed=self._changed,
            troubled=self._troubled,
            disk=self.disk,
            on_trouble=self.trouble.notify,
            on_offline=self._publish_trouble_soon,
            on_exchanged=self.exchanged.notify,
            is_diskless=partition.is_diskless,
            remote_of=self._remote_of,
            traffic=self._node.counters.topics.of(topic.name),
        )
        refusal = self._refusal(topic, partition)
        if refusal is not None and not self._directories.has_log(replica):
            replica.refuse(refusal)
            logger.error(
                "log must not start empty, its partition is offline",
                extra={"partition": str(replica.partition), "reason": str(refusal)},
            )
        return replica

    def _make_room(self, partition: TopicPartition) -> None:
        """Have the directory free, or with the log with which the next replica goes on."""
        self._removal.take(partition)
        self._left.take_back(partition)

    def _open_log(self, replica: Replica) -> LocalLog:
        """Return the replica's log, as ``ReplicaLogs.open``. For any thread."""
        self._left.require_free(replica)
        self._left.close_returned(replica.partition)
        return self._logs.open(replica)

    def _update(self, replica: Replica, partition: Partition, config: TopicConfig) -> None:
        wants_diskless, config = config.diskless_enable, _config_of(partition, config)
        if replica.config is not config and replica.config != config:
            replica.config = config
            replica.has_flush_policy = has_flush_policy(config)
            replica.inspects_records = inspects_records(config)
            replica.checks_schemas = validates_schemas(config)
            if replica.opened_log is not None:
                replica.opened_log.update_config(config)
        replica.log_start_offset = partition.log_start_offset
        replica.note_changed()
        is_fed_anew = self._take_state(replica, partition, wants_diskless=wants_diskless)
        needs_role = (
            replica in self.to_convert
            or replica.is_diskless
            or (len(partition.replicas) > 1 and not replica.is_internal)
        )
        replica.followed = partition
        if replica.role is None and not needs_role:
            self.roles.follow_alone(replica, partition)
            return
        if replica.role is None:
            # It was the only replica: its records are committed, as its high watermark says.
            replica.role = self.roles.make(replica)
        if not self._is_recovered:
            return
        has_no_log = replica.opened_log is None and not replica.is_in_trouble
        is_blocked = has_no_log and self._left.is_reopening(replica.partition)
        may_open_here = not self._left.has_returned(replica.partition)
        if is_blocked or (has_no_log and self._opening.takes(replica, may_open_here=may_open_here)):
            replica.is_leader = False
            return
        is_known = replica.damage is not None
        try:
            self.roles.follow(replica, partition)
        except (TidelogError, OSError) as error:
            self._go_offline(replica, error, is_known=is_known)
            return
        self._unopened.pop(replica.partition, None)
        if is_fed_anew and replica.is_follower:
            self.exchanged.notify(replica)

    def _take_state(self, replica: Replica, partition: Partition, *, wants_diskless: bool) -> bool:
        """Note the partition's state and target state; return whether the state has changed."""
        if replica.is_internal or not is_readable(partition):
            return False
        has_changed = replica.is_diskless != partition.is_diskless
        if has_changed:
            logger.info(
                "partition converted",
                extra={
                    "partition": str(replica.partition),
                    "is_diskless": partition.is_diskless,
                    "leader_epoch": partition.leader_epoch,
                },
            )
        replica.is_diskless = partition.is_diskless
        replica.wants_diskless = wants_diskless
        if replica.is_diskless != wants_diskless or (partition.wal and not replica.is_diskless):
            self.to_convert.add(replica)
            self.conversion.notify(replica)
        else:
            self.to_convert.discard(replica)
        return has_changed

    def _on_opened(
        self, opened: Collection[Replica], problems: Mapping[Replica, Exception]
    ) -> None:
        """Lead or follow the partitions that waited for their logs."""
        for replica, error in problems.items():
            self._go_offline(replica, error)
        image = self._node.view.image
        for replica in opened:
            name, index = replica.partition
            partition = image.partitions(name)[index]
            with replica.opening:
                self._update(replica, partition, self._configs[name])
            if replica.is_leader:
                self.led_by_name[name.encode()][index] = replica  # and by id: the same dict
            elif replica.is_follower:
                followed = self.followed_by_name.setdefault(name.encode(), {})
                followed[index] = replica
                self.followed_by_id[self._topic_ids[name]] = followed

    def _go_offline(self, replica: Replica, error: Exception, *, is_known: bool = False) -> None:
        replica.is_leader = False
        self.roles.led_by_chain.discard(replica)
        replica.followed = None
        replica.wake()
        if is_known:
            return
        is_disk_full = isinstance(error, OSError | StorageError) and replica.note_failure(error)
        if not is_disk_full and self._unopened.get(replica.partition) != str(error):
            self._unopened[replica.partition] = str(error)
            logger.error(
                "log could not be opened, its partition is offline",
                extra={"partition": str(replica.partition), "reason": str(error)},
            )
        if not replica.is_in_trouble:
            # The disk may not stay full.
            self._follow_later(replica.partition.topic, OPEN_RETRY_SECONDS)

    def _follow_later(self, topic: str, seconds: float) -> None:
        """Update the topic's replicas to the image after this time."""
        if topic not in self._follow_timers:
            loop = asyncio.get_running_loop()
            self._follow_timers[topic] = loop.call_later(seconds, self._follow_now, topic)

    def _follow_now(self, topic: str) -> None:
        del self._follow_timers[topic]
        self._follow_topic(self._node.view.image, topic, only_news=True)

    def confirm_lead(self, replica: Replica, leader_epoch: int) -> None:
        """Let the replica lead in this epoch: its log was compared with the tier.

        Or it is a diskless partition's log that has exactly the committed records, and was entered
        into a chain of this node in this epoch.
        """
        self.confirm_leads({replica: leader_epoch})

    def confirm_leads(self, epochs: Mapping[Replica, int]) -> None:
        """Let replicas lead, each in the epoch given, as ``confirm_lead``."""
        for replica, leader_epoch in epochs.items():
            replica.settled_epoch = leader_epoch
        for topic in {replica.partition.topic for replica in epochs}:
            self._follow_topic(self._node.view.image, topic)

    def end_lead(self, replica: Replica) -> None:
        """End the lead of a diskless partition whose chain takes nothing more.

        Its pending acks fail with ``NotLeaderOrFollower``. If this node leads by the partition's
        record, it is to be entered again: see ``RoleChanges.unentered_lead``.
        """
        if replica.is_diskless:  # Else it was about to be, and its replicas go on alone.
            led = self.led_by_id.get(replica.topic_id.bytes, {})  # by name: the same dict
            led.pop(replica.partition.partition, None)
        with replica.opening:
            self.roles.end_lead(replica)

    def follow_again(self, topic: str) -> None:
        """Update the topic's replicas to the image again: a log was added or removed."""
        self._follow_topic(self._node.view.image, topic)

    def begin_reopening(self, replica: Replica) -> None:
        """Keep its files for a replica whose log is to be opened again, even if it is dropped.

        Until ``end_reopening`` they are not removed, and a next replica of the partition waits.
        """
        self._left.begin_reopening(replica)

    def end_reopening(self, replica: Replica) -> None:
        """Note that the replica has its files open no more, or has taken the log."""
        self._left.end_reopening(replica)
        if not replica.is_dropped:
            return
        image, partition = self._node.view.image, replica.partition
        self._left.leave(replica, image)
        if self.get(partition) is not None:
            self._make_room(partition)
            self._follow_topic(image, partition.topic)

    def _publish_trouble_soon(self, replica: Replica) -> None:
        """Have the loop publish that a log went offline. For any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed, and there is no subscriber.
                self._loop.call_soon_threadsafe(replica.publish_trouble)

    def _leave_left(self, labelled: Sequence[tuple[str, UUID]], image: ClusterImage) -> None:
        """Leave the logs of diskless partitions that moved away while this node was down.

        Or shortly before it stopped. Those of replicated partitions may be the only copies.
        """
        for directory, topic_id in labelled:
            topic = image.topic_by_id(topic_id)
            index = directory.rpartition("-")[2]
            partitions = () if topic is None else image.partitions(topic.name)
            if topic is None or directory != f"{topic.name}-{index}" or not index.isdecimal():
                continue
            partition = partitions[int(index)] if int(index) < len(partitions) else None
            if partition is None or self._node.broker_id in partition.replicas:
                continue
            if partition.is_diskless and partition.wal:
                config = topic_config(topic.configs, self._node.config())
                self._drop([self._make(topic, partition, config)], image)

    def _drop(self, replicas: Sequence[Replica], image: ClusterImage) -> None:
        """Remove the logs of partitions that were deleted, or moved to other nodes.

        ``LeftLogs`` keeps some of them for a while.
        """
        for replica in replicas:
            self.roles.drop(replica)
            self.to_convert.discard(replica)
            self._opening.discard(replica)
            self._unopened.pop(replica.partition, None)
            replica.drop()
            replica.wake()
            replica.note_changed()
            self._left.leave(replica, image)


def _config_of(partition: Partition, config: TopicConfig) -> TopicConfig:
    """Return the topic's settings for a partition that may not be converted yet."""
    if config.diskless_enable == partition.is_diskless:
        return config
    return dataclasses.replace(config, diskless_enable=partition.is_diskless)

"""Every setting of topics, groups and nodes: name, type, unit, default, bounds, what it does.

The dataclasses below are the only place where a setting is declared; parsing,
validation, ``DescribeConfigs`` and the documentation are all made from their
fields. Names and defaults are Kafka's where Kafka has the setting.
Source: Kafka's topic and broker configuration reference.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tidelog_core.errors import InvalidConfig
from tidelog_core.offset_reset import parse_offset_reset

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
UNLIMITED = -1
LZ4_LEVEL_DEFAULT = 9  # the fast compressor, as in Kafka; the other levels are what they say
LOCAL_AS_TOTAL = -2  # local.retention.*: «whatever retention.* says»

SettingType = Literal["boolean", "int", "long", "double", "string", "list"]
Value = bool | int | float | str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting, as ``DescribeConfigs`` shows it."""

    name: str  # Kafka's dotted name
    field: str  # the dataclass field that holds it
    type: SettingType
    default: Value
    doc: str
    at_least: float | None
    at_most: float | None
    one_of: tuple[Value, ...]
    check: Callable[[str], object] | None  # strings: raises ``ValueError`` where it is wrong
    is_read_only: bool  # nodes: fixed at start

    def parse(self, text: str) -> Value:
        """Return the value that ``text`` spells. Raises ``ValueError`` saying what is allowed."""
        value = _parse_as(self.type, text.strip())
        for part in value if isinstance(value, tuple) else (value,):
            if self.one_of and part not in self.one_of:
                raise ValueError(f"must be one of {', '.join(map(str, self.one_of))}")
        if self.check is not None and isinstance(value, str):
            self.check(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.at_least is not None and value < self.at_least:
                raise ValueError(f"must be at least {self.at_least}")
            if self.at_most is not None and value > self.at_most:
                raise ValueError(f"must be at most {self.at_most}")
        return value

    def format(self, value: Value) -> str:
        """Return the text that ``parse`` reads back as ``value``."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def _setting(
    name: str,
    type: SettingType,
    default: Value,
    doc: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    one_of: tuple[Value, ...] = (),
    check: Callable[[str], object] | None = None,
    is_read_only: bool = False,
) -> Any:
    if type == "int":
        at_most = INT32_MAX if at_most is None else at_most
    if type == "long":
        at_most = INT64_MAX if at_most is None else at_most
    metadata = {
        "name": name,
        "type": type,
        "doc": doc,
        "at_least": at_least,
        "at_most": at_most,
        "one_of": one_of,
        "check": check,
        "is_read_only": is_read_only,
    }
    return dataclasses.field(default=default, metadata=metadata)


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic, after defaults are applied."""

    cleanup_policy: tuple[str, ...] = _setting("cleanup.policy", "list", ("delete",), "How old data goes: by age and size (delete), by key (compact), or both.", one_of=("delete", "compact"))
    compression_gzip_level: int = _setting("compression.gzip.level", "int", -1, "The level of what is compressed to gzip here; -1 is the codec's own default.", one_of=(-1, 1, 2, 3, 4, 5, 6, 7, 8, 9))
    compression_lz4_level: int = _setting("compression.lz4.level", "int", LZ4_LEVEL_DEFAULT, "The level of what is compressed to lz4 here; 9 is the fast compressor.", at_least=1, at_most=17)
    compression_type: str = _setting("compression.type", "string", "producer", "The codec that batches are stored in; `producer` keeps each as it came.", one_of=("producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd"))
    compression_zstd_level: int = _setting("compression.zstd.level", "int", 3, "The level of what is compressed to zstd here.", at_least=-131_072, at_most=22)
    delete_retention_ms: int = _setting("delete.retention.ms", "long", 86_400_000, "How long a compacted topic keeps a tombstone, milliseconds.", at_least=0)
    file_delete_delay_ms: int = _setting("file.delete.delay.ms", "long", 60_000, "How long a removed segment stays readable for those who already hold it, milliseconds.", at_least=0)
    flush_messages: int = _setting("flush.messages", "long", INT64_MAX, "fsync the log after this many records.", at_least=1)
    flush_ms: int = _setting("flush.ms", "long", INT64_MAX, "fsync the log at most this long after an append, milliseconds.", at_least=0)
    index_interval_bytes: int = _setting("index.interval.bytes", "int", 4096, "Bytes of log between two entries of the offset index.", at_least=0)
    local_retention_bytes: int = _setting("local.retention.bytes", "long", LOCAL_AS_TOTAL, "Bytes of tiered segments that a node keeps locally; -2 follows retention.bytes.", at_least=-2)
    local_retention_ms: int = _setting("local.retention.ms", "long", LOCAL_AS_TOTAL, "How long a node keeps a tiered segment locally, milliseconds; -2 follows retention.ms.", at_least=-2)
    max_compaction_lag_ms: int = _setting("max.compaction.lag.ms", "long", INT64_MAX, "A record is compacted at the latest after this long, milliseconds.", at_least=1)
    max_message_bytes: int = _setting("max.message.bytes", "int", 1_048_588, "The largest record batch, in bytes as sent, batch header included.", at_least=0)
    message_timestamp_after_max_ms: int = _setting("message.timestamp.after.max.ms", "long", 3_600_000, "How far a record's timestamp may lie in the future, milliseconds.", at_least=0)
    message_timestamp_before_max_ms: int = _setting("message.timestamp.before.max.ms", "long", INT64_MAX, "How far a record's timestamp may lie in the past, milliseconds.", at_least=0)
    message_timestamp_type: str = _setting("message.timestamp.type", "string", "CreateTime", "Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).", one_of=("CreateTime", "LogAppendTime"))
    min_cleanable_dirty_ratio: float = _setting("min.cleanable.dirty.ratio", "double", 0.5, "The part of a compacted log that must be uncompacted before it is compacted.", at_least=0, at_most=1)
    min_compaction_lag_ms: int = _setting("min.compaction.lag.ms", "long", 0, "A record stays uncompacted at least this long, milliseconds.", at_least=0)
    min_insync_replicas: int = _setting("min.insync.replicas", "int", 1, "How many replicas must hold a record before acks=all is answered.", at_least=1)
    preallocate: bool = _setting("preallocate", "boolean", False, "Accepted for Kafka's sake; segments are never preallocated.")
    remote_storage_enable: bool = _setting("remote.storage.enable", "boolean", True, "Whether sealed segments are copied to the object store.")
    retention_bytes: int = _setting("retention.bytes", "long", UNLIMITED, "Bytes that a partition keeps, local and tiered together; -1 is no limit.", at_least=-1)
    retention_ms: int = _setting("retention.ms", "long", 604_800_000, "How long records are kept, milliseconds; -1 is for ever.", at_least=-1)
    segment_bytes: int = _setting("segment.bytes", "int", 1_073_741_824, "A segment is sealed before it grows past this many bytes.", at_least=14)
    segment_index_bytes: int = _setting("segment.index.bytes", "int", 10_485_760, "The largest offset index of a segment, bytes.", at_least=4)
    segment_jitter_ms: int = _setting("segment.jitter.ms", "long", 0, "Random time taken off segment.ms so that not all partitions roll at once, milliseconds.", at_least=0)
    segment_ms: int = _setting("segment.ms", "long", 604_800_000, "A segment is sealed after this long even if it is small, milliseconds.", at_least=1)
    unclean_leader_election_enable: bool = _setting("unclean.leader.election.enable", "boolean", False, "Whether a replica that may lack acknowledged records can become leader.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The settings of one group of consumers, after the node's defaults are applied (KIP-848, KIP-932)."""

    consumer_heartbeat_interval_ms: int = _setting("consumer.heartbeat.interval.ms", "int", 5000, "How often the members of this consumer group are told to send heartbeats, milliseconds.", at_least=1)
    consumer_session_timeout_ms: int = _setting("consumer.session.timeout.ms", "int", 45_000, "A member of this consumer group that sends no heartbeat for this long is removed, milliseconds.", at_least=1)
    share_auto_offset_reset: str = _setting("share.auto.offset.reset", "string", "latest", "Where this share group begins to read a partition: earliest, latest, or by_duration:<ISO 8601 duration> before now.", check=parse_offset_reset)
    share_heartbeat_interval_ms: int = _setting("share.heartbeat.interval.ms", "int", 5000, "How often the members of this share group are told to send heartbeats, milliseconds.", at_least=1)
    share_isolation_level: str = _setting("share.isolation.level", "string", "read_uncommitted", "Whether this share group is given records of transactions that are open or were aborted (read_uncommitted) or not (read_committed).", one_of=("read_committed", "read_uncommitted"))
    share_record_lock_duration_ms: int = _setting("share.record.lock.duration.ms", "int", 30_000, "How long a record is kept for the member of this share group that acquired it, milliseconds.", at_least=1000)
    share_session_timeout_ms: int = _setting("share.session.timeout.ms", "int", 45_000, "A member of this share group that sends no heartbeat for this long is removed, milliseconds.", at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The settings of one node that clients can see and that shape the cluster's defaults."""

    auto_create_topics_enable: bool = _setting("auto.create.topics.enable", "boolean", True, "Whether asking for an unknown topic's metadata creates it.")
    auto_leader_rebalance_enable: bool = _setting("auto.leader.rebalance.enable", "boolean", True, "Whether preferred leaders get their partitions back once they have been able to lead for leader.imbalance.check.interval.seconds.")
    background_threads: int = _setting("background.threads", "int", 4, "Threads for fsync and other blocking file work.", at_least=1, at_most=64, is_read_only=True)
    broker_heartbeat_interval_ms: int = _setting("broker.heartbeat.interval.ms", "int", 3000, "How often a node renews its lease, milliseconds; never less often than three times in broker.session.timeout.ms.", at_least=1, is_read_only=True)
    broker_session_timeout_ms: int = _setting("broker.session.timeout.ms", "int", 9000, "How long a node's lease lasts, milliseconds: without a renewal it stops serving before, and others take its partitions over after. A node whose event loop stands still renews for two thirds of this time and then no more. The same on every node.", at_least=100, is_read_only=True)
    compression_gzip_level: int = _setting("compression.gzip.level", "int", -1, "Default of the topic setting of that name.", one_of=(-1, 1, 2, 3, 4, 5, 6, 7, 8, 9))
    compression_lz4_level: int = _setting("compression.lz4.level", "int", LZ4_LEVEL_DEFAULT, "Default of the topic setting of that name.", at_least=1, at_most=17)
    compression_type: str = _setting("compression.type", "string", "producer", "Default of the topic setting of that name.", one_of=("producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd"))
    compression_zstd_level: int = _setting("compression.zstd.level", "int", 3, "Default of the topic setting of that name.", at_least=-131_072, at_most=22)
    connections_max_idle_ms: int = _setting("connections.max.idle.ms", "long", 600_000, "A connection that is silent this long is closed, milliseconds.", at_least=1, is_read_only=True)
    controlled_shutdown_enable: bool = _setting("controlled.shutdown.enable", "boolean", True, "Whether a node that stops in order first hands what it leads to replicas that are in sync.")
    default_replication_factor: int = _setting("default.replication.factor", "int", 1, "Replicas of a topic created without saying how many.", at_least=1)
    delete_topic_enable: bool = _setting("delete.topic.enable", "boolean", True, "Whether topics can be deleted.")
    fetch_max_bytes: int = _setting("fetch.max.bytes", "int", 57_671_680, "The most bytes of records in one fetch response.", at_least=1024)
    group_consumer_assignment_interval_ms: int = _setting("group.consumer.assignment.interval.ms", "int", 1000, "The least time between two computations of who is to have which partitions, in a consumer group of more than 100 members, milliseconds. Smaller groups do not wait.", at_least=0)
    group_consumer_assignors: tuple[str, ...] = _setting("group.consumer.assignors", "list", ("uniform", "range"), "The assignors that members of consumer groups may ask for; the first is used where none is asked for.", one_of=("uniform", "range"), is_read_only=True)
    group_consumer_heartbeat_interval_ms: int = _setting("group.consumer.heartbeat.interval.ms", "int", 5000, "How often members of consumer groups are told to send heartbeats, milliseconds.", at_least=1)
    group_consumer_max_heartbeat_interval_ms: int = _setting("group.consumer.max.heartbeat.interval.ms", "int", 15_000, "The longest consumer.heartbeat.interval.ms that a group may set, milliseconds.", at_least=1)
    group_consumer_max_session_timeout_ms: int = _setting("group.consumer.max.session.timeout.ms", "int", 60_000, "The longest consumer.session.timeout.ms that a group may set, milliseconds.", at_least=1)
    group_consumer_max_size: int = _setting("group.consumer.max.size", "int", INT32_MAX, "The most members of one consumer group.", at_least=1)
    group_consumer_migration_policy: str = _setting("group.consumer.migration.policy", "string", "bidirectional", "Whether a classic group with members becomes a consumer group when a member of the new protocol joins (upgrade), a classic one again when the last such member leaves (downgrade), both, or neither.", one_of=("bidirectional", "upgrade", "downgrade", "disabled"))
    group_consumer_min_heartbeat_interval_ms: int = _setting("group.consumer.min.heartbeat.interval.ms", "int", 5000, "The shortest consumer.heartbeat.interval.ms that a group may set, milliseconds.", at_least=1)
    group_consumer_min_session_timeout_ms: int = _setting("group.consumer.min.session.timeout.ms", "int", 45_000, "The shortest consumer.session.timeout.ms that a group may set, milliseconds.", at_least=1)
    group_consumer_session_timeout_ms: int = _setting("group.consumer.session.timeout.ms", "int", 45_000, "A member of a consumer group that sends no heartbeat for this long is removed, milliseconds.", at_least=1)
    group_initial_rebalance_delay_ms: int = _setting("group.initial.rebalance.delay.ms", "int", 3000, "How long the first rebalance of an empty group waits for more members, milliseconds.", at_least=0)
    group_max_session_timeout_ms: int = _setting("group.max.session.timeout.ms", "int", 1_800_000, "The longest session timeout that a member may ask for, milliseconds.", at_least=1)
    group_max_size: int = _setting("group.max.size", "int", INT32_MAX, "The most members of one group.", at_least=1)
    group_min_session_timeout_ms: int = _setting("group.min.session.timeout.ms", "int", 6000, "The shortest session timeout that a member may ask for, milliseconds.", at_least=1)
    group_share_delivery_count_limit: int = _setting("group.share.delivery.count.limit", "int", 5, "How often a record is delivered to a share group at most.", at_least=2, at_most=10, is_read_only=True)
    group_share_heartbeat_interval_ms: int = _setting("group.share.heartbeat.interval.ms", "int", 5000, "How often members of share groups are told to send heartbeats, milliseconds.", at_least=1)
    group_share_max_heartbeat_interval_ms: int = _setting("group.share.max.heartbeat.interval.ms", "int", 15_000, "The longest share.heartbeat.interval.ms that a group may set, milliseconds.", at_least=1)
    group_share_max_record_lock_duration_ms: int = _setting("group.share.max.record.lock.duration.ms", "int", 60_000, "The longest share.record.lock.duration.ms that a group may set, milliseconds.", at_least=1000)
    group_share_max_session_timeout_ms: int = _setting("group.share.max.session.timeout.ms", "int", 60_000, "The longest share.session.timeout.ms that a group may set, milliseconds.", at_least=1)
    group_share_max_size: int = _setting("group.share.max.size", "int", 200, "The most members of one share group.", at_least=1, at_most=1000)
    group_share_max_share_sessions: int = _setting("group.share.max.share.sessions", "int", 2000, "The most share sessions that a node keeps, one for each member of a share group that fetches from it.", at_least=1, is_read_only=True)
    group_share_min_heartbeat_interval_ms: int = _setting("group.share.min.heartbeat.interval.ms", "int", 5000, "The shortest share.heartbeat.interval.ms that a group may set, milliseconds.", at_least=1)
    group_share_min_record_lock_duration_ms: int = _setting("group.share.min.record.lock.duration.ms", "int", 15_000, "The shortest share.record.lock.duration.ms that a group may set, milliseconds.", at_least=1000)
    group_share_min_session_timeout_ms: int = _setting("group.share.min.session.timeout.ms", "int", 45_000, "The shortest share.session.timeout.ms that a group may set, milliseconds.", at_least=1)
    group_share_partition_max_record_locks: int = _setting("group.share.partition.max.record.locks", "int", 2000, "A share group is given no new records of a partition while so many are in flight.", at_least=100, at_most=10_000, is_read_only=True)
    group_share_record_lock_duration_ms: int = _setting("group.share.record.lock.duration.ms", "int", 30_000, "How long a record is kept for the member of a share group that acquired it, milliseconds.", at_least=1000)
    group_share_session_timeout_ms: int = _setting("group.share.session.timeout.ms", "int", 45_000, "A member of a share group that sends no heartbeat for this long is removed, milliseconds.", at_least=1)
    leader_imbalance_check_interval_seconds: int = _setting("leader.imbalance.check.interval.seconds", "long", 300, "How long a preferred leader must have been in sync and alive before it gets its partition back, seconds.", at_least=1, is_read_only=True)
    log_cleaner_backoff_ms: int = _setting("log.cleaner.backoff.ms", "long", 15_000, "How long compaction waits when there is nothing to compact, milliseconds.", at_least=0)
    log_cleaner_dedupe_buffer_size: int = _setting("log.cleaner.dedupe.buffer.size", "long", 134_217_728, "Memory for the keys of the logs that are being compacted, bytes, divided among log.cleaner.threads: about 160 and its own length for a key. What does not fit is compacted in several rounds.", at_least=1, is_read_only=True)
    log_cleaner_delete_retention_ms: int = _setting("log.cleaner.delete.retention.ms", "long", 86_400_000, "Default of the topic's delete.retention.ms, milliseconds.", at_least=0)
    log_cleaner_enable: bool = _setting("log.cleaner.enable", "boolean", True, "Whether this node compacts its logs of topics with cleanup.policy=compact.", is_read_only=True)
    log_cleaner_io_max_bytes_per_second: int = _setting("log.cleaner.io.max.bytes.per.second", "long", INT64_MAX, "Bytes a second that compaction reads and writes, divided among log.cleaner.threads; the default is no limit.", at_least=1)
    log_cleaner_max_compaction_lag_ms: int = _setting("log.cleaner.max.compaction.lag.ms", "long", INT64_MAX, "Default of the topic's max.compaction.lag.ms, milliseconds.", at_least=1)
    log_cleaner_min_cleanable_ratio: float = _setting("log.cleaner.min.cleanable.ratio", "double", 0.5, "Default of the topic's min.cleanable.dirty.ratio.", at_least=0, at_most=1)
    log_cleaner_min_compaction_lag_ms: int = _setting("log.cleaner.min.compaction.lag.ms", "long", 0, "Default of the topic's min.compaction.lag.ms, milliseconds.", at_least=0)
    log_cleaner_threads: int = _setting("log.cleaner.threads", "int", 1, "Logs that are compacted at once, each by a process of its own.", at_least=1, at_most=16, is_read_only=True)
    log_cleanup_policy: tuple[str, ...] = _setting("log.cleanup.policy", "list", ("delete",), "Default of the topic's cleanup.policy.", one_of=("delete", "compact"))
    log_dir_reserve_bytes: int = _setting("log.dir.reserve.bytes", "long", 67_108_864, "A node whose disk has fewer free bytes appends nothing and lets others lead until twice as many are free; at most a twentieth of the disk counts. With 0 it does so once a write finds no room.", at_least=0)
    log_local_retention_bytes: int = _setting("log.local.retention.bytes", "long", LOCAL_AS_TOTAL, "Default of the topic's local.retention.bytes.", at_least=-2)
    log_local_retention_ms: int = _setting("log.local.retention.ms", "long", LOCAL_AS_TOTAL, "Default of the topic's local.retention.ms, milliseconds.", at_least=-2)
    log_message_timestamp_type: str = _setting("log.message.timestamp.type", "string", "CreateTime", "Default of the topic's message.timestamp.type.", one_of=("CreateTime", "LogAppendTime"))
    log_retention_bytes: int = _setting("log.retention.bytes", "long", UNLIMITED, "Default of the topic's retention.bytes.", at_least=-1)
    log_open_files_max: int = _setting("log.open.files.max", "int", 100_000, "Segment files that are kept open, over all partitions; at most three quarters of what the process may open.", at_least=16, is_read_only=True)
    log_retention_check_interval_ms: int = _setting("log.retention.check.interval.ms", "long", 300_000, "How often sealed segments are checked for retention, milliseconds.", at_least=1, is_read_only=True)
    log_retention_clock_ahead_max_ms: int = _setting("log.retention.clock.ahead.max.ms", "long", 600_000, "How far a node's clock may be ahead of the metadata store's, the bucket's and the other nodes' and still remove what is too old, milliseconds. A single node on SQLite has no other clock to compare with: it believes the clock that it starts with.", at_least=1000)
    log_retention_clock_settle_ms: int = _setting("log.retention.clock.settle.ms", "long", 3_600_000, "How long a clock that has jumped ahead by more than that removes nothing for its age, if no independent clock agrees with it, milliseconds. It begins an hour after the last word of another node's clock: a node that is left alone with a wrong clock goes by it when both are over.", at_least=0)
    log_retention_ms: int = _setting("log.retention.ms", "long", 604_800_000, "Default of the topic's retention.ms, milliseconds.", at_least=-1)
    log_roll_ms: int = _setting("log.roll.ms", "long", 604_800_000, "Default of the topic's segment.ms, milliseconds.", at_least=1)
    log_scrub_bytes_per_second: int = _setting("log.scrub.bytes.per.second", "long", 1_048_576, "Bytes a second of sealed local segments that are read in the background and checked, CRC by CRC, over and over; never more than a twentieth of a core. 0 checks none.", at_least=0)
    log_segment_bytes: int = _setting("log.segment.bytes", "int", 1_073_741_824, "Default of the topic's segment.bytes.", at_least=14)
    max_incremental_fetch_session_cache_partitions: int = _setting("max.incremental.fetch.session.cache.partitions", "int", 100_000, "The most partitions that all incremental fetch sessions of a node keep together, about 600 bytes of memory each. Followers come first; a session that does not fit is declined.", at_least=0, is_read_only=True)
    max_incremental_fetch_session_cache_slots: int = _setting("max.incremental.fetch.session.cache.slots", "int", 1000, "The most incremental fetch sessions that a node keeps, one for each client and follower that fetches from it; who gets none names all of its partitions in every fetch. 0 declines them all.", at_least=0, is_read_only=True)
    message_max_bytes: int = _setting("message.max.bytes", "int", 1_048_588, "Default of the topic's max.message.bytes.", at_least=0)
    metadata_poll_interval_ms: int = _setting("metadata.poll.interval.ms", "int", 200, "How often a node asks the metadata store for changes, milliseconds. Of more than 1,500 polls a second of all nodes together the interval grows.", at_least=1, is_read_only=True)
    min_insync_replicas: int = _setting("min.insync.replicas", "int", 1, "Default of the topic setting of that name.", at_least=1)
    num_partitions: int = _setting("num.partitions", "int", 1, "Partitions of a topic created without saying how many.", at_least=1)
    offset_metadata_max_bytes: int = _setting("offset.metadata.max.bytes", "int", 4096, "The longest metadata string of a committed offset, bytes.", at_least=0)
    offsets_retention_check_interval_ms: int = _setting("offsets.retention.check.interval.ms", "long", 600_000, "How often expired offsets of groups are looked for, milliseconds.", at_least=1, is_read_only=True)
    offsets_retention_minutes: int = _setting("offsets.retention.minutes", "int", 10_080, "How long an empty group's offsets are kept, minutes.", at_least=1)
    offsets_topic_num_partitions: int = _setting("offsets.topic.num.partitions", "int", 50, "Shards of group coordination.", at_least=1, is_read_only=True)
    producer_id_expiration_ms: int = _setting("producer.id.expiration.ms", "int", 86_400_000, "How long an idle producer's state is kept, milliseconds.", at_least=1)
    queued_max_request_bytes: int = _setting("queued.max.request.bytes", "long", 268_435_456, "Bytes that unanswered requests of all connections together may take: an eighth for unfinished requests up to 128 KiB, a quarter for unfinished Produce requests up to 4 MiB, half for larger ones, an eighth for other requests until they are answered. Where a share is taken, connections are not read until it is their turn; a request larger than its share is received alone. Lower it where several nodes share a small machine; raise it for many slow producers of large requests.", at_least=1_048_576, is_read_only=True)
    queued_max_requests: int = _setting("queued.max.requests", "int", 500, "Requests of one connection that may be waiting for an answer.", at_least=1, is_read_only=True)
    queued_request_receive_timeout_ms: int = _setting("queued.request.receive.timeout.ms", "int", 30_000, "While requests wait for queued.max.request.bytes, one that is being received must come fast enough to be whole in this time, milliseconds; else its connection is closed.", at_least=100, is_read_only=True)
    remote_cache_bytes: int = _setting("remote.cache.bytes", "long", 1_073_741_824, "Disk for chunks of tiered segments read back, bytes.", at_least=8_388_608, is_read_only=True)
    remote_chunk_bytes: int = _setting("remote.chunk.bytes", "int", 8_388_608, "Bytes per ranged read of a tiered segment.", at_least=65_536, is_read_only=True)
    remote_fetch_concurrency: int = _setting("remote.fetch.concurrency", "int", 16, "Ranged reads that may be under way at once.", at_least=1, at_most=256, is_read_only=True)
    remote_log_manager_copy_max_bytes_per_second: int = _setting("remote.log.manager.copy.max.bytes.per.second", "long", 9_223_372_036_854_775_807, "Bytes a second that segments are uploaded with, on average and for all of the node's partitions together; the default is no limit.", at_least=1, is_read_only=True)
    remote_task_interval_ms: int = _setting("remote.task.interval.ms", "int", 1000, "How often sealed segments are looked for and copied, milliseconds.", at_least=1, is_read_only=True)
    remote_upload_concurrency: int = _setting("remote.upload.concurrency", "int", 4, "Segments that may be uploaded at once.", at_least=1, at_most=64, is_read_only=True)
    replica_fetch_backoff_ms: int = _setting("replica.fetch.backoff.ms", "int", 200, "How long a follower waits before it asks a leader again after an error, milliseconds.", at_least=1)
    replica_fetch_max_bytes: int = _setting("replica.fetch.max.bytes", "int", 1_048_576, "Bytes of one partition that a follower asks for at once.", at_least=0)
    replica_fetch_response_max_bytes: int = _setting("replica.fetch.response.max.bytes", "int", 10_485_760, "Bytes that a follower asks one leader for at once.", at_least=0)
    replica_fetch_wait_max_ms: int = _setting("replica.fetch.wait.max.ms", "int", 500, "How long a leader holds a follower's fetch that finds nothing new, milliseconds.", at_least=1)
    replica_lag_time_max_ms: int = _setting("replica.lag.time.max.ms", "long", 30_000, "A follower that has not caught up for this long leaves the in-sync replicas, milliseconds.", at_least=1)
    replica_socket_timeout_ms: int = _setting("replica.socket.timeout.ms", "int", 30_000, "A leader that does not answer a follower for this long is connected to anew, milliseconds.", at_least=1)
    socket_request_max_bytes: int = _setting("socket.request.max.bytes", "int", 104_857_600, "The largest request; a larger one closes its connection.", at_least=1, is_read_only=True)
    socket_request_max_elements: int = _setting("socket.request.max.elements", "int", 150_000, "The most topics, partitions, groups and other elements of lists in one request, nested ones included; a request with more is refused, or its connection closed where the answer has no place for that.", at_least=1000, is_read_only=True)
    socket_request_max_partitions: int = _setting("socket.request.max.partitions", "int", 20_000, "The most topics and partitions in one Produce, Fetch or ShareFetch request; one with more closes its connection. Each takes about 4 microseconds during which the node does nothing else. Followers keep within their own node's.", at_least=1000, is_read_only=True)
    socket_send_buffer_bytes: int = _setting("socket.send.buffer.bytes", "int", 102_400, "SO_SNDBUF of client connections, bytes; -1 leaves it to the system. Small buffers keep what is sent in the processor's cache; long fat networks need more.", at_least=-1, is_read_only=True)
    tier_key_filter_records_max: int = _setting("tier.key.filter.records.max", "int", 250_000, "Tiered segments of at most this many records get a filter of their keys, about 3 microseconds a record; 0 for none.", at_least=0)
    tier_multipart_threshold: int = _setting("tier.multipart.threshold", "long", 1_073_741_824, "Objects up to this many bytes are sent in one PUT.", at_least=5_242_880, is_read_only=True)
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", "int", 10_000, "How often transactions that have been open for too long are looked for and aborted, milliseconds.", at_least=1, is_read_only=True)
    transaction_max_timeout_ms: int = _setting("transaction.max.timeout.ms", "int", 900_000, "The longest transaction timeout, milliseconds.", at_least=1)
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _setting("transaction.remove.expired.transaction.cleanup.interval.ms", "int", 3_600_000, "How often transactional ids that have expired are looked for, milliseconds.", at_least=1, is_read_only=True)
    transaction_state_log_num_partitions: int = _setting("transaction.state.log.num.partitions", "int", 50, "Shards of transaction coordination.", at_least=1, is_read_only=True)
    transactional_id_expiration_ms: int = _setting("transactional.id.expiration.ms", "int", 604_800_000, "How long a transactional id that nobody uses is kept, milliseconds.", at_least=1, is_read_only=True)
    unclean_leader_election_enable: bool = _setting("unclean.leader.election.enable", "boolean", False, "Default of the topic setting of that name.")
# fmt: on

# The node setting that supplies the default of a topic setting.
TOPIC_DEFAULT_FROM_NODE: Mapping[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}

# The node setting that supplies the default of a group's setting.
GROUP_DEFAULT_FROM_NODE: Mapping[str, str] = {
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "share.heartbeat.interval.ms": "group.share.heartbeat.interval.ms",
    "share.record.lock.duration.ms": "group.share.record.lock.duration.ms",
    "share.session.timeout.ms": "group.share.session.timeout.ms",
}

ConfigT = TypeVar("ConfigT", TopicConfig, GroupConfig, NodeConfig)


def settings_of(
    config_class: type[TopicConfig] | type[GroupConfig] | type[NodeConfig],
) -> Mapping[str, Setting]:
    """Return every setting of the class by its Kafka name, in declared order."""
    return _DECLARED[config_class]


def parse_config(
    config_class: type[ConfigT], overrides: Mapping[str, str], *, base: ConfigT | None = None
) -> ConfigT:
    """Return ``base`` (or the defaults) with the overrides applied.

    Raises ``InvalidConfig`` with every problem at once: unknown names, values that
    do not parse, values out of bounds.
    """
    declared = settings_of(config_class)
    values: dict[str, Value] = {}
    problems: list[str] = []
    for name, text in overrides.items():
        setting = declared.get(name)
        if setting is None:
            problems.append(f"unknown setting {name!r}")
            continue
        try:
            values[setting.field] = setting.parse(text)
        except ValueError as error:
            problems.append(f"invalid value {text!r} for {name!r}: {error}")
    if problems:
        raise InvalidConfig(problems)
    if base is None:
        return config_class(**values)  # type: ignore[arg-type]
    return dataclasses.replace(base, **values)  # type: ignore[arg-type]


def topic_config(overrides: Mapping[str, str], node: NodeConfig) -> TopicConfig:
    """Return a topic's settings: its own, else the node's defaults, else the built-in ones."""
    defaults = _from_node(TopicConfig, TOPIC_DEFAULT_FROM_NODE, node)
    return parse_config(TopicConfig, overrides, base=TopicConfig(**defaults))


def group_config(overrides: Mapping[str, str], node: NodeConfig) -> GroupConfig:
    """Return a group's settings: its own, else the node's for all groups, else the built-in ones.

    Raises ``InvalidConfig``, as ``parse_config`` does.
    """
    defaults = _from_node(GroupConfig, GROUP_DEFAULT_FROM_NODE, node)
    return parse_config(GroupConfig, overrides, base=GroupConfig(**defaults))


def _from_node(
    config_class: type[TopicConfig] | type[GroupConfig],
    names: Mapping[str, str],
    node: NodeConfig,
) -> dict[str, Any]:
    declared, node_declared = settings_of(config_class), settings_of(NodeConfig)
    return {
        declared[name].field: getattr(node, node_declared[node_name].field)
        for name, node_name in names.items()
    }


def _declared(config_class: type[Any]) -> Iterator[Setting]:
    for field in dataclasses.fields(config_class):
        default: Any = field.default
        yield Setting(field=field.name, default=default, **field.metadata)


def _parse_as(type: SettingType, text: str) -> Value:
    match type:
        case "boolean":
            return parse_bool(text)
        case "int" | "long":
            if not _WHOLE_NUMBER.fullmatch(text):
                raise ValueError("must be a whole number")
            return int(text)
        case "double":
            if not _NUMBER.fullmatch(text):
                raise ValueError("must be a number")
            return float(text)
        case "list":
            return tuple(part.strip() for part in text.split(",") if part.strip())
        case "string":
            return text


# Python's own functions take more: underscores, other alphabets' digits, nan.
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def parse_bool(text: str) -> bool:
    """Return the truth that ``true`` or ``false`` spells, in any case."""
    match text.lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError("must be true or false")


_DECLARED: Mapping[type, Mapping[str, Setting]] = {
    config_class: {setting.name: setting for setting in _declared(config_class)}
    for config_class in (TopicConfig, GroupConfig, NodeConfig)
}

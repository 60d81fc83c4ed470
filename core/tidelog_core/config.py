"""Every setting of topics, groups, listeners and nodes: name, type, unit, default, bounds, what it does.

The dataclasses below are the only place where a setting is declared; parsing,
validation, ``DescribeConfigs`` and ``docs/configuration.md`` are all made from their
fields. Names and defaults are Kafka's where Kafka has the setting.
Source: Kafka's topic and broker configuration reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tidelog_core.audit.events import AUDIT_KINDS
from tidelog_core.errors import InvalidConfig
from tidelog_core.model import INT32_MAX, INT64_MAX
from tidelog_core.setting import Setting, SettingType, Value
from tidelog_core.setting_values.address_limits import parse_address_limits
from tidelog_core.setting_values.authorizer import check_authorizer, parse_super_users
from tidelog_core.setting_values.aws_names import (
    parse_cloudwatch_cluster,
    parse_kms_key_id,
    parse_machine_type,
)
from tidelog_core.setting_values.client_zones import parse_cidr_zones, parse_listener_zones
from tidelog_core.setting_values.offset_reset import parse_offset_reset
from tidelog_core.setting_values.urls import parse_jwks_url, parse_otlp_endpoint, parse_otlp_headers

UNLIMITED = -1
LZ4_LEVEL_DEFAULT = 9  # the fast compressor, as in Kafka
LOCAL_AS_TOTAL = -2  # local.retention.*: the value of retention.*


def _setting(
    name: str,
    type: SettingType,
    default: Value,
    doc: str,
    *,
    unit: str = "",
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
        "unit": unit or _unit_of(name),
        "doc": doc,
        "at_least": at_least,
        "at_most": at_most,
        "one_of": one_of,
        "check": check,
        "is_read_only": is_read_only,
        "default_of": "",
    }
    return dataclasses.field(default=default, metadata=metadata, repr=type != "password")


_UNITS = {
    ".ms": "milliseconds",
    ".seconds": "seconds",
    ".minutes": "minutes",
    ".bytes": "bytes",
    ".bytes.per.second": "bytes a second",
}


def _unit_of(name: str) -> str:
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")


def _default_for(config_class: type[Any], name: str, default_of: str) -> Any:
    """Return the node's setting with the default of a setting of topics, groups or listeners."""
    fields = dataclasses.fields(config_class)
    field = next(field for field in fields if field.metadata["name"] == default_of)
    doc = field.metadata["doc"]
    whose = _OWNERS[config_class.__name__]
    metadata = {
        **field.metadata,
        "name": name,
        "doc": f"The default of {default_of}, for {whose} that do not set it: {doc[0].lower()}{doc[1:]}",
        "default_of": default_of,
    }
    return dataclasses.field(default=field.default, metadata=metadata, repr=field.repr)


_OWNERS = {"TopicConfig": "topics", "GroupConfig": "groups", "ListenerConfig": "listeners"}


def _topic_default(name: str, default_of: str) -> Any:
    return _default_for(TopicConfig, name, default_of)


def _group_default(name: str, default_of: str) -> Any:
    return _default_for(GroupConfig, name, default_of)


def _listener_default(name: str) -> Any:
    return _default_for(ListenerConfig, name, name)


_STRATEGIES = "io.confluent.kafka.serializers.subject"
TOPIC_NAME_STRATEGY = f"{_STRATEGIES}.TopicNameStrategy"  # the subject is the topic's name-value
RECORD_NAME_STRATEGY = f"{_STRATEGIES}.RecordNameStrategy"  # it is the record's full name
TOPIC_RECORD_NAME_STRATEGY = f"{_STRATEGIES}.TopicRecordNameStrategy"  # both
NAME_STRATEGIES = (TOPIC_NAME_STRATEGY, RECORD_NAME_STRATEGY, TOPIC_RECORD_NAME_STRATEGY)


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic, after defaults are applied."""

    cleanup_policy: tuple[str, ...] = _setting("cleanup.policy", "list", ("delete",), "How old records go: `delete` removes whole segments by age and size, `compact` keeps the newest record of every key, and both together do both.", one_of=("delete", "compact"))
    compression_gzip_level: int = _setting("compression.gzip.level", "int", -1, "The level of batches that a node itself compresses to gzip, because compression.type says so; -1 is the codec's own default.", one_of=(-1, 1, 2, 3, 4, 5, 6, 7, 8, 9))
    compression_lz4_level: int = _setting("compression.lz4.level", "int", LZ4_LEVEL_DEFAULT, "The level of batches that a node itself compresses to lz4, because compression.type says so; 9 is the fast compressor, as in Kafka.", at_least=1, at_most=17)
    compression_type: str = _setting("compression.type", "string", "producer", "The codec that batches are stored in; `producer` keeps every batch as it came, any other value makes the leader recompress what comes in another codec.", one_of=("producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd"))
    compression_zstd_level: int = _setting("compression.zstd.level", "int", 3, "The level of batches that a node itself compresses to zstd, because compression.type says so.", at_least=-131_072, at_most=22)
    confluent_key_schema_validation: bool = _setting("confluent.key.schema.validation", "boolean", False, "Whether every key must begin with the id of a schema of its subject, in the frame of Confluent's serializers. Batches with other keys are refused with INVALID_RECORD; null is allowed.")
    confluent_key_subject_name_strategy: str = _setting("confluent.key.subject.name.strategy", "string", TOPIC_NAME_STRATEGY, "What the subjects of keys' schemas are named after: the topic, the record, or both. Used by confluent.key.schema.validation.", one_of=NAME_STRATEGIES)
    confluent_value_schema_validation: bool = _setting("confluent.value.schema.validation", "boolean", False, "Whether every value must begin with the id of a schema of its subject, in the frame of Confluent's serializers. Batches with other values are refused with INVALID_RECORD; null is allowed.")
    confluent_value_subject_name_strategy: str = _setting("confluent.value.subject.name.strategy", "string", TOPIC_NAME_STRATEGY, "What the subjects of values' schemas are named after: the topic, the record, or both. Used by confluent.value.schema.validation.", one_of=NAME_STRATEGIES)
    delete_retention_ms: int = _setting("delete.retention.ms", "long", 86_400_000, "How long a compacted topic keeps a tombstone: a consumer that takes longer from the log's start to its end may miss that a key was deleted.", at_least=0)
    diskless_enable: bool = _setting("diskless.enable", "boolean", False, "Whether the object store acknowledges records instead of replicas: with acks=1 and acks=all a producer gets its answer once the records are in the bucket, and no node's disk is needed to keep them. May be changed later: the leaders convert the partitions, while producers and consumers go on. Needs remote.storage.enable. min.insync.replicas, unclean.leader.election.enable and flush.* have no effect on such a topic.")
    file_delete_delay_ms: int = _setting("file.delete.delay.ms", "long", 60_000, "How long a tiered segment's objects stay in the bucket after the segment was removed, for readers that still hold a reference to them.", at_least=0)
    flush_messages: int = _setting("flush.messages", "long", INT64_MAX, "Fsync the log once this many records are not on disk; by default only sealed segments are fsynced, and replicas protect the active one.", unit="records", at_least=1)
    flush_ms: int = _setting("flush.ms", "long", INT64_MAX, "Fsync the log at most this long after an append; by default only sealed segments are fsynced.", at_least=0)
    index_interval_bytes: int = _setting("index.interval.bytes", "int", 4096, "Bytes of log between two entries of the offset index: with less, reads find their offset sooner, and indexes are larger.", at_least=0)
    local_retention_bytes: int = _setting("local.retention.bytes", "long", LOCAL_AS_TOTAL, "Bytes of a partition that stay on a node's disk; the oldest segments beyond them go as soon as they are tiered, and are then read from the bucket. -2 follows retention.bytes, -1 is no limit.", at_least=-2)
    local_retention_ms: int = _setting("local.retention.ms", "long", LOCAL_AS_TOTAL, "How long records stay on a node's disk; older segments go as soon as they are tiered, and are then read from the bucket. -2 follows retention.ms, -1 is for ever.", at_least=-2)
    max_compaction_lag_ms: int = _setting("max.compaction.lag.ms", "long", INT64_MAX, "A record of a compacted topic is compacted at the latest after this long, even if the log is not dirty enough yet.", at_least=1)
    max_message_bytes: int = _setting("max.message.bytes", "int", 1_048_588, "The largest record batch that is accepted, as it is sent: compressed, with its header. Producers' max.request.size must not be larger.", at_least=0)
    message_timestamp_after_max_ms: int = _setting("message.timestamp.after.max.ms", "long", 3_600_000, "How far ahead of the leader's clock a record's timestamp may be; a batch with a later one is refused.", at_least=0)
    message_timestamp_before_max_ms: int = _setting("message.timestamp.before.max.ms", "long", INT64_MAX, "How far behind the leader's clock a record's timestamp may be; a batch with an earlier one is refused.", at_least=0)
    message_timestamp_type: str = _setting("message.timestamp.type", "string", "CreateTime", "Whose clock stamps records: the producer's (CreateTime) or the leader's (LogAppendTime).", one_of=("CreateTime", "LogAppendTime"))
    min_cleanable_dirty_ratio: float = _setting("min.cleanable.dirty.ratio", "double", 0.5, "How large the uncompacted part of a compacted log has to be before it is compacted: lower keeps fewer duplicates and rewrites more often.", at_least=0, at_most=1)
    min_compaction_lag_ms: int = _setting("min.compaction.lag.ms", "long", 0, "A record of a compacted topic stays as it is for at least this long, so that consumers may see every version of a key.", at_least=0)
    min_insync_replicas: int = _setting("min.insync.replicas", "int", 1, "How many replicas, the leader included, must be in sync for a write with acks=all; with fewer it fails with NOT_ENOUGH_REPLICAS. A partition with fewer replicas than this needs all of them.", unit="replicas", at_least=1)
    preallocate: bool = _setting("preallocate", "boolean", False, "Accepted because Kafka has it, and without effect: segments are never preallocated.")
    remote_storage_enable: bool = _setting("remote.storage.enable", "boolean", True, "Whether sealed segments are copied to the object store.")
    retention_bytes: int = _setting("retention.bytes", "long", UNLIMITED, "Bytes that a partition keeps, on disk and in the bucket together, before its oldest segments are deleted; -1 is no limit. For cleanup.policy=delete.", at_least=-1)
    retention_ms: int = _setting("retention.ms", "long", 604_800_000, "How long records are kept, on disk and in the bucket, before their segment is deleted; -1 is for ever. For cleanup.policy=delete.", at_least=-1)
    segment_bytes: int = _setting("segment.bytes", "int", 1_073_741_824, "A segment is sealed before it grows beyond this size. Only sealed segments are tiered, deleted and compacted.", at_least=14)
    segment_index_bytes: int = _setting("segment.index.bytes", "int", 10_485_760, "The largest index of a segment; a segment is sealed when its index is full.", at_least=4)
    segment_jitter_ms: int = _setting("segment.jitter.ms", "long", 0, "The longest random time that is taken off segment.ms, so that not all partitions seal a segment at once.", at_least=0)
    segment_ms: int = _setting("segment.ms", "long", 604_800_000, "A segment with records is sealed after this long even if it is small. Only sealed segments are tiered, deleted and compacted.", at_least=1)
    tidelog_schema_validation_level: str = _setting("tidelog.schema.validation.level", "string", "id", "How far confluent.key.schema.validation and confluent.value.schema.validation look: at the schema's id (`id`), or also whether the schema can read what follows (`full`), which costs some microseconds for every record.", one_of=("id", "full"))
    tier_kms_key_id: str = _setting("tier.kms.key.id", "string", "", "The key of AWS KMS that tiered segments are encrypted with: its id, alias or ARN. Whoever reads them then needs the right to decrypt with this key, and once it is disabled nobody can. Only for a tier in S3. Segments that are in the bucket already keep their key until they are rewritten. Empty: the bucket's own encryption.", check=parse_kms_key_id)
    unclean_leader_election_enable: bool = _setting("unclean.leader.election.enable", "boolean", False, "Whether a replica that was not in sync may lead if no other is alive: the partition is available again, and may lose acknowledged records.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The settings of one group of consumers, after the node's defaults are applied (KIP-848, KIP-932)."""

    consumer_heartbeat_interval_ms: int = _setting("consumer.heartbeat.interval.ms", "int", 5000, "How often the members of a consumer group send heartbeats, as the node prescribes. Rebalances advance with heartbeats, so a shorter interval makes them faster.", at_least=1)
    consumer_session_timeout_ms: int = _setting("consumer.session.timeout.ms", "int", 45_000, "A member of a consumer group that sends no heartbeat for this long is removed, and others get its partitions.", at_least=1)
    share_auto_offset_reset: str = _setting("share.auto.offset.reset", "string", "latest", "Where a share group begins to read a partition that it has not read yet: `earliest`, `latest`, or `by_duration:<ISO 8601 duration>` before now, such as `by_duration:PT1H`.", check=parse_offset_reset)
    share_heartbeat_interval_ms: int = _setting("share.heartbeat.interval.ms", "int", 5000, "How often the members of a share group send heartbeats, as the node prescribes.", at_least=1)
    share_isolation_level: str = _setting("share.isolation.level", "string", "read_uncommitted", "Whether a share group gets records of transactions that are open or were aborted (`read_uncommitted`) or not (`read_committed`).", one_of=("read_committed", "read_uncommitted"))
    share_record_lock_duration_ms: int = _setting("share.record.lock.duration.ms", "int", 30_000, "How long a member of a share group has to acknowledge a record that it acquired; then the record is delivered again.", at_least=1000)
    share_session_timeout_ms: int = _setting("share.session.timeout.ms", "int", 45_000, "A member of a share group that sends no heartbeat for this long is removed, and its records are delivered to others.", at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsConfig:
    """The settings of one subscription to the metrics of clients (KIP-714)."""

    interval_ms: int = _setting("interval.ms", "int", 300_000, "How often a client pushes the metrics. If several subscriptions match it, the shortest counts.", at_least=100, at_most=3_600_000)
    match: tuple[str, ...] = _setting("match", "list", (), "The clients that push: `name=pattern`, where the whole value must match RE2's pattern, and all of them if there are several. Names are `client_instance_id`, `client_id`, `client_software_name`, `client_software_version`, `client_source_address` and `client_source_port`. Empty: every client.")
    metrics: tuple[str, ...] = _setting("metrics", "list", (), "Prefixes of the names of the metrics that clients push, such as `org.apache.kafka.producer.`; `*` is all of them. Empty: none.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """The settings of one listener, after the node's defaults are applied."""

    connections_max_reauth_ms: int = _setting("connections.max.reauth.ms", "long", 0, "How long a client that has logged in by SASL may use its connection before it must log in again on it (KIP-368), so that a user who was removed, or whose password was changed, is out after this time at the latest. Clients that cannot do so are disconnected, and connect again. 0: never.", at_least=0, is_read_only=True)
    max_connection_creation_rate: int = _setting("max.connection.creation.rate", "int", INT32_MAX, "Connections a second that are accepted; further ones wait until the rate is within the limit. Measured as quotas are.", unit="connections", at_least=1, is_read_only=True)
    max_connections: int = _setting("max.connections", "int", INT32_MAX, "Connections of clients that are open at once; further ones are not accepted until one is closed.", unit="connections", at_least=0, is_read_only=True)
    sasl_enabled_mechanisms: tuple[str, ...] = _setting("sasl.enabled.mechanisms", "list", ("SCRAM-SHA-256", "SCRAM-SHA-512"), "How clients of a SASL listener may log in. `PLAIN` sends the password itself, so it also needs TLS or sasl.plain.without.tls.enable. These check the same users. `OAUTHBEARER` takes tokens of an issuer (sasl.oauthbearer.expected.issuer).", one_of=("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"), is_read_only=True)
    sasl_plain_without_tls_enable: bool = _setting("sasl.plain.without.tls.enable", "boolean", False, "Whether a listener without TLS may have `PLAIN` in sasl.enabled.mechanisms: anyone on the way to the node can then read the passwords.", is_read_only=True)
    sasl_server_max_receive_size: int = _setting("sasl.server.max.receive.size", "int", 524_288, "The largest request or token of a client that has not logged in; the connection of a larger one is closed.", unit="bytes", at_least=1, is_read_only=True)
    ssl_cipher_suites: tuple[str, ...] = _setting("ssl.cipher.suites", "list", (), "The cipher suites that are allowed for TLS 1.2, by their IANA names such as `TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256`. Empty: all that have forward secrecy and authenticated encryption. The suites of TLS 1.3 all have both and cannot be chosen.", is_read_only=True)
    ssl_client_auth: str = _setting("ssl.client.auth", "string", "none", "Whether clients of a TLS listener must identify themselves by a certificate: `required`, `requested` (those that send none are anonymous) or `none`.", one_of=("none", "requested", "required"), is_read_only=True)
    ssl_enabled_protocols: tuple[str, ...] = _setting("ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), "The versions of TLS that are allowed.", one_of=("TLSv1.2", "TLSv1.3"), is_read_only=True)
    ssl_key_password: str = _setting("ssl.key.password", "password", "", "The password of the private key, if the key is encrypted.", is_read_only=True)
    ssl_keystore_certificate_chain: str = _setting("ssl.keystore.certificate.chain", "password", "", "The certificate of a TLS listener and those that signed it, as PEM text, instead of a file.", is_read_only=True)
    ssl_keystore_key: str = _setting("ssl.keystore.key", "password", "", "The private key of a TLS listener, as PEM text, instead of a file.", is_read_only=True)
    ssl_keystore_location: str = _setting("ssl.keystore.location", "string", "", "Where the private key and the certificate chain of a TLS listener are: a PEM file with both, or the ARN of a secret in AWS Secrets Manager with the same text. It is read again while the node runs (ssl.reload.interval.ms).", is_read_only=True)
    ssl_keystore_type: str = _setting("ssl.keystore.type", "string", "PEM", "The format of the key and its certificates.", one_of=("PEM",), is_read_only=True)
    ssl_ktls_enable: bool = _setting("ssl.ktls.enable", "boolean", False, "Whether the kernel encrypts what is sent to clients of a TLS listener, so that records go out with sendfile. It needs Linux with the module `tls` loaded when the node starts; a connection whose keys the kernel does not take is encrypted by the node. It costs more when clients produce. docs/security.md says when it pays, and what it breaks.", is_read_only=True)
    ssl_principal_mapping_rules: str = _setting("ssl.principal.mapping.rules", "string", "DEFAULT", "How a client's certificate becomes the name of its user: the first of the rules `RULE:pattern/replacement/[LU]` that matches the whole distinguished name, or `DEFAULT`, the distinguished name itself (KIP-371).", is_read_only=True)
    ssl_truststore_certificates: str = _setting("ssl.truststore.certificates", "password", "", "The certificates of the authorities that clients' certificates may come from, as PEM text, instead of a file.", is_read_only=True)
    ssl_truststore_location: str = _setting("ssl.truststore.location", "string", "", "Where the certificates of the authorities are that clients' certificates may come from: a PEM file or the ARN of a secret, as for ssl.keystore.location.", is_read_only=True)
    ssl_truststore_type: str = _setting("ssl.truststore.type", "string", "PEM", "The format of the certificates of authorities.", one_of=("PEM",), is_read_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The settings of one node that clients can see and that shape the cluster's defaults."""

    advertised_listeners: str = _setting("advertised.listeners", "string", "", "The addresses that nodes publish to clients, each as `NAME://host:port` of a listener in `listeners`. A listener without one is advertised at its own address.", is_read_only=True)
    allow_everyone_if_no_acl_found: bool = _setting("allow.everyone.if.no.acl.found", "boolean", False, "Whether a client may do everything with a resource that no ACL covers, whoever the ACL is for. For clusters that get their ACLs one after the other.", is_read_only=True)
    audit_enable: bool = _setting("audit.enable", "boolean", False, "Whether what clients do is recorded in the topic `__tidelog_audit`, which the first node that starts with it creates.", is_read_only=True)
    audit_event_types: tuple[str, ...] = _setting("audit.event.types", "list", ("authenticate", "management", "denied"), "What is recorded: logins and refusals (`authenticate`), changes of topics, settings, users and ACLs (`management`), operations that ACLs do not allow (`denied`), and who uses which topic (`produce`, `consume`).", one_of=AUDIT_KINDS, is_read_only=True)
    audit_excluded_principals: tuple[str, ...] = _setting("audit.excluded.principals", "list", (), "Principals of whom nothing is recorded, such as `User:monitor`.", is_read_only=True)
    audit_mandatory: bool = _setting("audit.mandatory", "boolean", False, "Whether requests that change something are refused, by closing their connections, while 10,000 events wait because the audit topic cannot be written. Otherwise further events are lost, and their number is recorded.", is_read_only=True)
    audit_topic_num_partitions: int = _setting("audit.topic.num.partitions", "int", 4, "Partitions of the audit topic when it is created.", unit="partitions", at_least=1, is_read_only=True)
    authorizer_class_name: str = _setting("authorizer.class.name", "string", "", "Whether ACLs decide what clients may do: `tidelog.acl`, or Kafka's name for the same rules, `org.apache.kafka.metadata.authorizer.StandardAuthorizer`. Empty: every client may do everything, and there are no ACLs.", check=check_authorizer, is_read_only=True)
    authorizer_dry_run: bool = _setting("authorizer.dry.run", "boolean", False, "Whether clients may do everything although authorizer.class.name is set, and what the ACLs would deny is logged as `would be denied`, each once.", is_read_only=True)
    authorizer_max_acls: int = _setting("authorizer.max.acls", "int", 100_000, "ACLs that the cluster may have; CreateAcls refuses more with POLICY_VIOLATION. Every node keeps all of them in memory, some 3 KB each. Existing ones above the limit stay and count.", unit="ACLs", at_least=1)
    auto_create_topics_enable: bool = _setting("auto.create.topics.enable", "boolean", True, "Whether a metadata request for an unknown topic creates it, with the defaults of topics.")
    auto_leader_rebalance_enable: bool = _setting("auto.leader.rebalance.enable", "boolean", True, "Whether a partition goes back to its preferred leader, the first of its replicas, once that has been able to lead for leader.imbalance.check.interval.seconds.")
    background_threads: int = _setting("background.threads", "int", 4, "Threads for fsync and other work on files that would hold up the event loop.", unit="threads", at_least=1, at_most=64, is_read_only=True)
    bootstrap_admin_password_location: str = _setting("bootstrap.admin.password.location", "string", "", "Where the password of bootstrap.admin.user is: a file, or the ARN of a secret of AWS Secrets Manager. Its text is the password; white space around it is not part of it.", is_read_only=True)
    bootstrap_admin_user: str = _setting("bootstrap.admin.user", "string", "", "A user whom a node stores when it starts, unless there is one of this name, for SCRAM-SHA-512: the first who can log in to a cluster without open listeners. Name it among super.users.", is_read_only=True)
    broker_heartbeat_interval_ms: int = _setting("broker.heartbeat.interval.ms", "int", 3000, "How often a node renews its lease in the metadata store; never less often than three times in broker.session.timeout.ms, and at least once a second while it leads diskless partitions.", at_least=1, is_read_only=True)
    broker_session_timeout_ms: int = _setting("broker.session.timeout.ms", "int", 9000, "How long a node's lease lasts: without a renewal it stops serving before that, and others take its partitions over after it. A node whose event loop is blocked renews for two thirds of this time and then stops. Give every node the same value.", at_least=100, is_read_only=True)
    broker_unregister_after_ms: int = _setting("broker.unregister.after.ms", "long", 3_600_000, "How long a node has been gone when the others take it out of the cluster, unless a topic that is not diskless still names it as a replica. A node that comes back registers again. -1: never.", at_least=-1, is_read_only=True)
    client_az_cidr_map: str = _setting("client.az.cidr.map", "string", "", "The availability zone of each subnet that clients connect from, as `10.0.0.0/20=use1-az1,2001:db8::/56=use1-az2`, with the zones that nodes have as `--rack`. The smallest subnet with a client's address counts. It is for clients that send neither `client.rack` nor a zone in `client.id`: docs/diskless.md. Give every node the same value.", check=parse_cidr_zones, is_read_only=True)
    client_az_listener_map: str = _setting("client.az.listener.map", "string", "", "The availability zone of the clients of each listener, as `AZ1=use1-az1,AZ2=use1-az2` with names of `listeners`, in whatever case. It is for clients that send neither `client.rack` nor a zone in `client.id`, and counts before client.az.cidr.map. Give every node the same value.", check=parse_listener_zones, is_read_only=True)
    client_metrics_otlp_endpoint: str = _setting("client.metrics.otlp.endpoint", "string", "", "Where the metrics go that clients push (KIP-714): the http or https address of a receiver of OpenTelemetry's protocol, without `/v1/metrics`. Empty: clients cannot push any, and are not offered to.", check=parse_otlp_endpoint, is_read_only=True)
    client_metrics_otlp_headers: str = _setting("client.metrics.otlp.headers", "password", "", "Headers of requests to that receiver, such as its key: `name=value,name=value`, with values percent-encoded.", check=parse_otlp_headers, is_read_only=True)
    compression_gzip_level: int = _topic_default("compression.gzip.level", "compression.gzip.level")
    compression_lz4_level: int = _topic_default("compression.lz4.level", "compression.lz4.level")
    compression_type: str = _topic_default("compression.type", "compression.type")
    compression_zstd_level: int = _topic_default("compression.zstd.level", "compression.zstd.level")
    connection_failed_authentication_delay_ms: int = _setting("connection.failed.authentication.delay.ms", "int", 100, "How long a node waits before it refuses a client that could not log in, so that passwords cannot be tried fast.", at_least=0, at_most=10_000, is_read_only=True)
    connections_max_idle_ms: int = _setting("connections.max.idle.ms", "long", 600_000, "A connection whose client sends nothing for this long is closed, unless an answer is on its way.", at_least=1, is_read_only=True)
    connections_max_reauth_ms: int = _listener_default("connections.max.reauth.ms")
    controlled_shutdown_enable: bool = _setting("controlled.shutdown.enable", "boolean", True, "Whether a node that is stopped first hands its partitions to replicas that are in sync, so that clients notice little.")
    controller_quota_window_num: int = _setting("controller.quota.window.num", "int", 11, "The windows whose partitions a client may create and delete at once (controller_mutation_rate) after it was idle.", unit="windows", at_least=1, is_read_only=True)
    controller_quota_window_size_seconds: int = _setting("controller.quota.window.size.seconds", "int", 1, "The length of a window for controller_mutation_rate.", at_least=1, is_read_only=True)
    cost_budget_day_dollars: float = _setting("cost.budget.day.dollars", "double", 0.0, "What the cluster may cost on a day (UTC), in US dollars. When the ledger's forecast of the day passes it a node says so in its log, once a day, and in its metrics. 0: no budget.", unit="dollars", at_least=0)
    cost_budget_month_dollars: float = _setting("cost.budget.month.dollars", "double", 0.0, "What the cluster may cost in a calendar month (UTC), in US dollars. When the ledger's forecast of the month passes it a node says so in its log, once a day, and in its metrics. 0: no budget.", unit="dollars", at_least=0)
    cost_ledger_daily_retention_days: int = _setting("cost.ledger.daily.retention.days", "int", 400, "How long the ledger keeps what was counted on a day.", unit="days", at_least=32, at_most=3660)
    cost_ledger_enable: bool = _setting("cost.ledger.enable", "boolean", True, "Whether the node writes what it has counted to the ledger of costs in the metadata store.", is_read_only=True)
    cost_ledger_hourly_retention_hours: int = _setting("cost.ledger.hourly.retention.hours", "int", 72, "How long the ledger keeps what was counted in an hour; the days have it too.", unit="hours", at_least=48, at_most=8760)
    cost_ledger_interval_ms: int = _setting("cost.ledger.interval.ms", "int", 60_000, "How often a node writes what it has counted to the ledger: one write to the metadata store each time. A node that crashes loses what it has counted since.", at_least=100, is_read_only=True)
    cost_ledger_topics_max: int = _setting("cost.ledger.topics.max", "int", 20, "How many topics the ledger names for a node and an hour, the most expensive ones; the others are one.", unit="topics", at_least=1, at_most=100)
    cost_machine_nodes: int = _setting("cost.machine.nodes", "int", 2, "How many nodes share the machine: each is charged its part. The stack on AWS sets it.", unit="nodes", at_least=1, at_most=1024, is_read_only=True)
    cost_machine_type: str = _setting("cost.machine.type", "string", "i4i.large", "The instance type whose price a node's time is charged at. The stack on AWS sets it; elsewhere it is what the same node would run on there.", check=parse_machine_type, is_read_only=True)
    cost_price_file: str = _setting("cost.price.file", "string", "", "A TOML file of prices; without it the list prices of us-east-1 are used. Copy `core/tidelog_core/cost/us-east-1.toml` and change it. The admin function takes it from its own environment.", is_read_only=True)
    default_replication_factor: int = _setting("default.replication.factor", "int", 1, "Replicas of a topic that is created without a number of them.", unit="replicas", at_least=1)
    delegation_token_expiry_check_interval_ms: int = _setting("delegation.token.expiry.check.interval.ms", "long", 3_600_000, "How often expired delegation tokens are removed from the store. They log nobody in before that either.", at_least=1, is_read_only=True)
    delegation_token_expiry_time_ms: int = _setting("delegation.token.expiry.time.ms", "long", 86_400_000, "How long a delegation token is valid before it must be renewed.", at_least=1, is_read_only=True)
    delegation_token_max_lifetime_ms: int = _setting("delegation.token.max.lifetime.ms", "long", 604_800_000, "How long a delegation token can be valid, however often it is renewed.", at_least=1, is_read_only=True)
    delegation_token_secret_key: str = _setting("delegation.token.secret.key", "password", "", "The secret that delegation tokens are made with: at least 16 random bytes, the same for every node of the cluster. With another key no earlier token is valid. Empty, and without delegation.token.secret.key.location: there are no delegation tokens.", is_read_only=True)
    delegation_token_secret_key_location: str = _setting("delegation.token.secret.key.location", "string", "", "Where delegation.token.secret.key is, in place of the key itself: a file, or the ARN of a secret of AWS Secrets Manager. White space around its text is not part of the key.", is_read_only=True)
    delete_topic_enable: bool = _setting("delete.topic.enable", "boolean", True, "Whether topics can be deleted; requests to delete one fail with TOPIC_DELETION_DISABLED otherwise.")
    diskless_append_buffer_max_bytes: int = _setting("diskless.append.buffer.max.bytes", "int", 4_194_304, "Records of diskless topics are uploaded once this many bytes wait, even if diskless.append.commit.interval.ms has not passed. Larger objects cost fewer requests, and take longer.", at_least=1, at_most=8_388_608, is_read_only=True)
    diskless_append_commit_interval_ms: int = _setting("diskless.append.commit.interval.ms", "int", 100, "The longest time that records of diskless topics wait for others before they are uploaded together. Less of it means faster answers and more requests to the bucket.", at_least=1, at_most=60_000, is_read_only=True)
    diskless_append_hedge_percentile: float = _setting("diskless.append.hedge.percentile", "double", 95.0, "An upload that is not answered after this percentile of the last answers' times is sent once more, so that one slow request does not delay all that come after it. 0: never.", unit="percentile", at_least=0, at_most=100, is_read_only=True)
    diskless_append_puts_per_second_max: float = _setting("diskless.append.puts.per.second.max", "double", 10.0, "Objects a second that a node uploads for diskless topics on average, which bounds what requests cost. A folder has no such bound. If diskless.append.buffer.max.bytes wait, they are uploaded whatever the rate. 0: unlimited.", unit="objects", at_least=0, is_read_only=True)
    diskless_append_uploads_max: int = _setting("diskless.append.uploads.max", "int", 8, "Objects of diskless topics that a node uploads at the same time. If it fails, the node that takes over reads about as many objects to find out what was acknowledged.", unit="objects", at_least=1, at_most=64, is_read_only=True)
    diskless_buffer_max_bytes: int = _setting("diskless.buffer.max.bytes", "long", 268_435_456, "Bytes of records of diskless topics that may wait for the object store, and 1 KiB for each appended batch. While there are as many, the node does not read from connections that produce to such topics.", at_least=1_048_576, is_read_only=True)
    diskless_checkpoint_interval_ms: int = _setting("diskless.checkpoint.interval.ms", "long", 30_000, "How often a node writes down which objects have which records of diskless topics, if there are new ones. A node that takes over reads that instead of every object.", at_least=1_000)
    diskless_gateways_enable: bool = _setting("diskless.gateways.enable", "boolean", False, "Whether producers of other zones write to their zone's replica of a diskless partition instead of its leader, so that records do not cross zones. Metadata then names that replica as the leader to clients whose zone is known. Give every node the same.", is_read_only=True)
    diskless_gateways_overlap_enable: bool = _setting("diskless.gateways.overlap.enable", "boolean", False, "Whether a leader stores its reference to records that a gateway has taken while it reads them, instead of after that: acks come earlier by about one read. A leader of an older version stores it after that. Only with diskless.gateways.enable.", is_read_only=True)
    diskless_storage_system_enable: bool = _setting("diskless.storage.system.enable", "boolean", True, "Whether topics may be created with diskless.enable=true. Existing ones stay as they are.", is_read_only=True)
    diskless_wal_max_age_ms: int = _setting("diskless.wal.max.age.ms", "long", 3_600_000, "How old the oldest object may be that holds records of a diskless topic which are not tiered. Then the active segments with such records are sealed, so that they are tiered and the object is deleted. Partitions with few records would keep large objects otherwise.", at_least=1)
    fetch_max_bytes: int = _setting("fetch.max.bytes", "int", 57_671_680, "The most bytes of records in one answer to a fetch, even if the consumer requests more; a larger batch is sent all the same.", at_least=1024)
    group_consumer_assignment_interval_ms: int = _setting("group.consumer.assignment.interval.ms", "int", 1000, "The least time between two computations of assignments in a consumer group of more than 100 members; smaller groups do not wait.", at_least=0)
    group_consumer_assignors: tuple[str, ...] = _setting("group.consumer.assignors", "list", ("uniform", "range"), "The assignors that members of consumer groups may request; the first is the default.", one_of=("uniform", "range"), is_read_only=True)
    group_consumer_heartbeat_interval_ms: int = _group_default("group.consumer.heartbeat.interval.ms", "consumer.heartbeat.interval.ms")
    group_consumer_max_heartbeat_interval_ms: int = _setting("group.consumer.max.heartbeat.interval.ms", "int", 15_000, "The longest consumer.heartbeat.interval.ms that can be set for a group.", at_least=1)
    group_consumer_max_session_timeout_ms: int = _setting("group.consumer.max.session.timeout.ms", "int", 60_000, "The longest consumer.session.timeout.ms that can be set for a group.", at_least=1)
    group_consumer_max_size: int = _setting("group.consumer.max.size", "int", INT32_MAX, "The most members of one consumer group; others that join are refused with GROUP_MAX_SIZE_REACHED.", unit="members", at_least=1)
    group_consumer_migration_policy: str = _setting("group.consumer.migration.policy", "string", "bidirectional", "Whether a classic group with members becomes a consumer group when a member of the new protocol joins (`upgrade`), a classic one again when the last such member leaves (`downgrade`), both, or neither.", one_of=("bidirectional", "upgrade", "downgrade", "disabled"))
    group_consumer_min_heartbeat_interval_ms: int = _setting("group.consumer.min.heartbeat.interval.ms", "int", 5000, "The shortest consumer.heartbeat.interval.ms that can be set for a group: heartbeats are work for the node.", at_least=1)
    group_consumer_min_session_timeout_ms: int = _setting("group.consumer.min.session.timeout.ms", "int", 45_000, "The shortest consumer.session.timeout.ms that can be set for a group.", at_least=1)
    group_consumer_session_timeout_ms: int = _group_default("group.consumer.session.timeout.ms", "consumer.session.timeout.ms")
    group_initial_rebalance_delay_ms: int = _setting("group.initial.rebalance.delay.ms", "int", 3000, "How long the first rebalance of an empty classic group waits for more members; 0 lets a single consumer start at once.", at_least=0)
    group_max_session_timeout_ms: int = _setting("group.max.session.timeout.ms", "int", 1_800_000, "The longest session.timeout.ms that a member of a classic group may ask for.", at_least=1)
    group_max_size: int = _setting("group.max.size", "int", INT32_MAX, "The most members of one classic group; others that join are refused with GROUP_MAX_SIZE_REACHED.", unit="members", at_least=1)
    group_min_session_timeout_ms: int = _setting("group.min.session.timeout.ms", "int", 6000, "The shortest session.timeout.ms that a member of a classic group may ask for.", at_least=1)
    group_share_delivery_count_limit: int = _setting("group.share.delivery.count.limit", "int", 5, "How often a record is delivered to a share group before the group gives it up.", unit="deliveries", at_least=2, at_most=10, is_read_only=True)
    group_share_heartbeat_interval_ms: int = _group_default("group.share.heartbeat.interval.ms", "share.heartbeat.interval.ms")
    group_share_max_heartbeat_interval_ms: int = _setting("group.share.max.heartbeat.interval.ms", "int", 15_000, "The longest share.heartbeat.interval.ms that can be set for a group.", at_least=1)
    group_share_max_record_lock_duration_ms: int = _setting("group.share.max.record.lock.duration.ms", "int", 60_000, "The longest share.record.lock.duration.ms that can be set for a group.", at_least=1000)
    group_share_max_session_timeout_ms: int = _setting("group.share.max.session.timeout.ms", "int", 60_000, "The longest share.session.timeout.ms that can be set for a group.", at_least=1)
    group_share_max_size: int = _setting("group.share.max.size", "int", 200, "The most members of one share group; others that join are refused with GROUP_MAX_SIZE_REACHED.", unit="members", at_least=1, at_most=1000)
    group_share_max_share_sessions: int = _setting("group.share.max.share.sessions", "int", 2000, "The most share sessions that a node keeps, one for each member of a share group that fetches from it; others are refused with SHARE_SESSION_LIMIT_REACHED.", unit="sessions", at_least=1, is_read_only=True)
    group_share_min_heartbeat_interval_ms: int = _setting("group.share.min.heartbeat.interval.ms", "int", 5000, "The shortest share.heartbeat.interval.ms that can be set for a group.", at_least=1)
    group_share_min_record_lock_duration_ms: int = _setting("group.share.min.record.lock.duration.ms", "int", 15_000, "The shortest share.record.lock.duration.ms that can be set for a group.", at_least=1000)
    group_share_min_session_timeout_ms: int = _setting("group.share.min.session.timeout.ms", "int", 45_000, "The shortest share.session.timeout.ms that can be set for a group.", at_least=1)
    group_share_partition_max_record_locks: int = _setting("group.share.partition.max.record.locks", "int", 2000, "A share group gets no new records of a partition while so many of its records are in flight: acquired, or waiting to be delivered again.", unit="records", at_least=100, at_most=10_000, is_read_only=True)
    group_share_record_lock_duration_ms: int = _group_default("group.share.record.lock.duration.ms", "share.record.lock.duration.ms")
    group_share_session_timeout_ms: int = _group_default("group.share.session.timeout.ms", "share.session.timeout.ms")
    inter_broker_encryption_enable: bool = _setting("inter.broker.encryption.enable", "boolean", False, "Whether what nodes send to each other is encrypted. They prove to each other who they are in any case; encryption adds up to 70 % to the CPU time of replication. One node that has it on is enough for its connections.", is_read_only=True)
    inter_broker_listener_name: str = _setting("inter.broker.listener.name", "string", "NODE", "The listener that other nodes connect to; its address may be given in `listeners`. Nodes identify themselves there by key pairs that they publish in the metadata store, so it has no security protocol, and no client can use it. Give every node the same value.", is_read_only=True)
    leader_imbalance_check_interval_seconds: int = _setting("leader.imbalance.check.interval.seconds", "long", 300, "How long a preferred leader must have been alive and in sync before it gets its partition back.", at_least=1, is_read_only=True)
    listener_security_protocol_map: str = _setting("listener.security.protocol.map", "string", "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL", "The security protocol of each listener, as `NAME:PROTOCOL` with PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.", is_read_only=True)
    listeners: str = _setting("listeners", "string", "", "The addresses that the node listens on, each as `NAME://host:port` with a name of listener.security.protocol.map; port 0 is one that is free. It replaces the arguments for host and port.", is_read_only=True)
    log_cleaner_backoff_ms: int = _setting("log.cleaner.backoff.ms", "long", 15_000, "How long compaction waits before the next check if no log had to be compacted.", at_least=0)
    log_cleaner_dedupe_buffer_size: int = _setting("log.cleaner.dedupe.buffer.size", "long", 134_217_728, "Bytes of memory for the keys of the logs that are being compacted, divided among log.cleaner.threads: about 160 bytes and its own length for a key. A log with more keys is compacted in several rounds.", unit="bytes", at_least=1, is_read_only=True)
    log_cleaner_delete_retention_ms: int = _topic_default("log.cleaner.delete.retention.ms", "delete.retention.ms")
    log_cleaner_enable: bool = _setting("log.cleaner.enable", "boolean", True, "Whether this node compacts its logs of topics with cleanup.policy=compact; without it they grow for ever.", is_read_only=True)
    log_cleaner_io_max_bytes_per_second: int = _setting("log.cleaner.io.max.bytes.per.second", "long", INT64_MAX, "How much compaction reads and writes at most, divided among log.cleaner.threads; lower it where compaction slows clients down.", at_least=1)
    log_cleaner_max_compaction_lag_ms: int = _topic_default("log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms")
    log_cleaner_min_cleanable_ratio: float = _topic_default("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = _topic_default("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms")
    log_cleaner_threads: int = _setting("log.cleaner.threads", "int", 1, "Logs that are compacted at once, each by a process of its own.", unit="processes", at_least=1, at_most=16, is_read_only=True)
    log_cleanup_policy: tuple[str, ...] = _topic_default("log.cleanup.policy", "cleanup.policy")
    log_dir_reserve_bytes: int = _setting("log.dir.reserve.bytes", "long", 67_108_864, "A node whose disk has fewer free bytes refuses records and lets other replicas lead until twice as many are free; at most a twentieth of the disk counts. With 0 it does so only once a write has failed.", at_least=0)
    log_diskless_enable: bool = _setting("log.diskless.enable", "boolean", False, "The value of diskless.enable that a topic gets when it is created without one. Existing topics stay as they are. The cluster's own topics are not diskless.")
    log_local_retention_bytes: int = _topic_default("log.local.retention.bytes", "local.retention.bytes")
    log_local_retention_ms: int = _topic_default("log.local.retention.ms", "local.retention.ms")
    log_message_timestamp_after_max_ms: int = _topic_default("log.message.timestamp.after.max.ms", "message.timestamp.after.max.ms")
    log_message_timestamp_before_max_ms: int = _topic_default("log.message.timestamp.before.max.ms", "message.timestamp.before.max.ms")
    log_message_timestamp_type: str = _topic_default("log.message.timestamp.type", "message.timestamp.type")
    log_retention_bytes: int = _topic_default("log.retention.bytes", "retention.bytes")
    log_open_files_max: int = _setting("log.open.files.max", "int", 100_000, "Segment files that stay open, over all partitions; at most three quarters of the files that the process may open (`ulimit -n`).", unit="files", at_least=16, is_read_only=True)
    log_retention_check_interval_ms: int = _setting("log.retention.check.interval.ms", "long", 300_000, "How often sealed segments are checked for what retention.ms and retention.bytes no longer keep.", at_least=1, is_read_only=True)
    log_retention_clock_ahead_max_ms: int = _setting("log.retention.clock.ahead.max.ms", "long", 600_000, "How far a node's clock may be ahead of the metadata store's, the bucket's and the other nodes' and still remove records for their age. A single node on SQLite has no other clock to compare with: it believes the clock that it starts with.", at_least=1000)
    log_retention_clock_settle_ms: int = _setting("log.retention.clock.settle.ms", "long", 3_600_000, "How long nothing is removed for its age after a clock has jumped ahead by more than log.retention.clock.ahead.max.ms and no independent clock agrees with it. It begins an hour after the last word of another node's clock: a node that is left alone with a wrong clock goes by it when both are over.", at_least=0)
    log_retention_ms: int = _topic_default("log.retention.ms", "retention.ms")
    log_roll_ms: int = _topic_default("log.roll.ms", "segment.ms")
    log_scrub_bytes_per_second: int = _setting("log.scrub.bytes.per.second", "long", 1_048_576, "How much of its sealed segments a node reads again in the background to check every CRC, so that a damaged disk is noticed while other replicas are whole; never more than a twentieth of a core. 0 checks nothing.", at_least=0)
    log_segment_bytes: int = _topic_default("log.segment.bytes", "segment.bytes")
    max_connection_creation_rate: int = _listener_default("max.connection.creation.rate")
    max_connections: int = _listener_default("max.connections")
    max_connections_per_ip: int = _setting("max.connections.per.ip", "int", INT32_MAX, "Connections that one address may have open at once; further ones are closed.", unit="connections", at_least=0)
    max_connections_per_ip_overrides: str = _setting("max.connections.per.ip.overrides", "string", "", "Other values of max.connections.per.ip for some addresses, as in `10.0.0.1:200,[::1]:50`.", check=parse_address_limits)
    max_incremental_fetch_session_cache_partitions: int = _setting("max.incremental.fetch.session.cache.partitions", "int", 100_000, "The most partitions that all incremental fetch sessions of a node keep together, about 600 bytes of memory each, up to 1,700 where each is of another topic with a long name. Followers come first; a session that does not fit is declined. The long lists that consumers without a session repeat are kept and counted like sessions.", unit="partitions", at_least=0, is_read_only=True)
    max_incremental_fetch_session_cache_slots: int = _setting("max.incremental.fetch.session.cache.slots", "int", 1000, "The most incremental fetch sessions that a node keeps, one for each client and follower that fetches from it; a client without one names all of its partitions in every fetch. The long list that such a client repeats on a connection takes one, too. 0 declines them all.", unit="sessions", at_least=0, is_read_only=True)
    message_max_bytes: int = _topic_default("message.max.bytes", "max.message.bytes")
    metadata_poll_interval_ms: int = _setting("metadata.poll.interval.ms", "int", 200, "How often a node asks the metadata store for changes: how soon it learns of new topics, leaders and settings. It grows where all nodes together would ask more than 1,500 times a second.", at_least=1, is_read_only=True)
    metrics_cloudwatch_cluster: str = _setting("metrics.cloudwatch.cluster", "string", "", "The name of the cluster in metrics for CloudWatch, which a node then writes to its log once a minute, in CloudWatch's embedded metric format. Empty: none.", check=parse_cloudwatch_cluster, is_read_only=True)
    metrics_group_lag_interval_ms: int = _setting("metrics.group.lag.interval.ms", "int", 10_000, "How often a node with an HTTP port finds out how far the groups that it coordinates are behind, for its metrics. Each time it asks the leaders for the ends of their partitions, and for the times of up to 200 records.", at_least=10)
    min_insync_replicas: int = _topic_default("min.insync.replicas", "min.insync.replicas")
    num_partitions: int = _setting("num.partitions", "int", 1, "Partitions of a topic that is created without a number of them.", unit="partitions", at_least=1)
    offset_metadata_max_bytes: int = _setting("offset.metadata.max.bytes", "int", 4096, "The longest metadata that a consumer may store with a committed offset; longer ones fail with OFFSET_METADATA_TOO_LARGE.", at_least=0)
    offsets_retention_check_interval_ms: int = _setting("offsets.retention.check.interval.ms", "long", 600_000, "How often a node looks for committed offsets that have expired.", at_least=1, is_read_only=True)
    offsets_retention_minutes: int = _setting("offsets.retention.minutes", "int", 10_080, "How long committed offsets are kept after their group lost its last member; then its consumers begin where auto.offset.reset says.", at_least=1)
    offsets_topic_num_partitions: int = _setting("offsets.topic.num.partitions", "int", 50, "Shards that groups are divided into, each coordinated by one node; fixed when the cluster's first group comes.", unit="shards", at_least=1, is_read_only=True)
    producer_id_expiration_ms: int = _setting("producer.id.expiration.ms", "int", 86_400_000, "How long the sequence numbers of an idempotent producer that writes nothing are remembered; a retry after that could be stored twice.", at_least=1)
    queued_max_request_bytes: int = _setting("queued.max.request.bytes", "long", 268_435_456, "Memory that unanswered requests of all connections together may take: an eighth for unfinished requests up to 128 KiB, a quarter for unfinished Produce requests up to 4 MiB, half for larger ones, an eighth for other requests until they are answered. Where a share is taken, connections are not read until it is their turn; a request larger than its share is received alone. Lower it where several nodes share a small machine; raise it for many slow producers of large requests.", at_least=1_048_576, is_read_only=True)
    queued_max_requests: int = _setting("queued.max.requests", "int", 500, "Requests of one connection that may wait for their answers; beyond them the connection is not read.", unit="requests", at_least=1, is_read_only=True)
    queued_request_receive_timeout_ms: int = _setting("queued.request.receive.timeout.ms", "int", 30_000, "While others wait for queued.max.request.bytes, a request must come fast enough to be whole within this time; else its connection is closed.", at_least=100, is_read_only=True)
    quota_scope: str = _setting("quota.scope", "string", "broker", "What a quota of bytes is for: `broker`, each node by itself, as in Kafka, or `cluster`, all nodes together. Then a node gets its part by what its clients use.", one_of=("broker", "cluster"), is_read_only=True)
    quota_throttle_max_ms: int = _setting("quota.throttle.max.ms", "long", INT64_MAX, "A client over a quota waits at most this long before its next request is read. By default it waits until its rate is within the quota, as in Kafka, which after a large request may be hours.", at_least=0, is_read_only=True)
    quota_window_num: int = _setting("quota.window.num", "int", 11, "The windows of time over which clients' rates are measured, with the one that is not over. A client that was idle may use the quota of all but one at once.", unit="windows", at_least=1, is_read_only=True)
    quota_window_size_seconds: int = _setting("quota.window.size.seconds", "int", 1, "The length of a window over which clients' rates are measured.", at_least=1, is_read_only=True)
    remote_cache_bytes: int = _setting("remote.cache.bytes", "long", 1_073_741_824, "Disk for chunks of tiered segments that were read back from the bucket; more saves GET requests where consumers read old records again.", at_least=8_388_608, is_read_only=True)
    remote_chunk_bytes: int = _setting("remote.chunk.bytes", "int", 8_388_608, "Bytes that are read from the bucket with one ranged GET: larger means fewer requests, and more that is read and not used.", at_least=65_536, is_read_only=True)
    remote_fetch_concurrency: int = _setting("remote.fetch.concurrency", "int", 16, "Ranged GETs that may be under way at once.", unit="requests", at_least=1, at_most=256, is_read_only=True)
    remote_log_manager_copy_max_bytes_per_second: int = _setting("remote.log.manager.copy.max.bytes.per.second", "long", INT64_MAX, "How fast segments are uploaded, on average and for all of the node's partitions together; keep it above the rate of writes, or the disk fills.", at_least=1, is_read_only=True)
    remote_task_interval_ms: int = _setting("remote.task.interval.ms", "int", 1000, "How often a node looks for sealed segments to copy to the bucket.", at_least=1, is_read_only=True)
    remote_upload_concurrency: int = _setting("remote.upload.concurrency", "int", 4, "Segments that may be uploaded at once.", unit="segments", at_least=1, at_most=64, is_read_only=True)
    replica_fetch_backoff_ms: int = _setting("replica.fetch.backoff.ms", "int", 200, "How long a follower waits after an error before it asks its leader again.", at_least=1)
    replica_fetch_max_bytes: int = _setting("replica.fetch.max.bytes", "int", 4_194_304, "Bytes of one partition that a follower asks for in one fetch; with Kafka's 1 MiB a follower that is behind would fetch large batches one by one.", at_least=0)
    replica_fetch_response_max_bytes: int = _setting("replica.fetch.response.max.bytes", "int", 10_485_760, "Bytes of all partitions together that a follower asks one leader for in one fetch.", at_least=0)
    replica_fetch_wait_max_ms: int = _setting("replica.fetch.wait.max.ms", "int", 500, "How long a leader holds a follower's fetch that finds nothing new; keep it well below replica.lag.time.max.ms.", at_least=1)
    replica_lag_time_max_ms: int = _setting("replica.lag.time.max.ms", "long", 30_000, "A follower that has not caught up with its leader for this long leaves the in-sync replicas, and writes with acks=all no longer wait for it.", at_least=1)
    replica_socket_timeout_ms: int = _setting("replica.socket.timeout.ms", "int", 30_000, "How long a follower waits for a leader's answer, beyond replica.fetch.wait.max.ms, before it connects again.", at_least=1)
    sasl_enabled_mechanisms: tuple[str, ...] = _listener_default("sasl.enabled.mechanisms")
    sasl_oauthbearer_clock_skew_seconds: int = _setting("sasl.oauthbearer.clock.skew.seconds", "int", 30, "How far the clocks of a node and of the issuer of tokens may be apart.", at_least=0, at_most=3600, is_read_only=True)
    sasl_oauthbearer_expected_audience: tuple[str, ...] = _setting("sasl.oauthbearer.expected.audience", "list", (), "Tokens of OAUTHBEARER must be for one of these audiences (the claim `aud`).", is_read_only=True)
    sasl_oauthbearer_expected_issuer: str = _setting("sasl.oauthbearer.expected.issuer", "string", "", "The issuer of the tokens of OAUTHBEARER (the claim `iss`).", is_read_only=True)
    sasl_oauthbearer_groups_claim_name: str = _setting("sasl.oauthbearer.groups.claim.name", "string", "", "The claim with the groups of a token's user, for which ACLs of `Group:<name>` count. Empty: tokens name no groups.", is_read_only=True)
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = _setting("sasl.oauthbearer.jwks.endpoint.refresh.ms", "long", 3_600_000, "How often the issuer's keys are fetched; they are also fetched for a key that is not known.", at_least=1000, is_read_only=True)
    sasl_oauthbearer_jwks_endpoint_url: str = _setting("sasl.oauthbearer.jwks.endpoint.url", "string", "", "Where the issuer of tokens publishes its keys (JWKS): an https address, or `file:` and a path.", check=parse_jwks_url, is_read_only=True)
    sasl_oauthbearer_sub_claim_name: str = _setting("sasl.oauthbearer.sub.claim.name", "string", "sub", "The claim with the name of a token's user.", is_read_only=True)
    sasl_plain_without_tls_enable: bool = _listener_default("sasl.plain.without.tls.enable")
    sasl_server_max_receive_size: int = _listener_default("sasl.server.max.receive.size")
    socket_request_max_bytes: int = _setting("socket.request.max.bytes", "int", 104_857_600, "The largest request; the connection of a larger one is closed.", at_least=1, is_read_only=True)
    socket_request_max_elements: int = _setting("socket.request.max.elements", "int", 150_000, "The most topics, partitions, groups and other elements of lists in one request, nested ones included; a request with more is refused, or its connection closed where the answer has no place for that.", unit="elements", at_least=1000, is_read_only=True)
    socket_request_max_partitions: int = _setting("socket.request.max.partitions", "int", 20_000, "The most topics and partitions in one Produce, Fetch or ShareFetch request; one with more closes its connection. Each takes about 4 microseconds during which the node does nothing else. Followers keep within their own node's.", unit="partitions", at_least=1000, is_read_only=True)
    socket_send_buffer_bytes: int = _setting("socket.send.buffer.bytes", "int", 102_400, "SO_SNDBUF of client connections; -1 leaves it to the system. Small buffers keep the sent bytes in the processor's cache; connections that are fast and far need more. Connections of other nodes leave it to the system, unless that paces them (BBR).", at_least=-1, is_read_only=True)
    ssl_cipher_suites: tuple[str, ...] = _listener_default("ssl.cipher.suites")
    ssl_client_auth: str = _listener_default("ssl.client.auth")
    ssl_enabled_protocols: tuple[str, ...] = _listener_default("ssl.enabled.protocols")
    ssl_key_password: str = _listener_default("ssl.key.password")
    ssl_keystore_certificate_chain: str = _listener_default("ssl.keystore.certificate.chain")
    ssl_keystore_key: str = _listener_default("ssl.keystore.key")
    ssl_keystore_location: str = _listener_default("ssl.keystore.location")
    ssl_keystore_type: str = _listener_default("ssl.keystore.type")
    ssl_ktls_enable: bool = _listener_default("ssl.ktls.enable")
    ssl_principal_mapping_rules: str = _listener_default("ssl.principal.mapping.rules")
    ssl_reload_interval_ms: int = _setting("ssl.reload.interval.ms", "long", 10_000, "How often the files of keys and certificates are checked for changes; open connections continue, new ones get the new certificate. Secrets of AWS are read every 5 minutes at most.", at_least=100, is_read_only=True)
    ssl_truststore_certificates: str = _listener_default("ssl.truststore.certificates")
    ssl_truststore_location: str = _listener_default("ssl.truststore.location")
    ssl_truststore_type: str = _listener_default("ssl.truststore.type")
    super_users: str = _setting("super.users", "string", "", "The principals that may do everything whatever the ACLs are, separated by semicolons: `User:alice;User:CN=admin,O=example`.", check=parse_super_users, is_read_only=True)
    telemetry_max_bytes: int = _setting("telemetry.max.bytes", "int", 1_048_576, "The most bytes that a client may push at once, as it sends them; decompressed they may be eight times as many.", at_least=1, is_read_only=True)
    tier_key_filter_records_max: int = _setting("tier.key.filter.records.max", "int", 250_000, "Tiered segments of at most this many records get a filter of their keys, by which erasure and key look-ups skip segments; it costs about 3 microseconds a record. 0 writes none.", unit="records", at_least=0)
    tier_kms_key_id: str = _topic_default("tier.kms.key.id", "tier.kms.key.id")
    tier_multipart_threshold: int = _setting("tier.multipart.threshold", "long", 1_073_741_824, "Objects up to this many bytes are uploaded with one PUT, larger ones in parts.", unit="bytes", at_least=5_242_880, is_read_only=True)
    tracing_otlp_endpoint: str = _setting("tracing.otlp.endpoint", "string", "", "Where traces go: the http or https address of a receiver of OpenTelemetry's protocol, without `/v1/traces`. Needs the extra `tracing`. Empty: nothing is traced.", check=parse_otlp_endpoint, is_read_only=True)
    tracing_otlp_headers: str = _setting("tracing.otlp.headers", "password", "", "Headers of requests to that receiver, such as its key: `name=value,name=value`, with values percent-encoded.", check=parse_otlp_headers, is_read_only=True)
    tracing_sampling_ratio: float = _setting("tracing.sampling.ratio", "double", 0.01, "The part of the traces that is recorded, from 0 for none to 1 for all. A request over HTTP that names a trace is recorded if its caller records it.", at_least=0, at_most=1, is_read_only=True)
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", "int", 10_000, "How often a coordinator looks for transactions that have been open for longer than their producer asked for, and aborts them.", at_least=1, is_read_only=True)
    transaction_max_timeout_ms: int = _setting("transaction.max.timeout.ms", "int", 900_000, "The longest transaction.timeout.ms that a producer may ask for: an open transaction holds up consumers with read_committed.", at_least=1)
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _setting("transaction.remove.expired.transaction.cleanup.interval.ms", "int", 3_600_000, "How often a coordinator looks for transactional ids that have expired.", at_least=1, is_read_only=True)
    transaction_state_log_num_partitions: int = _setting("transaction.state.log.num.partitions", "int", 50, "Shards that transactional ids are divided into, each coordinated by one node; fixed when the cluster's first transactional producer comes.", unit="shards", at_least=1, is_read_only=True)
    transactional_id_expiration_ms: int = _setting("transactional.id.expiration.ms", "int", 604_800_000, "How long a transactional id without transactions is remembered; a producer that comes back later starts without its state.", at_least=1, is_read_only=True)
    unclean_leader_election_enable: bool = _topic_default("unclean.leader.election.enable", "unclean.leader.election.enable")
# fmt: on

ConfigT = TypeVar(
    "ConfigT", TopicConfig, GroupConfig, ClientMetricsConfig, ListenerConfig, NodeConfig
)
AnyConfig = TopicConfig | GroupConfig | ClientMetricsConfig | ListenerConfig | NodeConfig


def settings_of(
    config_class: type[AnyConfig],
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
            shown = "(hidden)" if setting.is_sensitive else repr(text)
            problems.append(f"invalid value {shown} for {name!r}: {error}")
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


def listener_config(overrides: Mapping[str, str], node: NodeConfig) -> ListenerConfig:
    """Return a listener's settings: its own, else the node's for all listeners.

    ``overrides`` have names without ``listener.name.<name>.``. Raises ``InvalidConfig``, as
    ``parse_config`` does.
    """
    names = {name: name for name in settings_of(ListenerConfig)}
    defaults = _from_node(ListenerConfig, names, node)
    return parse_config(ListenerConfig, overrides, base=ListenerConfig(**defaults))


def _from_node(
    config_class: type[TopicConfig] | type[GroupConfig] | type[ListenerConfig],
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


_DECLARED: Mapping[type, Mapping[str, Setting]] = {
    config_class: {setting.name: setting for setting in _declared(config_class)}
    for config_class in (TopicConfig, GroupConfig, ClientMetricsConfig, ListenerConfig, NodeConfig)
}


def _defaults_from_node(config_class: type[TopicConfig] | type[GroupConfig]) -> dict[str, str]:
    return {
        setting.default_of: setting.name
        for setting in settings_of(NodeConfig).values()
        if setting.default_of in settings_of(config_class)
    }


# The node's setting that holds the default of a setting of topics, and of one of groups.
TOPIC_DEFAULT_FROM_NODE: Mapping[str, str] = _defaults_from_node(TopicConfig)
GROUP_DEFAULT_FROM_NODE: Mapping[str, str] = _defaults_from_node(GroupConfig)

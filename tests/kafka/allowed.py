"""The differences between Tidelog's answers and Apache Kafka 4.1's, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidelog_core.message_schemas import OWN_APIS


@dataclass(frozen=True, slots=True)
class Allowed:
    """One difference. An entry that matches nothing fails its test: it is out of date."""

    case: str  # the test function
    path: str  # label and fields, a glob
    reason: str
    kafka: Any = ...  # exactly this; ``...`` is anything
    tidelog: Any = ...


_CRASHES = "Kafka has no answer of its own here: an exception escapes its handler"
_UNPROVED = "Kafka without an authorizer believes any client that says it is a broker"
_HEADER_ONLY = "Tidelog checks batch headers and CRCs, and records only where a topic needs it"
_REFUSED_METADATA = "a refused request still learns which brokers there are"
_EMPTY_GROUP = "a group needs a name: Kafka deprecated the empty one with KIP-289"
_SCHEMA_SETTINGS = (
    "confluent.key.schema.validation",
    "confluent.key.subject.name.strategy",
    "confluent.value.schema.validation",
    "confluent.value.subject.name.strategy",
    "tidelog.schema.validation.level",
)
_NO_SUCH_SETTING = (
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
)
_FEATURES = "Kafka's features are about its controllers' log, which Tidelog does not have"
_NO_CONTROLLERS = "there is no controllers' log, and nobody votes"
_ONE_LEVEL = "Tidelog has one level of the feature, which cannot be lowered"
_NOT_SERVED = {
    "share coordinators: the metadata store has the state of share groups": (
        *(83, 84, 85, 86, 87),
    ),
    "Kafka's controllers": (64, 80, 81),
}
_NEGATIVE_EPOCH = (
    "-1 means «not known»; Tidelog, like Kafka's Fetch, takes any negative epoch for it"
)
_ALTERED = (
    "4.1 loses the topics of the request before its coordinator sees them, and changes nothing"
)
_TRAILING = "Kafka drops the bytes behind the batch silently; Tidelog refuses the batch"

_NO_USER = "beside its error, Kafka's refusal names a user without a name"
_ONLY_SASL = "before a login, Tidelog parses only the requests that lead to it"

_NOT_LOOKED_AT = "the batches of a topic that the client may not write are not validated"
_UNKNOWN_TYPE = "Kafka closes the connection where a type is 0; an answer says what is wrong"
_USELESS_ACL = "an ACL that fits no client is a mistake"

ALLOWED: tuple[Allowed, ...] = (
    # -- ACLs --
    *(
        entry
        for case in (
            "test_a_client_without_an_acl",
            "test_a_client_with_some_one_acl",
            "test_a_client_with_one_acl",
            "test_a_client_with_several_acls",
        )
        for entry in (
            Allowed(case, "/*scram users/results", _NO_USER, tidelog=...),
            Allowed(
                case,
                "/*transactional, no id/error_code",
                _NOT_LOOKED_AT,
                kafka="transactional_id_authorization_failed",
                tidelog="topic_authorization_failed",
            ),
        )
    ),
    *(
        Allowed(case, path, _UNKNOWN_TYPE, kafka="connection closed")
        for case, path in (
            ("test_acls_that_are_refused", "/resource 0"),
            ("test_acls_that_are_refused", "/operation 0"),
            ("test_filters_that_are_refused", "/describe * 0"),
            ("test_filters_that_are_refused", "/delete * 0"),
            ("test_null_in_any_place", "/describe_acls 1 null *"),
            ("test_null_in_any_place", "/delete_acls 1 null *"),
        )
    ),
    *(
        Allowed("test_acls_that_are_refused", f"/{label}/*", _CRASHES, kafka="unknown_server_error")
        for label in ("any resource", "matching pattern", "any operation", "any permission")
    ),
    *(
        Allowed(
            "test_acls_that_are_refused",
            f"/{label}/*",
            _USELESS_ACL,
            kafka="none",
            tidelog="invalid_request",
        )
        for label in ("only a kind", "no kind", "no host")
    ),
    # -- logins --
    Allowed(
        "test_requests_out_of_order",
        "/versions between",
        _ONLY_SASL,
        kafka="illegal_sasl_state",
        tidelog="connection closed",
    ),
    Allowed("test_requests_out_of_order", "/metadata between", _ONLY_SASL, kafka=True),
    Allowed("test_sessions_are_renewed", "/metadata between", _ONLY_SASL, kafka=True),
    Allowed(
        "test_sessions_are_renewed",
        "/an unknown mechanism",
        "Kafka closes the live connection; Tidelog answers with the mechanisms that it has",
        kafka="connection closed",
    ),
    Allowed(
        "test_sessions_are_renewed",
        "/wrong password/2/text",
        "the text says «authentication» where Kafka's says «re-authentication»",
    ),
    # -- users --
    Allowed(
        "test_alterations_that_are_refused",
        "/no password/results/*/error_code",
        _CRASHES,
        kafka="unknown_server_error",
        tidelog="unacceptable_credential",
    ),
    # -- Produce --
    Allowed("test_a_batch_with_part_of_another_is_refused", "/trailing*", _TRAILING),
    Allowed("test_no_records_at_all_are_refused", "/null*", _CRASHES, kafka="no answer"),
    Allowed(
        "test_codecs_that_do_not_exist_are_refused",
        "/codec */answer/error_code",
        _CRASHES,
        kafka="unknown_server_error",
        tidelog="unsupported_compression_type",
    ),
    Allowed(
        "test_payloads_that_do_not_decompress",
        "/*/answer/error_code",
        _CRASHES,
        kafka="unknown_server_error",
        tidelog="invalid_record",
    ),
    Allowed(
        "test_counts_that_the_records_belie",
        "/*/answer/error_code",
        _CRASHES,
        kafka="unknown_server_error",
        tidelog="invalid_record",
    ),
    Allowed("test_counts_that_the_records_belie", "/plain topic/*", _HEADER_ONLY),
    Allowed(
        "test_idempotent_producers_are_held_to_their_sequence",
        "/duplicate of the */log_append_time",
        "the stored records keep their producer's timestamps, so no append time is true",
    ),
    Allowed(
        "test_a_partition_named_twice",
        "/answer/responses/0/partition_responses",
        "Kafka forgets all but the last of them; Tidelog appends and answers each",
    ),
    Allowed("test_timestamps_too_far_from_the_clock_are_refused", "/*/record_errors", _HEADER_ONLY),
    Allowed(
        "test_timestamps_too_far_from_the_clock_are_refused", "/only the header*", _HEADER_ONLY
    ),
    Allowed(
        "test_times_that_the_broker_sets_are_not_for_clients_to_set",
        "/stamped by a client/*",
        "Kafka checks this only on topics of LogAppendTime, and unstamps the batch on others",
    ),
    Allowed(
        "test_times_that_the_broker_sets_are_not_for_clients_to_set",
        "/stamped by a client, broker's time/record_errors",
        _HEADER_ONLY,
    ),
    # -- Fetch, ListOffsets, OffsetForLeaderEpoch --
    *(
        Allowed(
            "test_only_brokers_may_fetch_as_replicas",
            f"/{replica_id}/responses/0/partitions/0/error_code",
            _UNPROVED,
            kafka="not_leader_or_follower",
            tidelog="topic_authorization_failed",
        )
        for replica_id in (1, 5)
    ),
    Allowed(
        "test_the_first_batch_comes_whole_and_limits_hold_for_the_rest",
        "/negative*",
        f"{_CRASHES}; Tidelog takes it for zero",
    ),
    Allowed("test_isolation_levels", "/2/*", f"{_CRASHES}; Tidelog takes it for read_uncommitted"),
    Allowed("test_isolation_levels", "/-1/*", f"{_CRASHES}; Tidelog takes it for read_uncommitted"),
    Allowed(
        "test_errors_of_list_offsets",
        "/isolation 2/*",
        f"{_CRASHES}; Tidelog takes it for read_uncommitted",
    ),
    Allowed("test_errors_of_list_offsets", "/epoch -2 */*", _NEGATIVE_EPOCH),
    Allowed("test_offsets_for_leader_epochs", "/?: -2 0/*", _NEGATIVE_EPOCH),
    Allowed(
        "test_errors_of_list_offsets",
        "/twice/topics/0/partitions",
        "the same error once for each time that the partition is named",
    ),
    Allowed(
        "test_delete_records",
        "/newest/*",
        "Kafka points at a record that has been deleted",
    ),
    # -- transactions --
    Allowed(
        "test_markers_that_an_administrator_writes",
        "/old epoch/*error_code",
        _CRASHES,
        kafka="unknown_server_error",
        tidelog="invalid_producer_epoch",
    ),
    # -- topics and cluster --
    Allowed(
        "test_requests_to_create_that_contradict_themselves",
        "/collision/topics/1/*",
        "Kafka sees names that collide only if one of them is there already",
    ),
    Allowed("test_metadata_by_id", "/*/cluster_id", _REFUSED_METADATA, kafka="absent"),
    Allowed("test_metadata_by_id", "/*/brokers", _REFUSED_METADATA),
    Allowed("test_metadata_by_id", "/*/controller_id", _REFUSED_METADATA, kafka=-1, tidelog=1),
    Allowed(
        "test_metadata_by_id", "/zero id 1?/*error_code", _CRASHES, kafka="unknown_server_error"
    ),
    Allowed(
        "test_description_of_partitions_by_cursor",
        "/unknown ''/topics/0/*",
        _CRASHES,
    ),
    # -- requests --
    Allowed("test_api_versions", "/version ?/*features*", _FEATURES),
    *(
        Allowed("test_the_versions_of_every_api", f"/API {api}", reason, tidelog="absent")
        for reason, apis in _NOT_SERVED.items()
        for api in apis
    ),
    *(
        Allowed(
            "test_the_versions_of_every_api",
            f"/API {api}/1",
            "Tidelog serves versions that came after Kafka 4.1",
        )
        for api in (2, 8, 9, 22, 35, 78, 79)
    ),
    *(
        Allowed(
            "test_the_versions_of_every_api",
            f"/API {api}",
            "an API of Tidelog's own",
            kafka="absent",
        )
        for api in OWN_APIS
    ),
    Allowed("test_partitions_without_a_quorum", "/the quorum ?/*", _NO_CONTROLLERS),
    Allowed("test_features_that_are_not_changed", "/a* downgrade ?/*", _ONE_LEVEL),
    # -- settings --
    *(
        Allowed(
            "test_topic_settings_are_described_in_every_version",
            f"/*/{name}",
            "Tidelog has no such setting",
            tidelog="absent",
        )
        for name in _NO_SUCH_SETTING
    ),
    Allowed(
        "test_topic_settings_are_described_in_every_version",
        "/*/diskless.enable",
        "Kafka has no topics that the object store acknowledges (KIP-1150)",
        kafka="absent",
    ),
    *(
        Allowed(
            "test_topic_settings_are_described_in_every_version",
            f"/*/{name}",
            "Kafka has no schemas; Confluent's server has these settings",
            kafka="absent",
        )
        for name in _SCHEMA_SETTINGS
    ),
    Allowed(
        "test_topic_settings_are_described_in_every_version",
        "/*/tier.kms.key.id",
        "Kafka leaves the encryption of tiered segments to plugins",
        kafka="absent",
    ),
    Allowed(
        "test_topic_settings_are_described_in_every_version",
        "/names",
        "the settings named above",
    ),
    Allowed(
        "test_topic_settings_are_described_in_every_version",
        "/sources/min.insync.replicas",
        "Kafka stores a default for every broker when it is first started",
        kafka=3,
        tidelog=5,
    ),
    Allowed(
        "test_topic_settings_are_described_in_every_version",
        "/values/remote.storage.enable",
        "Tidelog tiers every topic unless told not to",
        kafka="false",
        tidelog="true",
    ),
    Allowed(
        "test_incremental_changes",
        "/* operation/answer/0/error_code",
        _CRASHES,
        kafka="unknown_server_error",
        tidelog="invalid_request",
    ),
    Allowed("test_incremental_changes", "/nan/*", "Kafka takes NaN for a ratio"),
    Allowed(
        "test_incremental_changes",
        "/local over total/*",
        "Kafka checks this only for tiered topics, as Tidelog's are by default",
    ),
    Allowed(
        "test_group_settings_are_described",
        "/names",
        "groups of streams are not served, so they have no settings",
    ),
    *(
        Allowed(
            "test_group_settings_are_described",
            f"/described ?/streams.{name}",
            "groups of streams are not served, so they have no settings",
            tidelog="absent",
        )
        for name in ("heartbeat.interval.ms", "num.standby.replicas", "session.timeout.ms")
    ),
    Allowed(
        "test_changing_group_settings",
        "/unknown operation/answer/0/error_code",
        _CRASHES,
        kafka="unknown_server_error",
        tidelog="invalid_request",
    ),
    Allowed(
        "test_changing_subscriptions",
        "/unknown operation/answer/0/error_code",
        _CRASHES,
        kafka="unknown_server_error",
        tidelog="invalid_request",
    ),
    # -- groups --
    Allowed(
        "test_find_coordinator",
        "/[123] 0 *error_message",
        "Kafka says «NONE» where there was no error",
        kafka="present",
        tidelog="absent",
    ),
    Allowed("test_groups_are_described_and_listed", "/described ?/groups/0/*", _EMPTY_GROUP),
    Allowed("test_commits", "/empty group/*", _EMPTY_GROUP),
    Allowed("test_offsets_that_were_committed_and_that_were_not", "/empty *", _EMPTY_GROUP),
    Allowed(
        "test_offsets_that_were_committed_and_that_were_not",
        "/twice/topics",
        "a topic named twice is answered once, with all that was asked",
    ),
    # -- fetch sessions --
    Allowed(
        "test_a_deleted_topic_in_a_session",
        "/deleted 16/responses/0/partitions/0/error_code",
        "Kafka remembers the name that the id had; Tidelog answers as without a session",
        kafka="unknown_topic_or_partition",
        tidelog="unknown_topic_id",
    ),
    # -- share groups --
    Allowed("test_start_offsets_of_share_groups", "/all of ''/*", _EMPTY_GROUP),
    *(
        Allowed("test_start_offsets_are_altered", path, _ALTERED, kafka=kafka)
        for path, kafka in (
            ("/under members/error_code", "none"),
            ("/of */error_code", "none"),
            ("/*/responses", ...),
            ("/described/groups/0/topics/0/partitions/?/start_offset", -1),
        )
    ),
    Allowed("test_deleting_groups", "/names ?/results/0/error_code", _EMPTY_GROUP),
)

"""Where Tidelog answers otherwise than Apache Kafka 4.1, and why it should."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Allowed:
    """One difference. An entry that matches nothing fails its test: it is out of date."""

    case: str  # the test function
    path: str  # label and fields, a glob
    reason: str
    kafka: Any = ...  # exactly this; ``...`` is anything
    tidelog: Any = ...


_CRASHES = "Kafka has no answer of its own here: an exception escapes its handler"
_HEADER_ONLY = "Tidelog looks at batch headers and CRCs, and at records only where a topic needs it"
_NEGATIVE_EPOCH = "-1 is «not known»; Tidelog, like Kafka's Fetch, takes any negative so"
_TRAILING = "Kafka drops what follows the batch without a word; Tidelog loses nothing silently"

ALLOWED: tuple[Allowed, ...] = (
    # -- Produce
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
        "the records keep the timestamps that their producer gave them, nothing else is true",
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
    # -- Fetch, ListOffsets, OffsetForLeaderEpoch
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
)

"""Any request from plain values, any response as plain values, through kio."""

from __future__ import annotations

import dataclasses
import datetime
import typing
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any

from kio.schema import errors
from tidelog_core.message_schemas import load_request_schema
from tidelog_core.wire_messages import build

API_KEYS = {
    "produce": 0,
    "fetch": 1,
    "list_offsets": 2,
    "metadata": 3,
    "offset_commit": 8,
    "offset_fetch": 9,
    "find_coordinator": 10,
    "join_group": 11,
    "heartbeat": 12,
    "leave_group": 13,
    "sync_group": 14,
    "describe_groups": 15,
    "list_groups": 16,
    "sasl_handshake": 17,
    "api_versions": 18,
    "create_topics": 19,
    "delete_topics": 20,
    "delete_records": 21,
    "init_producer_id": 22,
    "offset_for_leader_epoch": 23,
    "add_partitions_to_txn": 24,
    "add_offsets_to_txn": 25,
    "end_txn": 26,
    "write_txn_markers": 27,
    "txn_offset_commit": 28,
    "describe_acls": 29,
    "create_acls": 30,
    "delete_acls": 31,
    "describe_configs": 32,
    "sasl_authenticate": 36,
    "alter_configs": 33,
    "alter_replica_log_dirs": 34,
    "describe_log_dirs": 35,
    "create_partitions": 37,
    "create_delegation_token": 38,
    "renew_delegation_token": 39,
    "expire_delegation_token": 40,
    "describe_delegation_token": 41,
    "delete_groups": 42,
    "elect_leaders": 43,
    "incremental_alter_configs": 44,
    "alter_partition_reassignments": 45,
    "list_partition_reassignments": 46,
    "offset_delete": 47,
    "describe_user_scram_credentials": 50,
    "alter_user_scram_credentials": 51,
    "describe_client_quotas": 48,
    "alter_client_quotas": 49,
    "describe_quorum": 55,
    "update_features": 57,
    "describe_cluster": 60,
    "describe_producers": 61,
    "describe_transactions": 65,
    "list_transactions": 66,
    "consumer_group_heartbeat": 68,
    "consumer_group_describe": 69,
    "get_telemetry_subscriptions": 71,
    "push_telemetry": 72,
    "list_config_resources": 74,
    "describe_topic_partitions": 75,
    "share_group_heartbeat": 76,
    "share_group_describe": 77,
    "share_fetch": 78,
    "share_acknowledge": 79,
    "describe_share_group_offsets": 90,
    "alter_share_group_offsets": 91,
    "delete_share_group_offsets": 92,
}
SERVED_KEYS = {  # with Tidelog's own
    **API_KEYS,
    "describe_roles": 20_002,
    "alter_roles": 20_003,
    "describe_quota_use": 20_004,
}


def request(api: str, version: int, fields: Mapping[str, object]) -> Any:
    """Return the request entity; nested messages are given as mappings and sequences."""
    return entity(load_request_schema(SERVED_KEYS[api], version), fields)


def entity(schema: Any, fields: Mapping[str, object]) -> Any:
    """Return an entity of ``schema``. Raises ``TypeError`` for an unknown field."""
    hints = typing.get_type_hints(schema)
    unknown = fields.keys() - hints.keys()
    if unknown:
        raise TypeError(f"{schema.__module__} has no {sorted(unknown)}")
    return build(schema, **{name: _value(hints[name], fields[name]) for name in fields})


def plain(value: object) -> Any:
    """Return a response as mappings, lists and scalars; error codes by name."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, errors.ErrorCode):
        return value.name
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return int(value.timestamp() * 1000)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def _value(hint: Any, value: object) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if origin in (typing.Union, UnionType):
        return _value(next(a for a in arguments if a is not type(None)), value)
    if origin is tuple:
        assert isinstance(value, Sequence)
        return tuple(_value(arguments[0], item) for item in value)
    if isinstance(value, Mapping):
        return entity(hint, value)
    if isinstance(hint, type) and issubclass(hint, datetime.timedelta) and isinstance(value, int):
        return datetime.timedelta(milliseconds=value)
    return value

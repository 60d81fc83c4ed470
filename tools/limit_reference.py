"""Writes ``docs/limits.md`` from the programs' constants: ``python -m tools.limit_reference``."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog_cli import passwords
from tidelog_cli.administration import topic_plan
from tidelog_core.admin import names
from tidelog_core.admin.groups import group_admin
from tidelog_core.admin.security import acls, delegation_tokens, roles, scram_users
from tidelog_core.admin.settings import client_metrics, client_quotas, configs
from tidelog_core.admin.topics import topic_plans
from tidelog_core.config import GroupConfig, ListenerConfig, NodeConfig, TopicConfig, settings_of
from tidelog_core.log import append_checks
from tidelog_core.model import INT32_MAX, INT64_MAX
from tidelog_core.quotas import quota_entity
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_core.security import roles as role_members
from tidelog_core.security import scram_credentials
from tidelog_node.authentication import bearer_tokens, login
from tidelog_node.client_metrics import forwarder, instances
from tidelog_node.diskless.chain.node_chain import LENT_BYTES
from tidelog_node.handlers.client_metrics import DECOMPRESSED_RATIO_MAX
from tidelog_node.handlers.fetch import fetch_sessions
from tidelog_node.local_cluster import cluster_settings
from tidelog_node.monitoring import group_lag, http_server
from tidelog_node.throttling import meters
from tidelog_node.transactions import hosted_transactions

from tools.places import ROOT

PAGE = ROOT / "docs" / "limits.md"
KEY_WRITE_UNITS_PER_S = 1_000  # Source: DynamoDB developer guide, partition keys
_BEGIN = """\
# Limits

What a cluster takes at most, and what happens beyond. `make docs` generates this page from the
programs' constants and settings. A limit with the name of a setting can be changed: see
[configuration.md](configuration.md). [capacity.md](capacity.md) says what was measured, which is
often less than what is allowed.
"""

Row = tuple[str, str, str]  # what is limited, the number, and what happens beyond

INVALID = "refused, INVALID_REQUEST"
POLICY = "refused, POLICY_VIOLATION"
FULL_GROUP = "the member is refused, GROUP_MAX_SIZE_REACHED"


def limit_page() -> str:
    """Return the page."""
    parts = [_BEGIN]
    for title, rows in _sections().items():
        parts += [f"\n## {title}\n\n", "| what | at most | beyond it |\n|---|---|---|\n"]
        parts += [f"| {what} | {number} | {beyond} |\n" for what, number, beyond in rows]
    return "".join(parts)


def _sections() -> dict[str, list[Row]]:
    return {
        "Topics and partitions": list(_topics()),
        "Records and requests": list(_records()),
        "Nodes": list(_nodes()),
        "Groups": list(_groups()),
        "Producers and transactions": list(_transactions()),
        "Users, ACLs and roles": list(_rights()),
        "Tokens": list(_tokens()),
        "Quotas": list(_quotas()),
        "Connections and probes": list(_connections()),
        "Metrics of clients": list(_client_metrics()),
        "Commands": list(_commands()),
    }


def _topics() -> Iterator[Row]:
    yield (
        "a topic's name",
        f"{names.TOPIC_NAME_LENGTH_MAX} of the characters `a-z A-Z 0-9 . _ -`, not `.` or `..`",
        "refused, INVALID_TOPIC_EXCEPTION",
    )
    yield (
        "topics whose names differ only in `.` and `_`",
        "1",
        "refused, INVALID_TOPIC_EXCEPTION",
    )
    yield "partitions of a topic", _count(topic_plans.PARTITIONS_MAX), "refused, INVALID_PARTITIONS"
    yield "new partitions of one request", _count(topic_plans.NEW_PARTITIONS_MAX), POLICY
    yield (
        "replicas of a partition",
        "the number of nodes",
        "refused, INVALID_REPLICATION_FACTOR",
    )
    yield (
        "settings of one topic, node or group",
        _count(configs.CONFIGS_PER_RESOURCE_MAX),
        "refused, INVALID_CONFIG",
    )


def _nodes() -> Iterator[Row]:
    times = LeaseTimes()
    beyond = "renewals are throttled: leases end, and partitions change leaders again and again"
    for what, renew_ms in (
        ("nodes that lead diskless partitions, with DynamoDB", times.brisk_renew_ms),
        ("other nodes, with DynamoDB", times.renew_ms),
    ):
        # Each renewal is one unit, and all leases have one key.
        yield what, f"{_count(KEY_WRITE_UNITS_PER_S * renew_ms // 1000)} or less", beyond


def _records() -> Iterator[Row]:
    yield (
        "a batch of records, compressed",
        _setting("max.message.bytes"),
        "refused, MESSAGE_TOO_LARGE",
    )
    yield (
        "records of a compressed batch for a compacted topic",
        _count(append_checks.CHECKED_RECORDS_MAX),
        "refused, MESSAGE_TOO_LARGE",
    )
    yield "a request", _setting("socket.request.max.bytes"), "the connection is closed"
    yield (
        "topics and partitions of a Produce, Fetch or ShareFetch request",
        _setting("socket.request.max.partitions"),
        "the connection is closed",
    )
    yield (
        "elements of lists in a request",
        _setting("socket.request.max.elements"),
        "refused, or the connection is closed",
    )
    yield (
        "unanswered requests of a connection",
        _setting("queued.max.requests"),
        "the connection is not read until some are answered",
    )
    yield (
        "memory of all unanswered requests of a node",
        _setting("queued.max.request.bytes"),
        "connections wait",
    )
    yield (
        "objects of diskless topics that a node's replicas read at once",
        f"{LENT_BYTES >> 20} MiB for all leaders that it follows",
        "reads wait for room",
    )
    yield (
        "records of diskless topics that the object store has not taken yet",
        _setting("diskless.buffer.max.bytes"),
        "requests for such topics wait, for half of their time; then REQUEST_TIMED_OUT",
    )
    yield "an answer to a Fetch", _setting("fetch.max.bytes"), "less is sent; one batch always is"
    yield (
        "an answer to a follower, which has memory for one of each leader",
        _setting("replica.fetch.response.max.bytes"),
        "less is sent; one batch always is",
    )


def _groups() -> Iterator[Row]:
    yield "a group's id", _size(group_admin.GROUP_ID_SIZE_BYTES_MAX), "refused, INVALID_GROUP_ID"
    yield "members of a classic group", _setting("group.max.size"), FULL_GROUP
    yield "members of a consumer group", _setting("group.consumer.max.size"), FULL_GROUP
    yield "members of a share group", _setting("group.share.max.size"), FULL_GROUP
    yield (
        "records of a partition in flight in a share group",
        _setting("group.share.partition.max.record.locks"),
        "no new records until some are acknowledged",
    )
    yield (
        "metadata of a committed offset",
        _setting("offset.metadata.max.bytes"),
        "refused, OFFSET_METADATA_TOO_LARGE",
    )
    yield "groups whose lag a node shows as metrics", _count(group_lag.GROUPS_MAX), "not shown"
    yield "a consumer's rack", _size(fetch_sessions.RACK_SIZE_BYTES_MAX), "no fetch session"


def _transactions() -> Iterator[Row]:
    yield (
        "a transactional id",
        _size(hosted_transactions.TRANSACTIONAL_ID_SIZE_BYTES_MAX),
        INVALID,
    )
    yield (
        "`transaction.timeout.ms` of a producer",
        _setting("transaction.max.timeout.ms"),
        "refused, INVALID_TRANSACTION_TIMEOUT",
    )


def _rights() -> Iterator[Row]:
    yield (
        "a SCRAM user's name",
        _size(scram_users.USER_NAME_SIZE_BYTES_MAX),
        "refused, UNACCEPTABLE_CREDENTIAL",
    )
    yield (
        "iterations of a SCRAM password",
        _count(scram_credentials.ITERATIONS_MAX),
        "refused, UNACCEPTABLE_CREDENTIAL",
    )
    yield "ACLs", _setting("authorizer.max.acls"), POLICY
    yield "ACLs that one request creates or deletes", _count(acls.CHANGES_MAX), INVALID
    yield (
        "names of resources, principals and hosts in ACLs",
        f"{_count(acls.NAME_SIZE_MAX)} characters",
        INVALID,
    )
    yield "roles", _count(roles.ROLES_MAX), POLICY
    yield "members of a role", _count(role_members.MEMBERS_MAX), INVALID
    yield (
        "names of a role's members together",
        _size(role_members.MEMBERS_SIZE_BYTES_MAX),
        INVALID,
    )


def _tokens() -> Iterator[Row]:
    yield "delegation tokens", _count(delegation_tokens.TOKENS_MAX), POLICY
    yield (
        "delegation tokens that one user made",
        _count(delegation_tokens.TOKENS_OF_REQUESTER_MAX),
        POLICY,
    )
    yield "renewers of a delegation token", _count(delegation_tokens.RENEWERS_MAX), INVALID
    yield (
        "a delegation token's life",
        _setting("delegation.token.max.lifetime.ms"),
        "it ends then",
    )
    yield "groups in a token of OAUTHBEARER", _count(bearer_tokens.GROUPS_MAX), "login refused"


def _quotas() -> Iterator[Row]:
    yield (
        "a user's or client's name in a quota",
        f"{_count(quota_entity.NAME_SIZE_MAX)} characters",
        INVALID,
    )
    yield "entities that one request alters", _count(client_quotas.CHANGES_MAX), INVALID
    yield (
        "entities that a node measures at once",
        _count(meters.METERS_MAX),
        "those measured first are forgotten",
    )


def _connections() -> Iterator[Row]:
    yield "connections of a listener", _setting("max.connections"), "not accepted for now"
    yield "connections of one address", _setting("max.connections.per.ip"), "closed"
    yield "silence of a connection", _setting("connections.max.idle.ms"), "closed"
    yield "a login", f"{login.LOGIN_SECONDS_MAX:g} s", "closed"
    yield (
        "connections for `/metrics` and probes",
        _count(http_server.CONNECTIONS_MAX),
        "the oldest that has sent nothing is closed",
    )


def _client_metrics() -> Iterator[Row]:
    yield "subscriptions of a cluster", _count(client_metrics.SUBSCRIPTIONS_MAX), POLICY
    yield (
        "metrics that a client pushes at once",
        f"{_setting('telemetry.max.bytes')}; decompressed {DECOMPRESSED_RATIO_MAX} times as many",
        "refused, TELEMETRY_TOO_LARGE",
    )
    yield (
        "clients that a node remembers",
        _count(instances.INSTANCES_MAX),
        "the one silent for longest counts as new",
    )
    yield (
        "metrics that wait for the receiver",
        _size(forwarder.WAITING_BYTES_MAX),
        "lost, and counted",
    )


def _commands() -> Iterator[Row]:
    yield "nodes of `tidelog up`", _count(cluster_settings.NODES_MAX), "refused"
    yield (
        "a password of `tidelog user add`",
        _size(passwords.PASSWORD_SIZE_BYTES_MAX),
        "refused",
    )
    yield "a file of `tidelog apply`", _size(topic_plan.FILE_BYTES_MAX), "refused"


def _setting(name: str) -> str:
    for owner in (TopicConfig, GroupConfig, ListenerConfig, NodeConfig):
        setting = settings_of(owner).get(name)
        if setting is not None:
            break
    else:
        raise LookupError(name)
    value = setting.default
    assert isinstance(value, int)
    if value in (INT32_MAX, INT64_MAX):
        text = "no limit"
    elif setting.unit == "bytes":
        text = _size(value)
    elif setting.unit == "milliseconds":
        text = f"{_count(value)} ms"
    else:
        text = _count(value)
    at_most = setting.at_most
    most = "" if at_most in (None, INT32_MAX, INT64_MAX) else f", up to {at_most:,g}"
    return f"`{name}`, by default {text}{most}"


def _count(value: int) -> str:
    return f"{value:,}"


def _size(size_bytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit:,} {name}"
    return f"{size_bytes:,} bytes"


if __name__ == "__main__":
    PAGE.write_text(limit_page())

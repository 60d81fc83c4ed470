"""Writes ``docs/configuration.md`` from the settings: ``python -m tools.configuration``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog_core.config import (
    GROUP_DEFAULT_FROM_NODE,
    TOPIC_DEFAULT_FROM_NODE,
    ClientMetricsConfig,
    GroupConfig,
    ListenerConfig,
    NodeConfig,
    TopicConfig,
    settings_of,
)
from tidelog_core.model import INT32_MAX, INT64_MAX
from tidelog_core.setting import Setting

from tools.places import ROOT

PAGE = ROOT / "docs" / "configuration.md"

# The sections of a node's settings, each with the prefixes of its settings' names. Settings that
# are defaults of topics or groups have sections of their own.
NODE_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Topics": ("auto.create.", "default.replication.", "delete.topic.", "num.partitions"),
    "Membership and leaders": (
        *("auto.leader.", "broker.", "controlled.", "leader.", "metadata."),
    ),
    "Replication": ("inter.broker.encryption.", "replica."),
    "Groups and offsets": ("group.", "offset"),
    "Transactions and idempotent producers": ("producer.", "transaction"),
    "Listeners": ("advertised.", "inter.broker.listener.", "listener", "ssl.reload."),
    "Tokens of OAUTHBEARER": ("sasl.oauthbearer.",),
    "Delegation tokens": ("delegation.token.",),
    "Authorization": ("allow.everyone.", "authorizer.", "bootstrap.", "super."),
    "Audit log": ("audit.",),
    "Metrics": ("client.metrics.", "metrics.", "telemetry."),
    "Traces": ("tracing.",),
    "Costs": ("cost.",),
    "Quotas": ("controller.quota.", "quota."),
    "Connections and requests": (
        *(
            "connection.",
            "connections.",
            "fetch.",
            "max.connection",
            "max.incremental.",
            "queued.",
            "socket.",
        ),
    ),
    "Disk, retention and compaction": ("background.", "log."),
    "Object store": ("remote.", "tier."),
    "Diskless topics": ("diskless.", "client.az."),
}

_BEGIN = """\
# Configuration

Every setting of topics, groups, listeners and nodes. Names, defaults and bounds are Kafka's where
Kafka has the setting. `make docs` generates this page from
[`config.py`](../core/tidelog_core/config.py); DescribeConfigs returns the same descriptions.

| setting of | how to set it |
|---|---|
| a topic's | `tidelog topic create\\|alter TOPIC --config NAME=VALUE`, \
`kafka-configs.sh --entity-type topics`, [`PATCH /topics/{topic}/configs`](admin.md) |
| a group's | `tidelog group alter GROUP --config NAME=VALUE`, \
`kafka-configs.sh --entity-type groups`, [`PATCH /group/configs`](admin.md) |
| a subscription's to [client metrics](operations.md#metrics-of-clients) | \
`tidelog config set client-metrics NAME NAME=VALUE`, `kafka-client-metrics.sh`, \
`kafka-configs.sh --entity-type client-metrics` |
| a listener's, at start | as a node's: `ssl.client.auth` is the default of all listeners, \
`listener.name.outside.ssl.client.auth` is that of `OUTSIDE` alone |
| a node's, at start | `--set NAME=VALUE`, or the environment: `TIDELOG_CONFIG_NUM_PARTITIONS=3` \
is `num.partitions`. The argument overrides the environment |
| a node's, while it runs | `tidelog config set node ID NAME=VALUE`, or `nodes` for all; \
`kafka-configs.sh --entity-type brokers`, with `--entity-name ID` for \
one node or `--entity-default` for all, and the [admin API](admin.md) in the same way. One node's \
value overrides all nodes', and both override the node's start settings |

Changes of topics, groups and running nodes take effect on every node within
`metadata.poll.interval.ms`, without a restart. Settings marked «at start» can only be set there.
The functions on AWS read the node settings of their environment, which must be the nodes'
([admin.md](admin.md)). Addresses, directories and stores are arguments of a node:
`python -m tidelog_node --help`.

A topic's value is its own, else that of the node setting named under «default», else the
default shown.
"""


def configuration_page() -> str:
    """Return the page."""
    topics, groups, nodes = (settings_of(cls) for cls in (TopicConfig, GroupConfig, NodeConfig))
    listeners = settings_of(ListenerConfig)
    parts = [
        _BEGIN,
        "\n## Topics\n\n",
        *_table(topics.values(), TOPIC_DEFAULT_FROM_NODE),
        "\n## Groups\n\n",
        *_table(groups.values(), GROUP_DEFAULT_FROM_NODE),
        "\n## Subscriptions to the metrics of clients\n\n",
        *_table(settings_of(ClientMetricsConfig).values(), {}),
        "\n## Listeners\n\n",
        *_table(listeners.values(), {}),
        "\n## Nodes\n",
    ]
    for title, beginnings in NODE_SECTIONS.items():
        own = (s for s in nodes.values() if not s.default_of and s.name.startswith(beginnings))
        parts += [f"\n### {title}\n\n", *_node_table(own)]
    for title, declared in (("topics", topics), ("groups", groups)):
        own = (setting for setting in nodes.values() if setting.default_of in declared)
        parts += [f"\n### Defaults of {title}\n\n", *_defaults_table(own)]
    return "".join(parts)


def _table(settings: Iterable[Setting], default_from: Mapping[str, str]) -> Iterable[str]:
    yield "| setting | what it does | type | default | allowed |\n|---|---|---|---|---|\n"
    for setting in settings:
        default = _default(setting)
        if setting.name in default_from:
            default += f"; of nodes: `{default_from[setting.name]}`"
        yield _row(f"`{setting.name}`", setting.doc, _type(setting), default, _allowed(setting))


def _node_table(settings: Iterable[Setting]) -> Iterable[str]:
    yield "| setting | what it does | type | default | allowed | set |\n|---|---|---|---|---|---|\n"
    for setting in settings:
        yield _row(
            *(f"`{setting.name}`", setting.doc, _type(setting), _default(setting)),
            *(_allowed(setting), _when(setting)),
        )


def _defaults_table(settings: Iterable[Setting]) -> Iterable[str]:
    yield "| setting | of | type | default | allowed | set |\n|---|---|---|---|---|---|\n"
    for setting in settings:
        yield _row(
            *(f"`{setting.name}`", f"`{setting.default_of}`", _type(setting), _default(setting)),
            *(_allowed(setting), _when(setting)),
        )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def _type(setting: Setting) -> str:
    return f"{setting.type}, {setting.unit}" if setting.unit else setting.type


def _when(setting: Setting) -> str:
    return "at start" if setting.is_read_only else "any time"


def _default(setting: Setting) -> str:
    text = f"`{setting.format(setting.default)}`"
    meaning = _meaning(setting)
    return f"{text} ({meaning})" if meaning else text


def _meaning(setting: Setting) -> str:
    """Return the default in words or a larger unit, empty if the plain value is clear."""
    value = setting.default
    if not isinstance(value, int) or isinstance(value, bool):
        return ""
    if value in (INT32_MAX, INT64_MAX):
        return "no limit"
    scales = {
        "milliseconds": ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")),
        "seconds": ((86_400, "d"), (3600, "h"), (60, "min")),
        "minutes": ((1440, "d"), (60, "h")),
        "bytes": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")),
        "bytes a second": ((1 << 30, "GiB/s"), (1 << 20, "MiB/s"), (1 << 10, "KiB/s")),
    }
    for size, name in scales.get(setting.unit, ()):
        if value >= size and value % size == 0:
            return f"{value // size} {name}"
    return ""


def _allowed(setting: Setting) -> str:
    if setting.one_of:
        return ", ".join(f"`{value}`" for value in setting.one_of)
    if setting.at_least is None:
        return ""
    is_unbounded = setting.at_most in (None, INT32_MAX, INT64_MAX)
    return f"≥ {setting.at_least}" if is_unbounded else f"{setting.at_least} to {setting.at_most}"


if __name__ == "__main__":
    PAGE.write_text(configuration_page())
    print(PAGE.relative_to(ROOT))

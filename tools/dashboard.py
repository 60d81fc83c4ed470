"""Writes ``infra/monitoring/dashboard.json`` for Grafana: ``python -m tools.dashboard``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueColorMode, LegendDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)

from tools.places import ROOT

FILE = ROOT / "infra" / "monitoring" / "dashboard.json"
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
_IN = 'job="tidelog", instance=~"$node"'
NODES = f"{{{_IN}}}"
_WIDTH, _HEIGHT = 24, 7  # of the dashboard, and of a row of graphs, in Grafana's units


class Graph(NamedTuple):
    """A panel with lines over time."""

    title: str
    unit: str  # Grafana's name of it
    lines: Sequence[tuple[str, str]]  # expressions, and the lines' names
    says: str = ""


class Number(NamedTuple):
    """A panel with the newest number, red if it is above ``most``."""

    title: str
    expression: str
    most: float | None = 0
    unit: str = "short"


def _rate(metric: str, by: str = "", where: str = "") -> str:
    chosen = NODES if not where else NODES.replace("}", f", {where}}}")
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({metric}{chosen}[$__rate_interval]))"


def _sum(metric: str, by: str = "") -> str:
    return f"sum by ({by}) ({metric}{NODES})" if by else f"sum({metric}{NODES})"


def _quantile(share: float, metric: str, by: str, where: str = "") -> str:
    labels = ", ".join(("le", by)) if by else "le"
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket', labels, where)})"


_K, _C, _S = "tidelog_kafka", "tidelog_cloud_storage", "tidelog_storage"
NUMBERS = (
    Number("Nodes that serve", _sum("tidelog_ready"), most=None),
    Number("Without a leader", f"max(tidelog_cluster_unavailable_partitions{NODES})"),
    Number("Under-replicated", _sum(f"{_K}_under_replicated_partitions")),
    Number("Refuse acks=all", _sum(f"{_K}_under_min_isr_partitions")),
    Number("Full or failed disks", f"sum({_S}_disk_free_space_alert{NODES} > bool 0)"),
    Number("Oldest segment not tiered", f"max({_C}_backlog_seconds{NODES})", 900, "s"),
    Number(
        "Longest group lag", f"max({_K}_consumer_group_lag_seconds{NODES}) or vector(0)", 600, "s"
    ),
    Number("Late transactions", _sum(f"{_K}_partitions_with_late_transactions")),
)
_PRODUCED = "topk(10, " + _rate(f"{_K}_request_bytes_total", "topic", 'request="produce"') + ")"
_HITS, _MISSES = _rate(f"{_C}_cache_hits_total"), _rate(f"{_C}_cache_misses_total")
ROWS: Sequence[tuple[str, Sequence[Graph]]] = (
    (
        "Traffic",
        (
            Graph(
                "Produced and consumed",
                "Bps",
                [(_rate(f"{_K}_request_bytes_total", "request"), "{{request}}")],
            ),
            Graph(
                "Largest topics, produced",
                "Bps",
                [
                    (
                        _PRODUCED,
                        "{{topic}}",
                    )
                ],
            ),
            Graph("Records produced", "wps", [(_rate(f"{_K}_records_produced_total"), "records")]),
        ),
    ),
    (
        "Requests",
        (
            Graph(
                "Produce",
                "s",
                [
                    (
                        _quantile(share, f"{_K}_handler_latency_seconds", "", 'api="produce"'),
                        f"p{share * 100:g}",
                    )
                    for share in (0.5, 0.99)
                ],
                "Time from the arrival of a request to its answer.",
            ),
            Graph(
                "Slowest other APIs, p99",
                "s",
                [
                    (
                        "topk(5, "
                        + _quantile(
                            0.99,
                            f"{_K}_handler_latency_seconds",
                            "api",
                            'api!~"produce|fetch|share_fetch|join_group"',
                        )
                        + ")",
                        "{{api}}",
                    )
                ],
                "Without those in which a client may ask to wait.",
            ),
            Graph(
                "Requests",
                "reqps",
                [(_rate(f"{_K}_handler_latency_seconds_count", "api"), "{{api}}")],
            ),
            Graph(
                "Errors in answers",
                "ops",
                [(_rate(f"{_K}_request_errors_total", "api, error"), "{{api}} {{error}}")],
            ),
            Graph(
                "Time that clients over quota wait",
                "percentunit",
                [(_rate(f"{_K}_throttle_seconds_total", "instance"), "{{instance}}")],
            ),
            Graph(
                "Memory of requests",
                "bytes",
                [
                    (_sum(f"{_K}_request_memory_bytes", "instance"), "{{instance}}"),
                    (f"max({_K}_request_memory_limit_bytes{NODES})", "limit of a node"),
                ],
            ),
        ),
    ),
    (
        "Groups and transactions",
        (
            Graph(
                "Groups furthest behind",
                "s",
                [
                    (
                        f"topk(10, max by (group, topic) ({_K}_consumer_group_lag_seconds{NODES}))",
                        "{{group}} {{topic}}",
                    )
                ],
                "Age of the next record that the group has to read.",
            ),
            Graph(
                "Groups furthest behind",
                "short",
                [
                    (
                        f"topk(10, max by (group, topic) ({_K}_consumer_group_lag{NODES}))",
                        "{{group}} {{topic}}",
                    )
                ],
                "Offsets up to the ends of the partitions.",
            ),
            Graph(
                "Transactions",
                "short",
                [
                    (_sum(f"{_K}_open_transactions"), "open"),
                    (_sum(f"{_K}_ending_transactions"), "ending"),
                ],
            ),
        ),
    ),
    (
        "Replication",
        (
            Graph("Leaders", "short", [(_sum(f"{_K}_leaders", "instance"), "{{instance}}")]),
            Graph(
                "Changes of the ISR",
                "ops",
                [
                    (_rate(f"{_K}_isr_shrinks_total"), "shrinks"),
                    (_rate(f"{_K}_isr_expands_total"), "expands"),
                ],
            ),
            Graph(
                "Between nodes",
                "Bps",
                [(_rate(f"{_K}_replicated_bytes_total", "direction"), "{{direction}}")],
            ),
        ),
    ),
    (
        "Tier",
        (
            Graph(
                "To and from the object store",
                "Bps",
                [
                    (_rate(f"{_C}_uploaded_bytes_total"), "uploaded"),
                    (_rate(f"{_C}_downloaded_bytes_total"), "downloaded"),
                ],
            ),
            Graph("Backlog", "bytes", [(_sum(f"{_C}_backlog_bytes", "instance"), "{{instance}}")]),
            Graph(
                "Requests to the object store",
                "reqps",
                [(_rate(f"{_C}_requests_total", "method, outcome"), "{{method}} {{outcome}}")],
                "They are what S3 bills.",
            ),
            Graph(
                "Reads from the tier, p99",
                "s",
                [(_quantile(0.99, f"{_C}_cold_read_seconds", "instance"), "{{instance}}")],
            ),
            Graph(
                "Chunks found in the cache",
                "percentunit",
                [
                    (
                        f"{_HITS} / ({_HITS} + {_MISSES})",
                        "hits",
                    )
                ],
            ),
            Graph(
                "Segments",
                "ops",
                [
                    (_rate(f"{_C}_copied_segments_total"), "tiered"),
                    (_rate(f"{_C}_deleted_segments_total"), "expired"),
                ],
            ),
        ),
    ),
    (
        "Nodes",
        (
            Graph(
                "CPU of the node's process",
                "percentunit",
                [(_rate("process_cpu_seconds_total", "instance"), "{{instance}}")],
                "1 is the core that its event loop can use.",
            ),
            Graph(
                "Resident memory",
                "bytes",
                [(_sum("process_resident_memory_bytes", "instance"), "{{instance}}")],
            ),
            Graph(
                "Free disk",
                "bytes",
                [
                    (_sum(f"{_S}_disk_free_bytes", "instance"), "{{instance}}"),
                    (f"max({_S}_disk_reserve_bytes{NODES})", "reserve"),
                ],
            ),
            Graph(
                "Connections",
                "short",
                [(_sum("tidelog_rpc_active_connections", "listener"), "{{listener}}")],
            ),
            Graph(
                "Requests to the metadata store",
                "reqps",
                [
                    (
                        _rate("tidelog_metadata_store_requests_total", "operation, outcome"),
                        "{{operation}} {{outcome}}",
                    )
                ],
            ),
            Graph(
                "Renewal of leases, p99",
                "s",
                [(_quantile(0.99, "tidelog_lease_renewal_seconds", "instance"), "{{instance}}")],
                "A lease lasts 9 seconds, and is renewed every 3.",
            ),
        ),
    ),
    (
        "Costs",
        (
            Graph(
                "An hour, by item",
                "currencyUSD",
                [(_sum("tidelog_cost_dollars_per_hour", "item"), "{{item}}")],
                "By the price file, at the pace of the last ten minutes.",
            ),
            Graph(
                "An hour, by topic",
                "currencyUSD",
                [(_sum("tidelog_cost_topic_dollars_per_hour", "topic"), "{{topic}}")],
                "Requests, stored bytes and bytes between zones.",
            ),
            Graph(
                "This month",
                "currencyUSD",
                [
                    (f'max(tidelog_cost_spent_dollars{{period="month", {_IN}}})', "so far"),
                    (f'max(tidelog_cost_forecast_dollars{{period="month", {_IN}}})', "at its end"),
                    (f'max(tidelog_cost_budget_dollars{{period="month", {_IN}}})', "budget"),
                ],
            ),
        ),
    ),
)


def dashboard_json() -> str:
    """Return the dashboard, which Grafana imports or is provisioned with."""
    builder = (
        dashboard.Dashboard("Tidelog")
        .uid("tidelog")
        .tags(["tidelog"])
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(dashboard.DatasourceVariable("source").label("Source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("node")
            .label("Node")
            .datasource(SOURCE)
            .query('label_values(up{job="tidelog"}, instance)')
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
        )
    )
    for number in NUMBERS:
        builder = builder.with_panel(_number_panel(number))
    for title, graphs in ROWS:
        builder = builder.with_row(dashboard.Row(title))
        for graph in graphs:
            builder = builder.with_panel(_graph_panel(graph))
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return encoder.encode(builder.build()) + "\n"


def expressions() -> Sequence[str]:
    """Return every expression of the dashboard."""
    of_graphs = [line[0] for _, graphs in ROWS for graph in graphs for line in graph.lines]
    return [*(number.expression for number in NUMBERS), *of_graphs]


def _number_panel(number: Number) -> stat.Panel:
    steps = [Threshold(value=None, color="green")]
    if number.most is not None:
        steps.append(Threshold(value=number.most + 1e-9, color="red"))
    return (
        stat.Panel()
        .title(number.title)
        .unit(number.unit)
        .color_mode(BigValueColorMode.BACKGROUND)
        .thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .height(4)
        .span(_WIDTH // len(NUMBERS))
        .datasource(SOURCE)
        .with_target(prometheus.Dataquery().expr(number.expression).instant())
    )


def _graph_panel(graph: Graph) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(graph.title)
        .description(graph.says)
        .unit(graph.unit)
        .min(0)
        .height(_HEIGHT)
        .span(_WIDTH // 3)
        .fill_opacity(8)
        .datasource(SOURCE)
        .legend(_legend())
    )
    for expression, name in graph.lines:
        target = prometheus.Dataquery().expr(expression).legend_format(name)
        panel = panel.with_target(target)
    return panel


def _legend() -> common.VizLegendOptions:
    return common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).show_legend(True)


if __name__ == "__main__":
    FILE.write_text(dashboard_json())

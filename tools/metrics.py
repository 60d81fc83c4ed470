"""Writes ``docs/metrics.md``: ``python -m tools.metrics``."""

from __future__ import annotations

from tidelog_node.monitoring.table import SECTIONS, MetricSpec

from tools.places import ROOT

PAGE = ROOT / "docs" / "metrics.md"

_BEGIN = """\
# Metrics of a node

Every node serves `/metrics` at [its HTTP port](operations.md#probes-and-metrics), in Prometheus'
text format. This page is made by `make docs` from the table that the node serves its metrics by,
`cache_node/tidelog_node/monitoring/table.py`.

Names begin with `tidelog_` and use Redpanda's nouns where it has them. Times are seconds, sizes are
bytes. Counters count from the start of the process. A metric without anything to say has no series:
a node without groups has none of groups.

```yaml
scrape_configs:
  - job_name: tidelog
    static_configs:
      - targets: [localhost:9644, localhost:9645, localhost:9646]
```
"""

_END = """
## The process

`prometheus_client` adds the metrics of the node's own process, without its workers:
`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`,
`process_open_fds`, `process_max_fds`, `process_start_time_seconds`, and by `generation`
`python_gc_collections_total`, `python_gc_objects_collected_total`,
`python_gc_objects_uncollectable_total`.
"""


def metrics_page() -> str:
    """Return the page's text."""
    parts = [_BEGIN]
    for title, metrics in SECTIONS.items():
        rows = "".join(map(_row, metrics))
        parts.append(
            f"\n## {title}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n{rows}"
        )
    return "".join((*parts, _END))


def _row(metric: MetricSpec) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(metrics_page())
    print(PAGE.relative_to(ROOT))

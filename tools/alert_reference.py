"""Writes ``docs/alerts.md`` from the alert rules: ``python -m tools.alert_reference``."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tools.places import ROOT

PAGE = ROOT / "docs" / "alerts.md"
RULES = ROOT / "infra" / "monitoring" / "alerts.yaml"
_BEGIN = """\
# Alerts

The alerts of `infra/monitoring/alerts.yaml`, and what to do. Prometheus takes the file as it is:

```yaml
rule_files: [alerts.yaml]
scrape_configs:
  - job_name: tidelog
    static_configs:
      - targets: [node1:9644, node2:9644, node3:9644]
```

`make docs` makes this page from the rules. The tests run each rule with promtool, with series that
make it fire and with some that must not. [metrics.md](metrics.md) has the metrics, and
`infra/monitoring/dashboard.json` is a dashboard of them: import it into Grafana.
"""


def alert_page() -> str:
    """Return the page."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return "".join([_BEGIN, *(_section(rule) for group in groups for rule in group["rules"])])


def _section(rule: dict[str, Any]) -> str:
    said = rule["annotations"]
    after = f" for {rule['for']}" if "for" in rule else ""
    expression = " ".join(rule["expr"].split())
    summary = re.sub(r"{{ \$labels\.(\w+) }}", r"«\1»", said["summary"])
    summary = re.sub(r"{{ \$value[^}]*}}", "«number»", summary)
    return (
        f"\n## {rule['alert']}\n\n"
        f"{rule['labels']['severity'].capitalize()}: {summary}.\n\n"
        f"```text\n{expression}{after}\n```\n\n"
        f"{said['description'].strip()}\n"
    )


if __name__ == "__main__":
    PAGE.write_text(alert_page())

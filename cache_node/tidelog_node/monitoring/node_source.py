"""Metrics of the node as a whole: versions, age, readiness, faults."""

from __future__ import annotations

import platform
import time
from collections import Counter

from tidelog_core.software_version import tidelog_version

from tidelog_node import dispatch
from tidelog_node.monitoring.readiness import Readiness
from tidelog_node.monitoring.scrape import Scrape


class NodeSource:
    """Reads ``Readiness`` and ``NodeHealth``."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._began = time.monotonic()
        self._version = tidelog_version()
        # The same source may run as Python or compiled; a compiled module is no .py file.
        self._is_compiled = str(not str(dispatch.__file__).endswith(".py")).lower()

    async def collect(self, scrape: Scrape) -> None:
        """Add the series."""
        readiness = self._readiness
        node = readiness.node
        cluster_id = "" if node is None else node.view.image.cluster_id or ""
        labels = (self._version, platform.python_version(), str(readiness.broker_id))
        scrape.add("tidelog_application_build", 1, *labels, str(cluster_id), self._is_compiled)
        scrape.add("tidelog_application_uptime_seconds", time.monotonic() - self._began)
        checks = readiness.checks()
        scrape.add("tidelog_ready", all(check.is_ok for check in checks))
        for check in checks:
            scrape.add("tidelog_ready_check", check.is_ok, check.name)
        if node is not None:
            kinds = Counter(fault.name for fault in node.health.reasons)
            for kind, count in kinds.items():
                scrape.add("tidelog_faults", count, kind)

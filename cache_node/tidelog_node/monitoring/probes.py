"""The pages of the probes: ``/livez`` and ``/readyz``."""

from __future__ import annotations

import json

from tidelog_node.monitoring.http_server import Page
from tidelog_node.monitoring.readiness import Readiness

JSON = "application/json"
NOT_READY = 503


class Probes:
    """Answers whether the node lives and whether it is ready."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    async def livez(self) -> Page:
        """Answer: an event loop that hangs does not."""
        return Page(b"ok\n")

    async def readyz(self) -> Page:
        """Answer 200 if clients should be sent to this node, 503 if not, with every check."""
        readiness = self._readiness
        checks = readiness.checks()
        is_ready = all(check.is_ok for check in checks)
        node = readiness.node
        body = {
            "status": "ready" if is_ready else "not ready",
            "broker_id": readiness.broker_id,
            "checks": {one.name: {"ok": one.is_ok, "detail": one.detail} for one in checks},
            "faults": [
                {"name": fault.name, "detail": fault.detail, "since_ms": fault.since_ms}
                for fault in (() if node is None else node.health.reasons)
            ],
        }
        content = json.dumps(body, indent=2).encode() + b"\n"
        return Page(content, status=200 if is_ready else NOT_READY, content_type=JSON)

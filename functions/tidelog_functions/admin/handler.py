"""The function behind the admin API's API Gateway (HTTP API, payload format 2.0, IAM).

TIDELOG_METADATA              location of the metadata store
TIDELOG_OBJECTS               location of the segments; only offsets reset by time need it
TIDELOG_CONFIG_<NAME>         a node setting, as the nodes have it: defaults of new topics
TIDELOG_ADMIN_AUTHORIZATION   ``iam`` (default): no identity, no service; ``none``: whoever calls
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

from tidelog_functions.admin.api import AdminApi
from tidelog_functions.admin.cluster import AdminCluster, parse_admin_settings
from tidelog_functions.admin.contract import load_contract
from tidelog_functions.invocation import Context

RESERVE_MS = 1_000  # of the time limit, for the answer to get out
SECONDS_MAX = 28.0  # API Gateway waits for 30
SECONDS_MIN = 0.1


@dataclass(frozen=True, slots=True)
class _Warm:
    """What one execution environment keeps between its invocations."""

    runner: asyncio.Runner
    api: AdminApi


def handle(event: object, context: Context) -> dict[str, Any]:
    """Return the answer to a request. Raises ``InvalidConfig`` where the environment is wrong."""
    warm = _warm()
    seconds = (context.get_remaining_time_in_millis() - RESERVE_MS) / 1000
    seconds_max = max(SECONDS_MIN, min(SECONDS_MAX, seconds))
    return warm.runner.run(warm.api.handle(event, seconds_max=seconds_max))


@cache
def _warm() -> _Warm:
    # Connections belong to the event loop that they were made on, so there is one for good.
    settings = parse_admin_settings(os.environ)
    api = AdminApi(
        AdminCluster.open(settings.function),
        load_contract(),
        requires_identity=settings.requires_identity,
    )
    return _Warm(asyncio.Runner(), api)

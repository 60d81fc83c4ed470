"""The Lambda function of the admin API (API Gateway HTTP API, payload format 2.0, IAM).

TIDELOG_METADATA              location of the metadata store
TIDELOG_OBJECTS               location of the segments; needed only to reset offsets by time
TIDELOG_CONFIG_<NAME>         a node setting, with the nodes' value: defaults of new topics
TIDELOG_ADMIN_AUTHORIZATION   ``iam`` (default): requests need an identity; ``none``: they do not
TIDELOG_ADMIN_JOBS_FUNCTION   the function that runs jobs (``admin_jobs.handler``); without it: none

With ``authorizer.class.name`` among the node settings ACLs decide what callers may do.
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
from tidelog_functions.admin_jobs.job_starter import LambdaStarter
from tidelog_functions.invocation import Context, seconds_for_answer


@dataclass(frozen=True, slots=True)
class _Warm:
    """State that an execution environment keeps between invocations."""

    runner: asyncio.Runner
    api: AdminApi


def handle(event: object, context: Context) -> dict[str, Any]:
    """Return the answer to a request. Raises ``InvalidConfig`` for a wrong environment."""
    warm = _warm()
    seconds_max = seconds_for_answer(context)
    return warm.runner.run(warm.api.handle(event, seconds_max=seconds_max))


@cache
def _warm() -> _Warm:
    # Connections belong to the event loop that made them, so the loop is kept too.
    settings = parse_admin_settings(os.environ)
    cluster = AdminCluster.open(settings.function)
    if settings.jobs_function:
        cluster.jobs = LambdaStarter(settings.jobs_function)
    api = AdminApi(cluster, load_contract(), requires_identity=settings.requires_identity)
    return _Warm(asyncio.Runner(), api)

"""The Lambda function of the schema registry, below ``/schema-registry`` of the admin API.

TIDELOG_METADATA              location of the metadata store
TIDELOG_OBJECTS               location of the bucket, which has the registry's journal
TIDELOG_CONFIG_<NAME>         a node setting: ``authorizer.class.name``, ``super.users``
TIDELOG_ADMIN_AUTHORIZATION   as for the admin API's function

With ``authorizer.class.name`` among the node settings ACLs decide what callers may do.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

from tidelog_functions.admin.cluster import AdminCluster, parse_admin_settings
from tidelog_functions.invocation import Context, seconds_for_answer
from tidelog_functions.schemas.serving import SchemasFunction


@dataclass(frozen=True, slots=True)
class _Warm:
    """State that an execution environment keeps between invocations."""

    runner: asyncio.Runner
    function: SchemasFunction


def handle(event: object, context: Context) -> dict[str, Any]:
    """Return the answer to a request. Raises ``InvalidConfig`` for a wrong environment."""
    warm = _warm()
    seconds_max = seconds_for_answer(context)
    return warm.runner.run(warm.function.handle(event, seconds_max=seconds_max))


@cache
def _warm() -> _Warm:
    # Connections belong to the event loop that made them, so the loop is kept too.
    settings = parse_admin_settings(os.environ)
    cluster = AdminCluster.open(settings.function)
    function = SchemasFunction(cluster, requires_identity=settings.requires_identity)
    return _Warm(asyncio.Runner(), function)

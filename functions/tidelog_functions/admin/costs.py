"""What the cluster costs: the ledger's counts by item and by topic, and budgets."""

from __future__ import annotations

from tidelog_core.cost.document import cost_document
from tidelog_core.cost.report import Period
from tidelog_core.errors import InvalidConfig
from tidelog_core.security.acl import ResourceType

from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.contract import Call
from tidelog_functions.admin.http import HttpAnswer
from tidelog_functions.admin.problems import Misconfigured


async def describe_costs(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return the costs of the last hour, day or month, and budgets with their forecasts."""
    await cluster.view.refresh()  # Budgets may be set while nodes run.
    try:
        prices = cluster.costs.prices()
    except InvalidConfig as error:
        raise Misconfigured(str(error)) from error
    document = cost_document(
        await cluster.costs.overview(),
        prices,
        Period(call.parameters["last"]),
        topics_max=call.parameters["topics"],
        is_on_aws=cluster.is_on_aws,
        sees_topic=lambda name: call.caller.sees(ResourceType.TOPIC, name),
    )
    return HttpAnswer(document)

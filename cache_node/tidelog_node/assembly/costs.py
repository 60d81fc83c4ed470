"""Builds the part of a node that records its costs."""

from __future__ import annotations

from contextlib import AsyncExitStack

from tidelog_core.clock import steady_clock_ms
from tidelog_core.cost.prices import load_prices
from tidelog_core.metadata.stores.usage import usage_of

from tidelog_node.assembly.cluster import Cluster
from tidelog_node.costs.collector import CostCollector
from tidelog_node.costs.recorder import CostRecorder
from tidelog_node.tier.service import TierService


def build_costs(stack: AsyncExitStack, cluster: Cluster, tier: TierService) -> CostRecorder | None:
    """Return the recorder, which must run; ``None`` if the node keeps no ledger.

    Raises ``InvalidConfig`` for a wrong price file.
    """
    node = cluster.node
    if not node.static_config.cost_ledger_enable:
        return None
    prices = load_prices(node.static_config.cost_price_file)
    usages = [usage for store in cluster.stores if (usage := usage_of(store)) is not None]
    collector = CostCollector(node, tier, usages=usages, clock_ms=steady_clock_ms)
    recorder = CostRecorder(node, collector, prices, clock_ms=steady_clock_ms)
    stack.push_async_callback(recorder.close)
    return recorder

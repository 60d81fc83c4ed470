"""Metrics of groups and transactions that this node coordinates."""

from __future__ import annotations

from collections import Counter

from tidelog_core.metadata.coordination.transactions import TransactionState
from tidelog_core.turns import Turn

from tidelog_node.coordinator.hosted_groups import HostedGroups
from tidelog_node.groups.any_group import Group
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.share.share_group import ShareGroup
from tidelog_node.monitoring.group_lag import GroupLag
from tidelog_node.monitoring.scrape import Scrape
from tidelog_node.node_context import NodeContext
from tidelog_node.transactions.hosted_transactions import HostedTransactions


class CoordinatorSource:
    """Reads the coordinators, and the last results of ``GroupLag``."""

    def __init__(
        self,
        node: NodeContext,
        *,
        groups: HostedGroups,
        lag: GroupLag,
        transactions: HostedTransactions,
    ) -> None:
        self._node = node
        self._groups = groups
        self._lag = lag
        self._transactions = transactions

    async def collect(self, scrape: Scrape) -> None:
        """Add the series."""
        await self._collect_groups(scrape)
        await self._collect_transactions(scrape)

    async def _collect_groups(self, scrape: Scrape) -> None:
        turn = Turn()
        counts, members = Counter[str](), Counter[str]()
        for group in self._groups.loaded():
            await turn.step()
            kind = _kind(group)
            counts[kind] += 1
            members[kind] += _member_count(group)
        for kind, count in counts.items():
            scrape.add("tidelog_kafka_consumer_groups", count, kind)
            scrape.add("tidelog_kafka_consumer_group_consumers", members[kind], kind)
        scrape.add("tidelog_kafka_consumer_groups_left_out", self._lag.left_out_count)
        for labels, lag in self._lag.lags.items():
            await turn.step()
            scrape.add("tidelog_kafka_consumer_group_lag", lag.records, *labels)
            scrape.add("tidelog_kafka_consumer_group_lag_max", lag.records_max, *labels)
            if lag.seconds is not None:
                scrape.add("tidelog_kafka_consumer_group_lag_seconds", lag.seconds, *labels)

    async def _collect_transactions(self, scrape: Scrape) -> None:
        turn, now_ms = Turn(), self._node.clock_ms()
        counts = Counter[TransactionState]()
        oldest_ms = 0
        for record in self._transactions.loaded():
            await turn.step()
            counts[record.state] += 1
            if record.state is TransactionState.ONGOING:
                oldest_ms = max(oldest_ms, now_ms - record.started_ms)
        open_count = counts[TransactionState.ONGOING]
        ending_count = sum(count for state, count in counts.items() if state.is_prepared)
        scrape.add("tidelog_kafka_transactional_ids", counts.total())
        scrape.add("tidelog_kafka_open_transactions", open_count)
        scrape.add("tidelog_kafka_ending_transactions", ending_count)
        scrape.add("tidelog_kafka_oldest_open_transaction_seconds", oldest_ms / 1000)


def _kind(group: Group) -> str:
    if isinstance(group, ShareGroup):
        return "share"
    return "consumer" if isinstance(group, ConsumerGroup) else "classic"


def _member_count(group: Group) -> int:
    return sum(1 for _ in (group.members if isinstance(group, ShareGroup) else group.roster))

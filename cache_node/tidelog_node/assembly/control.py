"""The handlers of the APIs outside the hot path that few clients use: made by their first requests.

Each method below imports a handler, in a thread, and returns what makes it: see ``late_routes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidelog_node.assembly.cluster import Cluster
from tidelog_node.assembly.coordination import Coordination
from tidelog_node.assembly.logs import Logs
from tidelog_node.authorization.access import Access
from tidelog_node.handlers.chain_store_check import ChainStoreCheck
from tidelog_node.late_routes import LateHandler, Load, Make
from tidelog_node.throttling.throttle import Throttle

Table = tuple[tuple[Load, tuple[tuple[int, int, int], ...]], ...]
"""Handlers, and API key, lowest and highest version of each of their routes."""


@dataclass(frozen=True, slots=True)
class ControlHandlers:
    """The parts of a node that the handlers use."""

    cluster: Cluster
    logs: Logs
    coordination: Coordination
    access: Access | None
    throttle: Throttle
    chain_store: ChainStoreCheck
    data_dir: Path

    def late(self) -> Iterator[LateHandler]:
        """Yield the handlers, none of them made."""
        for load, versions in self._alone():
            yield LateHandler(load, versions)
        for load, versions in self._of_coordinators():
            yield LateHandler(load, versions, prepare=self.coordination.get)

    def _alone(self) -> Table:
        return (
            (self._list_offsets, ((2, 1, 11),)),
            (self._find_coordinator, ((10, 0, 3), (10, 4, 6))),
            (self._sasl, ((17, 0, 1), (36, 0, 2))),
            (self._delete_records, ((21, 0, 2),)),
            (self._leader_epoch, ((23, 2, 4),)),
            (self._acls, ((29, 1, 3), (30, 1, 3), (31, 1, 3))),
            (self._configs, ((32, 1, 4), (33, 0, 2), (44, 0, 1), (74, 0, 1))),
            (self._alter_log_dirs, ((34, 1, 2),)),
            (self._log_dirs, ((35, 1, 5),)),
            (self._tokens, ((38, 1, 3), (39, 1, 2), (40, 1, 2), (41, 1, 3))),
            (self._elections, ((43, 0, 2),)),
            (self._reassignments, ((45, 0, 1), (46, 0, 0))),
            (self._quotas, ((48, 0, 1), (49, 0, 1), (20004, 0, 0))),
            (self._scram_users, ((50, 0, 0), (51, 0, 0))),
            (self._controllers, ((55, 0, 2), (57, 0, 0), (57, 1, 2))),
            (self._cluster, ((60, 0, 2),)),
            (self._producers, ((61, 0, 0),)),
            (self._roles, ((20002, 0, 0), (20003, 0, 0))),
        )

    def _of_coordinators(self) -> Table:
        return (
            (self._offset_commits, ((8, 2, 4), (8, 5, 9), (8, 10, 10), (28, 0, 5))),
            (self._offset_fetches, ((9, 1, 7), (9, 8, 9), (9, 10, 10))),
            (
                self._groups,
                (
                    (11, 0, 9),
                    (12, 0, 4),
                    (13, 0, 2),
                    (13, 3, 5),
                    (14, 0, 5),
                    (15, 0, 6),
                    (16, 0, 5),
                    (42, 0, 2),
                ),
            ),
            (self._offset_deletions, ((47, 0, 0),)),
            (self._consumer_groups, ((68, 0, 1), (69, 0, 1))),
            (self._share_groups, ((76, 1, 1), (77, 1, 1))),
            (self._producer_ids, ((22, 0, 6),)),
            (
                self._transactions,
                (
                    (24, 0, 3),
                    (24, 4, 5),
                    (25, 0, 4),
                    (26, 0, 5),
                    (27, 1, 1),
                ),
            ),
            (self._transaction_descriptions, ((65, 0, 0), (66, 0, 2))),
            (self._share_offsets, ((90, 0, 0), (91, 0, 0), (92, 0, 0))),
        )

    # -- topics and partitions --

    def _list_offsets(self) -> Make:
        from tidelog_node.handlers.list_offsets import ListOffsetsHandler

        return lambda: ListOffsetsHandler(
            self.cluster.node, replicas=self.logs.replicas, inspector=self.logs.inspector
        )

    def _delete_records(self) -> Make:
        from tidelog_node.handlers.delete_records import DeleteRecordsHandler

        return lambda: DeleteRecordsHandler(self.cluster.node, replicas=self.logs.replicas)

    def _leader_epoch(self) -> Make:
        from tidelog_node.handlers.leader_epoch import LeaderEpochHandler

        return lambda: LeaderEpochHandler(self.cluster.node, replicas=self.logs.replicas)

    def _producers(self) -> Make:
        from tidelog_node.handlers.producers import ProducersHandler

        return lambda: ProducersHandler(self.cluster.node, replicas=self.logs.replicas)

    def _elections(self) -> Make:
        from tidelog_node.handlers.elections import ElectionHandlers

        return lambda: ElectionHandlers(self.cluster.node)

    def _reassignments(self) -> Make:
        from tidelog_node.handlers.reassignments import ReassignmentHandlers

        return lambda: ReassignmentHandlers(self.cluster.node)

    # -- the node and the cluster --

    def _configs(self) -> Make:
        from tidelog_node.handlers.configs import ConfigHandlers

        return lambda: ConfigHandlers(self.cluster.node, chain_store=self.chain_store)

    def _alter_log_dirs(self) -> Make:
        from tidelog_node.handlers.alter_log_dirs import AlterLogDirsHandler

        return lambda: AlterLogDirsHandler(
            self.cluster.node, replicas=self.logs.replicas, data_dir=self.data_dir
        )

    def _log_dirs(self) -> Make:
        from tidelog_node.handlers.log_dirs import LogDirsHandler

        return lambda: LogDirsHandler(
            self.cluster.node, replicas=self.logs.replicas, data_dir=self.data_dir
        )

    def _cluster(self) -> Make:
        from tidelog_node.handlers.cluster import ClusterHandlers

        return lambda: ClusterHandlers(self.cluster.node)

    def _controllers(self) -> Make:
        from tidelog_node.handlers.controllers import ControllerHandlers

        return ControllerHandlers

    # -- who may do what --

    def _sasl(self) -> Make:
        from tidelog_node.handlers.sasl import SaslHandlers

        return SaslHandlers

    def _tokens(self) -> Make:
        from tidelog_node.assembly.logins import token_admin
        from tidelog_node.handlers.delegation_tokens import DelegationTokenHandlers

        return lambda: DelegationTokenHandlers(token_admin(self.cluster))

    def _acls(self) -> Make:
        from tidelog_node.handlers.acls import AclHandlers

        return lambda: AclHandlers(self.cluster.node)

    def _roles(self) -> Make:
        from tidelog_node.handlers.roles import RoleHandlers

        return lambda: RoleHandlers(self.cluster.node)

    def _scram_users(self) -> Make:
        from tidelog_node.handlers.scram_users import ScramUserHandlers

        return lambda: ScramUserHandlers(self.cluster.node)

    def _quotas(self) -> Make:
        from tidelog_node.handlers.client_quotas import QuotaHandlers

        return lambda: QuotaHandlers(self.cluster.node, throttle=self.throttle)

    # -- groups and transactions --

    def _find_coordinator(self) -> Make:
        from tidelog_node.handlers.find_coordinator import FindCoordinatorHandlers

        return lambda: FindCoordinatorHandlers(self.cluster.node)

    def _groups(self) -> Make:
        from tidelog_node.handlers.groups import GroupHandlers

        return lambda: GroupHandlers(coordinator=self.coordination.coordinators.groups)

    def _consumer_groups(self) -> Make:
        from tidelog_node.handlers.consumer_groups import ConsumerGroupHandlers

        return lambda: ConsumerGroupHandlers(
            coordinator=self.coordination.coordinators.groups, access=self.access
        )

    def _share_groups(self) -> Make:
        from tidelog_node.handlers.share_groups import ShareGroupHandlers

        return lambda: ShareGroupHandlers(coordinator=self.coordination.coordinators.groups)

    def _offset_commits(self) -> Make:
        from tidelog_node.handlers.offset_commits import OffsetCommitHandlers

        return lambda: OffsetCommitHandlers(
            self.cluster.node,
            coordinator=self.coordination.coordinators.groups,
            transactional=self.coordination.coordinators.offsets,
            verifier=self.coordination.coordinators.verifier,
        )

    def _offset_fetches(self) -> Make:
        from tidelog_node.handlers.offset_fetches import OffsetFetchHandlers

        return lambda: OffsetFetchHandlers(
            self.cluster.node,
            coordinator=self.coordination.coordinators.groups,
            transactional=self.coordination.coordinators.offsets,
        )

    def _offset_deletions(self) -> Make:
        from tidelog_node.handlers.offset_deletions import OffsetDeletionHandler

        return lambda: OffsetDeletionHandler(
            self.cluster.node, coordinator=self.coordination.coordinators.groups
        )

    def _share_offsets(self) -> Make:
        from tidelog_node.coordinator.share_offsets import ShareOffsets
        from tidelog_node.handlers.share_offsets import ShareOffsetHandlers

        node = self.cluster.node
        return lambda: ShareOffsetHandlers(
            node, offsets=ShareOffsets(node, coordinator=self.coordination.coordinators.groups)
        )

    def _producer_ids(self) -> Make:
        from tidelog_node.handlers.producer_ids import ProducerIdHandlers

        return lambda: ProducerIdHandlers(
            producer_ids=self.coordination.coordinators.producer_ids,
            coordinator=self.coordination.coordinators.transactions,
        )

    def _transactions(self) -> Make:
        from tidelog_node.handlers.transactions import TransactionHandlers

        return lambda: TransactionHandlers(
            self.cluster.node,
            coordinator=self.coordination.coordinators.transactions,
            writer=self.coordination.coordinators.writer,
        )

    def _transaction_descriptions(self) -> Make:
        from tidelog_node.handlers.transaction_descriptions import TransactionDescriptionHandlers

        return lambda: TransactionDescriptionHandlers(
            self.cluster.node, coordinator=self.coordination.coordinators.transactions
        )

"""The handlers of the APIs outside the hot path that few clients use: made by their first requests.

Each method below imports a handler, in a thread, and returns what makes it: see ``late_routes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.api_keys import ApiKey
from tidelog_core.quota_messages import DESCRIBE_QUOTA_USE_KEY
from tidelog_core.role_messages import ALTER_ROLES_KEY, DESCRIBE_ROLES_KEY

from tidelog_node.assembly.cluster import Cluster
from tidelog_node.assembly.coordination import Coordination
from tidelog_node.assembly.logs import Logs
from tidelog_node.authorization.access import Access
from tidelog_node.handlers.chain_store_check import ChainStoreCheck
from tidelog_node.requests.late_routes import LateHandler, Load, Make
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
            (self._list_offsets, ((ApiKey.LIST_OFFSETS, 1, 11),)),
            (
                self._find_coordinator,
                ((ApiKey.FIND_COORDINATOR, 0, 3), (ApiKey.FIND_COORDINATOR, 4, 6)),
            ),
            (self._sasl, ((ApiKey.SASL_HANDSHAKE, 0, 1), (ApiKey.SASL_AUTHENTICATE, 0, 2))),
            (self._delete_records, ((ApiKey.DELETE_RECORDS, 0, 2),)),
            (self._leader_epoch, ((ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4),)),
            (
                self._acls,
                (
                    (ApiKey.DESCRIBE_ACLS, 1, 3),
                    (ApiKey.CREATE_ACLS, 1, 3),
                    (ApiKey.DELETE_ACLS, 1, 3),
                ),
            ),
            (
                self._configs,
                (
                    (ApiKey.DESCRIBE_CONFIGS, 1, 4),
                    (ApiKey.ALTER_CONFIGS, 0, 2),
                    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1),
                    (ApiKey.LIST_CONFIG_RESOURCES, 0, 1),
                ),
            ),
            (self._alter_log_dirs, ((ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2),)),
            (self._log_dirs, ((ApiKey.DESCRIBE_LOG_DIRS, 1, 5),)),
            (
                self._tokens,
                (
                    (ApiKey.CREATE_DELEGATION_TOKEN, 1, 3),
                    (ApiKey.RENEW_DELEGATION_TOKEN, 1, 2),
                    (ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2),
                    (ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3),
                ),
            ),
            (self._elections, ((ApiKey.ELECT_LEADERS, 0, 2),)),
            (
                self._reassignments,
                (
                    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1),
                    (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0),
                ),
            ),
            (
                self._quotas,
                (
                    (ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1),
                    (ApiKey.ALTER_CLIENT_QUOTAS, 0, 1),
                    (DESCRIBE_QUOTA_USE_KEY, 0, 0),
                ),
            ),
            (
                self._scram_users,
                (
                    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0),
                    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0),
                ),
            ),
            (
                self._controllers,
                (
                    (ApiKey.DESCRIBE_QUORUM, 0, 2),
                    (ApiKey.UPDATE_FEATURES, 0, 0),
                    (ApiKey.UPDATE_FEATURES, 1, 2),
                ),
            ),
            (self._cluster, ((ApiKey.DESCRIBE_CLUSTER, 0, 2),)),
            (self._producers, ((ApiKey.DESCRIBE_PRODUCERS, 0, 0),)),
            (self._roles, ((DESCRIBE_ROLES_KEY, 0, 0), (ALTER_ROLES_KEY, 0, 0))),
        )

    def _of_coordinators(self) -> Table:
        return (
            (
                self._offset_commits,
                (
                    (ApiKey.OFFSET_COMMIT, 2, 4),
                    (ApiKey.OFFSET_COMMIT, 5, 9),
                    (ApiKey.OFFSET_COMMIT, 10, 10),
                    (ApiKey.TXN_OFFSET_COMMIT, 0, 5),
                ),
            ),
            (
                self._offset_fetches,
                (
                    (ApiKey.OFFSET_FETCH, 1, 7),
                    (ApiKey.OFFSET_FETCH, 8, 9),
                    (ApiKey.OFFSET_FETCH, 10, 10),
                ),
            ),
            (
                self._groups,
                (
                    (ApiKey.JOIN_GROUP, 0, 9),
                    (ApiKey.HEARTBEAT, 0, 4),
                    (ApiKey.LEAVE_GROUP, 0, 2),
                    (ApiKey.LEAVE_GROUP, 3, 5),
                    (ApiKey.SYNC_GROUP, 0, 5),
                    (ApiKey.DESCRIBE_GROUPS, 0, 6),
                    (ApiKey.LIST_GROUPS, 0, 5),
                    (ApiKey.DELETE_GROUPS, 0, 2),
                ),
            ),
            (self._offset_deletions, ((ApiKey.OFFSET_DELETE, 0, 0),)),
            (
                self._consumer_groups,
                ((ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1), (ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1)),
            ),
            (
                self._share_groups,
                ((ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1), (ApiKey.SHARE_GROUP_DESCRIBE, 1, 1)),
            ),
            (self._producer_ids, ((ApiKey.INIT_PRODUCER_ID, 0, 6),)),
            (
                self._transactions,
                (
                    (ApiKey.ADD_PARTITIONS_TO_TXN, 0, 3),
                    (ApiKey.ADD_PARTITIONS_TO_TXN, 4, 5),
                    (ApiKey.ADD_OFFSETS_TO_TXN, 0, 4),
                    (ApiKey.END_TXN, 0, 5),
                    (ApiKey.WRITE_TXN_MARKERS, 1, 1),
                ),
            ),
            (
                self._transaction_descriptions,
                ((ApiKey.DESCRIBE_TRANSACTIONS, 0, 0), (ApiKey.LIST_TRANSACTIONS, 0, 2)),
            ),
            (
                self._share_offsets,
                (
                    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 0),
                    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0),
                    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0),
                ),
            ),
        )

    # -- topics and partitions --

    def _list_offsets(self) -> Make:
        from tidelog_node.handlers.fetch.list_offsets import ListOffsetsHandler

        return lambda: ListOffsetsHandler(
            self.cluster.node, replicas=self.logs.replicas, inspector=self.logs.inspector
        )

    def _delete_records(self) -> Make:
        from tidelog_node.handlers.admin.delete_records import DeleteRecordsHandler

        return lambda: DeleteRecordsHandler(self.cluster.node, replicas=self.logs.replicas)

    def _leader_epoch(self) -> Make:
        from tidelog_node.handlers.fetch.leader_epoch import LeaderEpochHandler

        return lambda: LeaderEpochHandler(self.cluster.node, replicas=self.logs.replicas)

    def _producers(self) -> Make:
        from tidelog_node.handlers.transactions.producers import ProducersHandler

        return lambda: ProducersHandler(self.cluster.node, replicas=self.logs.replicas)

    def _elections(self) -> Make:
        from tidelog_node.handlers.admin.elections import ElectionHandlers

        return lambda: ElectionHandlers(self.cluster.node)

    def _reassignments(self) -> Make:
        from tidelog_node.handlers.admin.reassignments import ReassignmentHandlers

        return lambda: ReassignmentHandlers(self.cluster.node)

    # -- the node and the cluster --

    def _configs(self) -> Make:
        from tidelog_node.handlers.admin.configs import ConfigHandlers

        return lambda: ConfigHandlers(self.cluster.node, chain_store=self.chain_store)

    def _alter_log_dirs(self) -> Make:
        from tidelog_node.handlers.admin.alter_log_dirs import AlterLogDirsHandler

        return lambda: AlterLogDirsHandler(
            self.cluster.node, replicas=self.logs.replicas, data_dir=self.data_dir
        )

    def _log_dirs(self) -> Make:
        from tidelog_node.handlers.admin.log_dirs import LogDirsHandler

        return lambda: LogDirsHandler(
            self.cluster.node, replicas=self.logs.replicas, data_dir=self.data_dir
        )

    def _cluster(self) -> Make:
        from tidelog_node.handlers.cluster.describe_cluster import ClusterHandlers

        return lambda: ClusterHandlers(self.cluster.node)

    def _controllers(self) -> Make:
        from tidelog_node.handlers.cluster.controllers import ControllerHandlers

        return ControllerHandlers

    # -- who may do what --

    def _sasl(self) -> Make:
        from tidelog_node.handlers.security.sasl import SaslHandlers

        return SaslHandlers

    def _tokens(self) -> Make:
        from tidelog_node.assembly.logins import token_admin
        from tidelog_node.handlers.security.delegation_tokens import DelegationTokenHandlers

        return lambda: DelegationTokenHandlers(token_admin(self.cluster))

    def _acls(self) -> Make:
        from tidelog_node.handlers.security.acls import AclHandlers

        return lambda: AclHandlers(self.cluster.node)

    def _roles(self) -> Make:
        from tidelog_node.handlers.security.roles import RoleHandlers

        return lambda: RoleHandlers(self.cluster.node)

    def _scram_users(self) -> Make:
        from tidelog_node.handlers.security.scram_users import ScramUserHandlers

        return lambda: ScramUserHandlers(self.cluster.node)

    def _quotas(self) -> Make:
        from tidelog_node.handlers.admin.client_quotas import QuotaHandlers

        return lambda: QuotaHandlers(self.cluster.node, throttle=self.throttle)

    # -- groups and transactions --

    def _find_coordinator(self) -> Make:
        from tidelog_node.handlers.cluster.find_coordinator import FindCoordinatorHandlers

        return lambda: FindCoordinatorHandlers(self.cluster.node)

    def _groups(self) -> Make:
        from tidelog_node.handlers.groups.classic_groups import GroupHandlers

        return lambda: GroupHandlers(coordinator=self.coordination.coordinators.groups)

    def _consumer_groups(self) -> Make:
        from tidelog_node.handlers.groups.consumer_groups import ConsumerGroupHandlers

        return lambda: ConsumerGroupHandlers(
            coordinator=self.coordination.coordinators.groups, access=self.access
        )

    def _share_groups(self) -> Make:
        from tidelog_node.handlers.share.groups import ShareGroupHandlers

        return lambda: ShareGroupHandlers(coordinator=self.coordination.coordinators.groups)

    def _offset_commits(self) -> Make:
        from tidelog_node.handlers.groups.offset_commits import OffsetCommitHandlers

        return lambda: OffsetCommitHandlers(
            self.cluster.node,
            coordinator=self.coordination.coordinators.groups,
            transactional=self.coordination.coordinators.offsets,
            verifier=self.coordination.coordinators.verifier,
        )

    def _offset_fetches(self) -> Make:
        from tidelog_node.handlers.groups.offset_fetches import OffsetFetchHandlers

        return lambda: OffsetFetchHandlers(
            self.cluster.node,
            coordinator=self.coordination.coordinators.groups,
            transactional=self.coordination.coordinators.offsets,
        )

    def _offset_deletions(self) -> Make:
        from tidelog_node.handlers.groups.offset_deletions import OffsetDeletionHandler

        return lambda: OffsetDeletionHandler(
            self.cluster.node, coordinator=self.coordination.coordinators.groups
        )

    def _share_offsets(self) -> Make:
        from tidelog_node.coordinator.share_offsets import ShareOffsets
        from tidelog_node.handlers.share.offsets import ShareOffsetHandlers

        node = self.cluster.node
        return lambda: ShareOffsetHandlers(
            node, offsets=ShareOffsets(node, coordinator=self.coordination.coordinators.groups)
        )

    def _producer_ids(self) -> Make:
        from tidelog_node.handlers.transactions.producer_ids import ProducerIdHandlers

        return lambda: ProducerIdHandlers(
            producer_ids=self.coordination.coordinators.producer_ids,
            coordinator=self.coordination.coordinators.transactions,
        )

    def _transactions(self) -> Make:
        from tidelog_node.handlers.transactions.handler import TransactionHandlers

        return lambda: TransactionHandlers(
            self.cluster.node,
            coordinator=self.coordination.coordinators.transactions,
            writer=self.coordination.coordinators.writer,
        )

    def _transaction_descriptions(self) -> Make:
        from tidelog_node.handlers.transactions.descriptions import TransactionDescriptionHandlers

        return lambda: TransactionDescriptionHandlers(
            self.cluster.node, coordinator=self.coordination.coordinators.transactions
        )

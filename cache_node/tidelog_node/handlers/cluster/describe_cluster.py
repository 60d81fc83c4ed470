"""DescribeCluster: the brokers and their endpoints. Source: KIP-700, KIP-919, KIP-1073."""

from __future__ import annotations

from kio.schema.describe_cluster.v2 import request as cluster_request
from kio.schema.describe_cluster.v2 import response as cluster_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode
from tidelog_core.security.operations import ON_CLUSTER, OPERATIONS_NOT_REQUESTED

from tidelog_node.handlers.cluster.metadata import controller_id
from tidelog_node.handlers.cluster.reachable_brokers import ReachableBrokers
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build

BROKERS, CONTROLLERS = 1, 2


class ClusterHandlers:
    """Serves DescribeCluster."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._reachable_brokers = ReachableBrokers(node.membership)

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [Route(ApiKey.DESCRIBE_CLUSTER, 0, 2, self.describe_cluster)]

    async def describe_cluster(
        self, request: cluster_request.DescribeClusterRequest, context: RequestContext
    ) -> cluster_response.DescribeClusterResponse:
        """Answer DescribeCluster."""
        if request.endpoint_type != BROKERS:
            is_known = request.endpoint_type == CONTROLLERS
            return build(
                cluster_response.DescribeClusterResponse,
                error_code=ErrorCode.mismatched_endpoint_type
                if is_known
                else ErrorCode.unsupported_endpoint_type,
                error_message="The request was sent to an endpoint of type BROKER, but we wanted"
                " an endpoint of type CONTROLLER"
                if is_known
                else f"Unsupported endpoint type {request.endpoint_type}",
            )
        image, listener = self._node.view.image, context.session.listener
        brokers = self._reachable_brokers(image, listener)
        requested = request.include_cluster_authorized_operations
        return build(
            cluster_response.DescribeClusterResponse,
            error_code=ErrorCode.none,
            cluster_id=image.cluster_id,
            controller_id=controller_id(brokers, self._node.broker_id),
            brokers=tuple(
                build(
                    cluster_response.DescribeClusterBroker,
                    broker_id=broker.broker_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                )
                for broker in brokers.values()
                if (endpoint := broker.endpoint_of(listener)) is not None
            ),
            cluster_authorized_operations=ON_CLUSTER if requested else OPERATIONS_NOT_REQUESTED,
        )

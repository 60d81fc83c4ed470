"""DescribeQuorum and UpdateFeatures: requests that Kafka's controllers answer.

This cluster has no controllers. Their log, ``__cluster_metadata``, is a partition that it does not
host. Its one feature has one level: an update to that level succeeds, any other is refused.
Source: KIP-595, KIP-584, KIP-778; ``FeatureControlManager`` of Kafka, with its codes, and its
messages where they are true here.
"""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.describe_quorum.v2 import request as quorum_request
from kio.schema.describe_quorum.v2 import response as quorum_response
from kio.schema.update_features.v0 import request as features_request_v0
from kio.schema.update_features.v1 import response as features_response
from kio.schema.update_features.v2 import request as features_request
from tidelog_core.admin.topics.topic_plans import CLUSTER_METADATA_TOPIC
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, UnknownTopicOrPartition

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.cluster.api_versions import (
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_LEVEL,
)
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build

CONTROLLERS_QUORUM = (CLUSTER_METADATA_TOPIC, 0)
UPGRADE = 1
UPGRADE_TYPES = (UPGRADE, 2, 3)  # the others are safe and unsafe downgrades
_NO_ERROR = "NONE"  # Kafka's message for a feature without an error


class ControllerHandlers:
    """Serves the requests for controllers."""

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(ApiKey.DESCRIBE_QUORUM, 0, 2, self.describe_quorum),
            Route(ApiKey.UPDATE_FEATURES, 0, 0, self.update_features_v0),
            Route(ApiKey.UPDATE_FEATURES, 1, 2, self.update_features),
        ]

    async def describe_quorum(
        self, request: quorum_request.DescribeQuorumRequest, _: RequestContext
    ) -> quorum_response.DescribeQuorumResponse:
        """Answer that no partition of the request has a quorum.

        A request for the controllers' partition gets an error on which no client retries.
        """
        asked = [(t.topic_name, p.partition_index) for t in request.topics for p in t.partitions]
        if asked == [CONTROLLERS_QUORUM]:
            return build(
                quorum_response.DescribeQuorumResponse,
                error_code=ErrorCode.unsupported_version,
                error_message="This cluster has no controllers, and so no quorum of them.",
            )
        unknown = UnknownTopicOrPartition("This server does not host this topic-partition.")
        turn = RequestTurn()
        topics = []
        async for topic in turn.each(request.topics):
            partitions = [
                build(
                    quorum_response.PartitionData,
                    partition_index=partition.partition_index,
                    error_code=unknown.code,
                    error_message=str(unknown),
                )
                async for partition in turn.each(topic.partitions)
            ]
            topics.append(
                build(
                    quorum_response.TopicData,
                    topic_name=topic.topic_name,
                    partitions=tuple(partitions),
                )
            )
        return build(
            quorum_response.DescribeQuorumResponse,
            error_code=ErrorCode.none,
            error_message="",
            topics=tuple(topics),
        )

    async def update_features_v0(
        self, request: features_request_v0.UpdateFeaturesRequest, _: RequestContext
    ) -> features_response.UpdateFeaturesResponse:
        """Answer version 0, whose permission to downgrade Kafka now ignores."""
        levels = [
            (each.feature, each.max_version_level, UPGRADE) for each in request.feature_updates
        ]
        return _updated(levels)

    async def update_features(
        self, request: features_request.UpdateFeaturesRequest, _: RequestContext
    ) -> features_response.UpdateFeaturesResponse:
        """Answer UpdateFeatures; nothing is changed, so validation alone is the same."""
        levels = [
            (each.feature, each.max_version_level, each.upgrade_type)
            for each in request.feature_updates
        ]
        return _updated(levels)


def _updated(levels: Sequence[tuple[str, int, int]]) -> features_response.UpdateFeaturesResponse:
    for feature, level, kind in levels:
        problem = _problem(feature, level, kind)
        if problem is not None:
            return build(
                features_response.UpdateFeaturesResponse,
                error_code=ErrorCode.invalid_update_version,
                error_message="The update failed for all features since the following feature had"
                f" an error: Invalid update version {level} for feature {feature}. {problem}",
            )
    results = (
        build(
            features_response.UpdatableFeatureResult,
            feature=feature,
            error_code=ErrorCode.none,
            error_message=_NO_ERROR,
        )
        for feature, _, _ in levels
    )
    return build(
        features_response.UpdateFeaturesResponse,
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(results),
    )


def _problem(feature: str, level: int, kind: int) -> str | None:
    """Return why the feature cannot have the level, ``None`` if it has it already."""
    if kind not in UPGRADE_TYPES:
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if feature != TRANSACTION_VERSION:
        return "This cluster does not support this feature."
    if level == TRANSACTION_VERSION_LEVEL:
        return None
    if level < TRANSACTION_VERSION_LEVEL and kind == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to"
            " either safe or unsafe downgrade."
        )
    return f"This cluster only supports version {TRANSACTION_VERSION_LEVEL}"

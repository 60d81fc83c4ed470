"""Creates the topics that a Metadata request names and the cluster lacks.

``auto.create.topics.enable`` allows it, the request may forbid it, and the client needs the right
to create the topic. Source: ``KafkaApis.handleTopicMetadataRequest``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidelog_core.errors import (
    ErrorCode,
    OutcomeUnknown,
    StoreUnavailable,
    TopicAlreadyExists,
    VersionConflict,
)
from tidelog_core.security.acl import AclOperation, ResourceType

from tidelog_node.authorization.access import Access
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.administration import topic_admin
from tidelog_node.handlers.chain_store_check import ChainStoreCheck
from tidelog_node.handlers.cluster.shown_topics import unknown_name_error
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext
from tidelog_node.throttling.throttle import Throttle

logger = logging.getLogger(__name__)


class TopicAutoCreation:
    """Creates missing topics for clients. For the tasks of one event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        throttle: Throttle,
        access: Access | None,
        chain_store: ChainStoreCheck,
    ) -> None:
        """Without ``access`` every client may create topics."""
        self._node = node
        self._throttle = throttle
        self._access = access
        self._chain_store = chain_store
        self._admin = topic_admin(node)

    async def create(
        self,
        names: Sequence[str],
        context: RequestContext,
        turn: RequestTurn,
        *,
        is_allowed: bool,
    ) -> dict[str, ErrorCode]:
        """Create the topics that may be created.

        Return a code for each of the names: it counts if the image does not have the topic
        afterwards. ``is_allowed``: by the request.
        """
        may_create = is_allowed and self._node.config().auto_create_topics_enable
        errors: dict[str, ErrorCode] = {}
        wanted: list[str] = []
        async for name in turn.each(names):
            errors[name] = unknown_name_error(name)
            if self._node.view.image.is_unreadable(name):
                errors[name] = ErrorCode.leader_not_available  # It exists: the client retries.
            elif may_create and errors[name] is not ErrorCode.invalid_topic_exception:
                if self._has_right(context, name):
                    wanted.append(name)
                else:
                    errors[name] = ErrorCode.topic_authorization_failed
        if wanted and self._node.config().log_diskless_enable:
            refusal = await self._chain_store.refusal()
            if refusal is not None:  # They would be diskless, and no node could lead them.
                errors |= dict.fromkeys(wanted, refusal.code)
                return errors
        quota = self._throttle.mutations(context, is_strict=False)
        partition_count = self._node.config().num_partitions
        quota.spend(dict.fromkeys(wanted, partition_count))
        failed = await self._admin.ensure_topics(wanted)
        quota.give_back(len(failed) * partition_count)
        self._throttle.mutated(context, quota)
        async for name, error in turn.each(failed.items()):
            match error:
                case (
                    StoreUnavailable()
                    | OutcomeUnknown()
                    | VersionConflict()
                    | TopicAlreadyExists()  # created by another node, then deleted
                ):
                    reason = str(error)
                    logger.warning("topic not created", extra={"topic": name, "reason": reason})
                    errors[name] = ErrorCode.leader_not_available
                case _:
                    errors[name] = error.code
        return errors

    def _has_right(self, context: RequestContext, topic: str) -> bool:
        access, session = self._access, context.session
        return (
            access is None
            or access.has_right_to_cluster(session, AclOperation.CREATE)
            or access.may(session, AclOperation.CREATE, ResourceType.TOPIC, topic)
        )

"""The reserved topics whose partitions are the shards of coordinators: made when one is needed."""

from __future__ import annotations

import logging

from tidelog_core.admin.topics.topic_admin import TopicAdmin
from tidelog_core.errors import CoordinatorNotAvailable, TidelogError

logger = logging.getLogger(__name__)


async def ensure_shards(admin: TopicAdmin, topic: str) -> None:
    """Create the topic whose partitions are shards. Raises ``CoordinatorNotAvailable``."""
    try:
        await admin.ensure_topic(topic)
    except TidelogError as error:
        # For any error the client can only wait and retry.
        logger.warning("coordination not set up", extra={"topic": topic, "reason": str(error)})
        raise CoordinatorNotAvailable(f"{topic}: {error}") from error

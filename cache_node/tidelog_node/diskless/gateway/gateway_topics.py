"""Decides which topics may have gateways: those whose leaders do not change producers' batches."""

from __future__ import annotations

from tidelog_core.log.append_checks import LOG_APPEND_TIME

from tidelog_node.replicas.replica import Replica


def may_pass(replica: Replica) -> bool:
    """Whether batches of the topic may go through a gateway: no leader changes their bytes.

    It would if the topic is compacted, has a codec of its own, or gets the time of the append.
    """
    return not replica.inspects_records and not _has_append_time(replica)


def _has_append_time(replica: Replica) -> bool:
    return replica.config.message_timestamp_type == LOG_APPEND_TIME

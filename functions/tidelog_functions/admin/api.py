"""Turns an event into an answer: authorization, routing, operation, errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from tidelog_core.errors import ErrorCode, OutcomeUnknown, TidelogError

from tidelog_functions.admin import (
    brokers,
    configs,
    costs,
    groups,
    jobs,
    reassignments,
    tier,
    topics,
)
from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.contract import Call, Contract
from tidelog_functions.admin.http import PROBLEM_TYPE, HttpAnswer, parse_event, to_event
from tidelog_functions.admin.problems import (
    Unauthorized,
    headers_of,
    problem,
    problem_of,
    status_of,
)
from tidelog_functions.admin.rights import require_rights

logger = logging.getLogger(__name__)

Operation = Callable[[AdminCluster, Call], Awaitable[HttpAnswer]]

GET_DOCUMENT = "get_document"
OPERATIONS: Mapping[str, Operation] = {
    operation.__name__: operation
    for operation in (
        brokers.drain_broker,
        brokers.list_brokers,
        configs.alter_broker_configs,
        configs.alter_every_broker_configs,
        configs.alter_group_configs,
        configs.alter_topic_configs,
        configs.describe_broker_configs,
        configs.describe_every_broker_configs,
        configs.describe_group_configs,
        configs.describe_topic_configs,
        costs.describe_costs,
        groups.delete_group,
        groups.describe_group,
        groups.list_groups,
        groups.reset_offsets,
        jobs.cancel_job,
        jobs.describe_job,
        jobs.describe_receipt,
        jobs.list_jobs,
        jobs.start_erasure,
        jobs.start_verification,
        reassignments.cancel_reassignment,
        reassignments.list_reassignments,
        reassignments.start_reassignment,
        tier.describe_tier,
        topics.create_partitions,
        topics.create_topic,
        topics.delete_topic,
        topics.describe_partition,
        topics.describe_topic,
        topics.list_partitions,
        topics.list_topics,
    )
}


class AdminApi:
    """Serves events, one at a time or concurrently on one event loop."""

    def __init__(
        self, cluster: AdminCluster, contract: Contract, *, requires_identity: bool
    ) -> None:
        self._cluster = cluster
        self._contract = contract
        self._requires_identity = requires_identity

    async def handle(self, event: object, *, seconds_max: float) -> dict[str, Any]:
        """Return API Gateway's answer to the event. Raises only on cancellation."""
        try:
            async with asyncio.timeout(seconds_max):
                return to_event(await self._answer(event))
        except TimeoutError:
            late = OutcomeUnknown(f"the request was not done within {seconds_max:g} seconds")
            return _refusal(late)
        except TidelogError as error:
            return _refusal(error)
        except Exception:
            logger.exception("request failed unexpectedly")
            detail = "The request failed unexpectedly; see the function's log for the cause."
            body = problem(500, ErrorCode.unknown_server_error, detail)
            return to_event(HttpAnswer(body, 500, PROBLEM_TYPE))

    async def _answer(self, event: object) -> HttpAnswer:
        request = parse_event(event)
        if self._requires_identity and request.identity is None:
            raise Unauthorized
        call = self._contract.read(request)
        caller = await self._cluster.caller(request.identity, request.host)
        require_rights(caller, call)
        call = replace(call, caller=caller)
        if call.operation == GET_DOCUMENT:
            return HttpAnswer(self._contract.document)
        return await OPERATIONS[call.operation](self._cluster, call)


def _refusal(error: TidelogError) -> dict[str, Any]:
    status = status_of(error)
    if status >= 500:
        logger.warning("request not served", extra={"status": status, "reason": str(error)})
    return to_event(HttpAnswer(problem_of(error), status, PROBLEM_TYPE, headers_of(error)))

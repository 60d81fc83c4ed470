"""Answers API Gateway's events with the registry of the nodes: the same code, items and journal."""

from __future__ import annotations

import asyncio
import base64
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tidelog_core.errors import StoreUnavailable, TidelogError
from tidelog_core.metadata.records import Cluster, cluster_key
from tidelog_core.schema_registry.api.audited_changes import Change
from tidelog_core.schema_registry.api.calls import Answer, Call, Right
from tidelog_core.schema_registry.api.registry_api import RegistryApi, interrupted
from tidelog_core.schema_registry.api.rights import NeededAcl, of_cluster, of_subject
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.registry import SchemaRegistry
from tidelog_core.schemas.refusals import STORE_ERROR, TIMEOUT_ERROR
from tidelog_core.software_version import tidelog_version

from tidelog_functions.admin.caller import Caller
from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.http import ANSWER_SIZE_BYTES_MAX, HttpRequest, parse_event
from tidelog_functions.admin.problems import HttpProblem

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS_MAX = 5.0
PREFIX = "/schema-registry"  # of the paths in the admin API
TOO_LONG = f"the answer has more than {ANSWER_SIZE_BYTES_MAX} bytes: ask for a part with limit"


class SchemasFunction:
    """The registry for events, one at a time or concurrently on one event loop."""

    def __init__(self, cluster: AdminCluster, *, requires_identity: bool) -> None:
        self._cluster = cluster
        self._requires_identity = requires_identity
        self._api: RegistryApi | None = None
        self._journal: RegistryJournal | None = None

    async def handle(self, event: object, *, seconds_max: float) -> dict[str, Any]:
        """Return API Gateway's answer to the event. Raises only on cancellation."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds_max
        answer = await self._handled(event, seconds_max)
        await self._settle(min(CHECKPOINT_SECONDS_MAX, ends_at - loop.time()))
        return answer

    async def _handled(self, event: object, seconds_max: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds_max):
                return _to_event(await self._answer(event))
        except TimeoutError:
            return _to_event(Answer.refused(TIMEOUT_ERROR, "Operation timed out: try again"))
        except HttpProblem as problem:
            return _to_event(Answer.refused(problem.status, str(problem)))
        except TidelogError as error:
            logger.warning("request not served", extra={"reason": str(error)})
            return _to_event(Answer.refused(STORE_ERROR, f"Error from the store: {error}"))
        except Exception:
            logger.exception("request failed unexpectedly")
            text = "Internal Server Error; the function's log has more"
            return _to_event(Answer.refused(500, text))

    async def _answer(self, event: object) -> Answer:
        request = parse_event(event)
        if self._requires_identity and request.identity is None:
            return Answer.refused(401, "Unauthorized")
        caller = await self._cluster.caller(request.identity, request.host)
        call, api = _call(request, caller), await self._registry()
        try:
            answer = await api.answer(call)
        except asyncio.CancelledError:  # It takes too long.
            _log(caller, interrupted(call))
            raise
        _log(caller, answer.change)
        return answer

    async def _settle(self, seconds_max: float) -> None:
        """Wait for a checkpoint that is under way: nothing runs once the answer is given.

        If it takes longer, it goes on with the next request, or a later one does what is left.
        """
        if self._journal is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds_max):
                    await self._journal.settled()

    async def _registry(self) -> RegistryApi:
        if self._api is None:
            store = self._cluster.store
            item = await store.get(cluster_key())
            if item is None:
                raise StoreUnavailable("there is no cluster yet: start a node first")
            cluster_id = Cluster.from_item(item).cluster_id
            journal = RegistryJournal(store, self._cluster.objects(), cluster_id)
            self._journal = journal
            self._api = RegistryApi(
                SchemaRegistry(store, committer=journal),
                cluster_id=cluster_id,
                version=tidelog_version(),
            )
        return self._api


def _call(request: HttpRequest, caller: Caller) -> Call:
    path = request.path
    if f"{path}/".startswith(f"{PREFIX}/"):
        path = path[len(PREFIX) :]
    return Call(
        method=request.method,
        path=quote(path or "/", safe="/"),  # The event has it decoded.
        query=request.query,
        body=request.body,
        content_type=request.content_type or "",
        accept=request.accept,
        permissions=CallerPermissions(caller),
    )


@dataclass(frozen=True, slots=True)
class CallerPermissions:
    """The rights of one caller, by the ACLs."""

    caller: Caller

    def may(self, right: Right, subject: str) -> bool:
        """Return whether the caller may do it to the subject; "": to everything."""
        needed = of_subject(right, subject)
        return self._has(right, subject) or not self.caller.deny(*needed)

    def sees(self, right: Right, subject: str) -> bool:
        """As ``may``, for entries of a list: those that are left out are not logged as denied."""
        return self.caller.is_dry_run or self._has(right, subject)

    def _has(self, right: Right, subject: str) -> bool:
        return self._is_allowed(of_cluster(right)) or self._is_allowed(of_subject(right, subject))

    def _is_allowed(self, needed: NeededAcl) -> bool:
        return not self.caller.protects(*needed) and self.caller.has_right(*needed)


def _log(caller: Caller, change: Change | None) -> None:
    """Log a change, for the function's log is its audit log."""
    if change is None:
        return
    extra = {
        "principal": caller.name,
        "host": caller.client.host,
        "operation": change.operation.value,
        "subject": change.subject,
        "change": dict(change.data),
        "error_code": change.error_code,
    }
    logger.info(
        "schema registry changed" if not change.error_code else "change refused", extra=extra
    )


def _to_event(answer: Answer) -> dict[str, Any]:
    """Return the answer in API Gateway's form."""
    if len(answer.body) > ANSWER_SIZE_BYTES_MAX:
        answer = Answer.refused(422, TOO_LONG)
    try:
        body, is_encoded = answer.body.decode(), False
    except UnicodeDecodeError:
        body, is_encoded = base64.b64encode(answer.body).decode(), True
    headers = {"content-type": answer.content_type, "x-content-type-options": "nosniff"}
    return {
        "statusCode": answer.status,
        "headers": headers,
        "body": body,
        "isBase64Encoded": is_encoded,
    }

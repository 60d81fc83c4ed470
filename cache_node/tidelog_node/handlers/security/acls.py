"""DescribeAcls, CreateAcls and DeleteAcls. Source: KIP-140, KIP-290; Kafka's ``AclApis``.

Without ``authorizer.class.name`` nobody would ask the ACLs, so nobody can see or change them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from itertools import groupby
from typing import Any, TypeVar

from kio.schema.create_acls.v3 import request as create_request
from kio.schema.create_acls.v3 import response as create_response
from kio.schema.delete_acls.v3 import request as delete_request
from kio.schema.delete_acls.v3 import response as delete_response
from kio.schema.describe_acls.v3 import request as describe_request
from kio.schema.describe_acls.v3 import response as describe_response
from tidelog_core.admin.security.acls import AclAdmin, find_acls
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import InvalidRequest, SecurityDisabled, StoreUnavailable, TidelogError
from tidelog_core.security.acl import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.administration import admin_outcome
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build

E = TypeVar("E", bound=IntEnum)
Deleted = list[tuple[Acl, TidelogError | None]] | TidelogError

_UNKNOWN = 0  # the number for a type that the sender does not know itself


class AclHandlers:
    """Shows and changes ACLs."""

    def __init__(self, node: NodeContext) -> None:
        self._view = node.view
        self._admin = AclAdmin(
            node.store, node.view, acls_max=lambda: node.config().authorizer_max_acls
        )
        self._has_acls = bool(node.static_config.authorizer_class_name)

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.DESCRIBE_ACLS, 1, 3, self.describe),
            Route(ApiKey.CREATE_ACLS, 1, 3, self.create),
            Route(ApiKey.DELETE_ACLS, 1, 3, self.delete),
        ]

    async def describe(
        self, request: describe_request.DescribeAclsRequest, _: RequestContext
    ) -> describe_response.DescribeAclsResponse:
        """Answer DescribeAcls."""
        if not self._has_acls:
            return admin_outcome(describe_response.DescribeAclsResponse, security_disabled())
        try:
            wanted = _filter(request)
        except InvalidRequest as error:
            # Newer clients may ask for types that came later: there are no ACLs of them here.
            is_malformed = _UNKNOWN in _numbers(request)
            return admin_outcome(
                describe_response.DescribeAclsResponse, error if is_malformed else None
            )
        try:
            image = await self._view.refresh()
        except StoreUnavailable:
            image = self._view.image
        found = await find_acls(image, wanted)
        resources = groupby(found, key=lambda acl: (acl.resource_type, acl.pattern_type, acl.name))
        turn = RequestTurn()
        return admin_outcome(
            describe_response.DescribeAclsResponse,
            None,
            resources=tuple(
                [
                    build(
                        describe_response.DescribeAclsResource,
                        resource_type=resource_type,
                        resource_name=name,
                        pattern_type=pattern_type,
                        acls=tuple(_description(acl) for acl in acls),
                    )
                    async for (resource_type, pattern_type, name), acls in turn.each(resources)
                ]
            ),
        )

    async def create(
        self, request: create_request.CreateAclsRequest, _: RequestContext
    ) -> create_response.CreateAclsResponse:
        """Answer CreateAcls once the ACLs are in the store and in this node's image."""
        turn = RequestTurn()
        given = [_acl_or_error(one) async for one in turn.each(request.creations)]
        errors: list[TidelogError | None]
        if self._has_acls:
            created = iter(await self._admin.create([one for one in given if type(one) is Acl]))
            errors = [one if isinstance(one, TidelogError) else next(created) for one in given]
        else:
            errors = [security_disabled()] * len(given)
        return build(
            create_response.CreateAclsResponse,
            results=tuple(
                [
                    admin_outcome(create_response.AclCreationResult, error)
                    async for error in turn.each(errors)
                ]
            ),
        )

    async def delete(
        self, request: delete_request.DeleteAclsRequest, _: RequestContext
    ) -> delete_response.DeleteAclsResponse:
        """Answer DeleteAcls once the ACLs are out of the store and of this node's image."""
        turn = RequestTurn()
        given = [_filter_or_error(one) async for one in turn.each(request.filters)]
        results: list[Deleted]
        if self._has_acls:
            filters = [one for one in given if type(one) is AclFilter]
            deleted = iter(await self._admin.delete(filters))
            results = [one if isinstance(one, TidelogError) else next(deleted) for one in given]
        else:
            results = [security_disabled()] * len(given)
        return build(
            delete_response.DeleteAclsResponse,
            filter_results=tuple(
                [await _filter_result(one, turn) async for one in turn.each(results)]
            ),
        )


def security_disabled() -> SecurityDisabled:
    """Return the error of requests about ACLs and roles while there is no authorizer."""
    return SecurityDisabled(
        "No Authorizer is configured: set authorizer.class.name of the nodes, so that ACLs count."
    )


def _description(acl: Acl) -> describe_response.AclDescription:
    return build(
        describe_response.AclDescription,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


async def _filter_result(
    deleted: Deleted, turn: RequestTurn
) -> delete_response.DeleteAclsFilterResult:
    if isinstance(deleted, TidelogError):
        return admin_outcome(delete_response.DeleteAclsFilterResult, deleted)
    return admin_outcome(
        delete_response.DeleteAclsFilterResult,
        None,
        matching_acls=tuple(
            [
                admin_outcome(
                    delete_response.DeleteAclsMatchingAcl,
                    error,
                    resource_type=acl.resource_type,
                    resource_name=acl.name,
                    pattern_type=acl.pattern_type,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
                async for acl, error in turn.each(deleted)
            ]
        ),
    )


# -- reading requests --


def _acl_or_error(one: create_request.AclCreation) -> Acl | InvalidRequest:
    try:
        return Acl(
            resource_type=_known(ResourceType, one.resource_type, "Invalid resourceType UNKNOWN"),
            pattern_type=_known(
                PatternType, one.resource_pattern_type, "Invalid patternType UNKNOWN"
            ),
            name=str(one.resource_name),
            principal=str(one.principal),
            host=str(one.host),
            operation=_known(AclOperation, one.operation, "Invalid operation UNKNOWN"),
            permission=_known(AclPermission, one.permission_type, "Invalid permissionType UNKNOWN"),
        )
    except InvalidRequest as error:
        return error.with_traceback(None)  # a traceback holds the request


def _filter_or_error(one: delete_request.DeleteAclsFilter) -> AclFilter | InvalidRequest:
    try:
        return _filter(one)
    except InvalidRequest as error:
        return error.with_traceback(None)


def _filter(
    one: describe_request.DescribeAclsRequest | delete_request.DeleteAclsFilter,
) -> AclFilter:
    """Return the filter. Raises ``InvalidRequest`` for numbers that have no meaning here."""
    pattern, entry = "Unknown patternFilter.", "Unknown entryFilter."
    return AclFilter(
        resource_type=_known(ResourceType, one.resource_type_filter, pattern),
        pattern_type=_known(PatternType, one.pattern_type_filter, pattern),
        name=one.resource_name_filter,
        principal=one.principal_filter,
        host=one.host_filter,
        operation=_known(AclOperation, one.operation, entry),
        permission=_known(AclPermission, one.permission_type, entry),
    )


def _numbers(request: describe_request.DescribeAclsRequest) -> Iterable[int]:
    return (
        request.resource_type_filter,
        request.pattern_type_filter,
        request.operation,
        request.permission_type,
    )


def _known(kind: type[E], number: Any, problem: str) -> E:
    for member in kind:
        if member == number:
            return member
    raise InvalidRequest(problem)  # A ``ValueError`` in its context would hold the request.

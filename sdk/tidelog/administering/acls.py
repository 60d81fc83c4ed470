"""Admin calls for ACLs. Source: KIP-140, KIP-290."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
from kio.schema.delete_acls.v3.request import DeleteAclsFilter, DeleteAclsRequest
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from tidelog_core.security.acl import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from tidelog_core.wire_messages import build

from tidelog.administering.calls import AdminCalls, failures_in, raise_failures
from tidelog.errors import MalformedResponse
from tidelog.given_values import instance, several
from tidelog.wire.requests import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS

EVERY_ACL = AclFilter()


class AclCalls(AdminCalls):
    """Admin calls for ACLs. Each raises ``SecurityDisabled`` if the nodes have no authorizer."""

    async def describe_acls(self, wanted: AclFilter = EVERY_ACL) -> list[Acl]:
        """Return the ACLs that the filter fits, in their order; all of them by default."""
        request = build(DescribeAclsRequest, **_filter_fields(wanted))

        response = await self._ask(DESCRIBE_ACLS, request, about="ACLs")
        return sorted(
            _acl(resource, entry) for resource in response.resources for entry in resource.acls
        )

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Create the ACLs; one that is there already stays. They count within the poll interval.

        Raises ``InvalidRequest`` for one that cannot be, ``SeveralFailed`` for several.
        """
        given = [instance(acl, Acl, "each ACL") for acl in several(acls, "ACLs")]
        wanted = {acl_text(acl): acl for acl in given}

        def request_for(left: list[str]) -> object:
            creations = tuple(_creation(wanted[text]) for text in left)
            return build(CreateAclsRequest, creations=creations)

        await self._ask_for_each(CREATE_ACLS, wanted, request_for, what="ACL")

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Delete the ACLs that any of the filters fits; return them, each once, in their order.

        After a request whose answer was lost, those that it deleted are not among them.
        """
        wanted = dict(enumerate(dict.fromkeys(several(filters, "filters")), 1))

        def request_for(left: list[int]) -> object:
            return build(
                DeleteAclsRequest,
                filters=tuple(
                    build(DeleteAclsFilter, **_filter_fields(wanted[number])) for number in left
                ),
            )

        results = await self._ask_for_each(DELETE_ACLS, wanted, request_for, what="filter")
        deleted = {
            _acl(one, one): one for result in results.values() for one in result.matching_acls
        }
        raise_failures(failures_in({acl_text(acl): one for acl, one in deleted.items()}, "ACL"))
        return sorted(deleted)


def acl_text(acl: Acl) -> str:
    """Return the ACL in one line: ALLOW READ on TOPIC a* to User:alice from any host."""
    ending = "*" if acl.pattern_type is PatternType.PREFIXED else ""
    host = "any host" if acl.host == "*" else acl.host
    return (
        f"{acl.permission.name} {acl.operation.name} on {acl.resource_type.name}"
        f" {acl.name}{ending} to {acl.principal} from {host}"
    )


def _creation(acl: Acl) -> object:
    return build(
        AclCreation,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        resource_pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _filter_fields(wanted: AclFilter) -> dict[str, object]:
    instance(wanted, AclFilter, "an ACL's filter")
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _acl(resource: Any, entry: Any) -> Acl:
    """Return the ACL. Raises ``MalformedResponse`` for types that came later."""
    try:
        return Acl(
            resource_type=ResourceType(resource.resource_type),
            pattern_type=PatternType(resource.pattern_type),
            name=resource.resource_name,
            principal=entry.principal,
            host=entry.host,
            operation=AclOperation(entry.operation),
            permission=AclPermission(entry.permission_type),
        )
    except ValueError as error:
        raise MalformedResponse(f"an ACL of the node: {error}") from error

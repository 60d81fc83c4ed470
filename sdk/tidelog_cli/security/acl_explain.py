"""``tidelog acl explain``: which ACL decides, by the same rules as in nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.clients import administer
from tidelog_cli.failures import UsageError
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap
from tidelog_cli.security.acl_options import (
    Cluster,
    Resources,
    parse_name,
    require_principal,
)

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog_core.security.acl import Acl, ResourceType
    from tidelog_core.security.authorization import Authorizer, Decision

_SUPER_USERS, _ALLOWS_WITHOUT_ACLS = "super.users", "allow.everyone.if.no.acl.found"

Name = str | None


def explain(
    *,
    principal: Annotated[
        list[str],
        typer.Option(
            metavar="KIND:NAME",
            help="The client's user; repeated for its groups, as Group:sales.",
        ),
    ],
    operation: Annotated[str, typer.Option(metavar="NAME", help="Such as Read or Write.")],
    topic: Annotated[Name, typer.Option(metavar="NAME", help="A topic.")] = None,
    group: Annotated[Name, typer.Option(metavar="NAME", help="A group.")] = None,
    transactional_id: Annotated[
        Name, typer.Option(metavar="NAME", help="A transactional id.")
    ] = None,
    cluster: Cluster = False,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="The client's address; by default one that no ACL names."
        ),
    ] = "*",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Say whether a client may do something with a resource, and which ACL decides that.

    The roles of the user and of the groups are looked up.
    The status is 0 if it may and 1 if it may not.
    """
    from tidelog_core.security.acl import AclOperation
    from tidelog_core.security.acl_set import AclSet
    from tidelog_core.security.authorization import Client

    for one in principal:
        require_principal("--principal", one)
    asked = parse_name(AclOperation, "--operation", operation)
    resources = Resources(
        [topic] if topic is not None else None,
        [group] if group is not None else None,
        [transactional_id] if transactional_id is not None else None,
        tokens=None,
        users=None,
        cluster=cluster,
    ).named()
    if len(resources) != 1:
        raise UsageError("name one resource: --topic, --group, --transactional-id or --cluster")
    ((resource_type, name),) = resources

    async def run(admin: Admin) -> tuple[Authorizer, list[Acl], tuple[str, ...]]:
        acls = await _acls_about(admin, resource_type, name)
        return await _authorizer(admin), acls, await _roles(admin, principal)

    authorizer, acls, roles = administer(bootstrap, run)
    client = Client((*principal, *roles), host)
    decision = authorizer.decide(AclSet.of(acls), client, asked, resource_type, name)
    print(f"{'allowed' if decision.is_allowed else 'denied'}: {_reason(decision, acls, roles)}")
    if not decision.is_allowed:
        raise typer.Exit(1)


async def _acls_about(admin: Admin, resource_type: ResourceType, name: str) -> list[Acl]:
    from tidelog_core.security.acl import AclFilter, PatternType

    return await admin.describe_acls(AclFilter(resource_type, PatternType.MATCH, name))


async def _roles(admin: Admin, principals: list[str]) -> tuple[str, ...]:
    """Return the roles of the principals: none of Kafka's brokers, which have no roles."""
    from tidelog.errors import UnsupportedVersion
    from tidelog_core.security.roles import ROLE_KIND

    try:
        roles = await admin.describe_roles(members=principals)
    except UnsupportedVersion:
        return ()
    return tuple(f"{ROLE_KIND}:{name}" for name in roles)


async def _authorizer(admin: Admin) -> Authorizer:
    """Return the rules by the settings of one of the nodes."""
    from tidelog_core.security.authorization import Authorizer
    from tidelog_core.setting_values.authorizer import parse_super_users

    nodes = (await admin.describe_cluster()).nodes
    names = (_SUPER_USERS, _ALLOWS_WITHOUT_ACLS)
    configs = await admin.describe_configs("node", nodes[0].node_id, keys=names)
    values = {name: configs[name].value or "" for name in names if name in configs}
    return Authorizer(
        super_users=parse_super_users(values.get(_SUPER_USERS, "")),
        allows_without_acls=values.get(_ALLOWS_WITHOUT_ACLS) == "true",
    )


def _reason(decision: Decision, acls: list[Acl], roles: tuple[str, ...]) -> str:
    from tidelog.administering.acls import acl_text

    if decision.acl is not None:
        text = acl_text(decision.acl)
        return f"{text}, a role of the client" if decision.acl.principal in roles else text
    if decision.is_super_user:
        return f"a super user ({_SUPER_USERS})"
    if decision.is_allowed:
        return f"no ACL is about the resource, and {_ALLOWS_WITHOUT_ACLS} is set"
    if not acls:
        return "no ACL is about the resource"
    return "no ACL about the resource allows it to this client"

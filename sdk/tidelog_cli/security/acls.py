"""``tidelog acl`` commands: rules that say who may do what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.clients import administer
from tidelog_cli.failures import UsageError
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog_cli.output import counted, print_json, print_table
from tidelog_cli.security.acl_options import (
    ANY_PATTERN,
    LITERAL,
    Cluster,
    Groups,
    Operations,
    Pattern,
    Resources,
    Tokens,
    Topics,
    TransactionalIds,
    UserPrincipals,
    WantedPattern,
    parse_name,
    parse_operations,
    require_pattern,
    require_principal,
)

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog_core.security.acl import Acl, AclFilter

COLUMNS = ("resource", "name", "pattern", "principal", "host", "operation", "permission")

WantedPrincipals = Annotated[
    list[str] | None,
    typer.Option("--principal", metavar="KIND:NAME", help="Only ACLs of it; may be repeated."),
]
WantedOperations = Annotated[
    list[str] | None,
    typer.Option("--operation", metavar="NAME", help="Only ACLs of it; may be repeated."),
]


def _principals(option: str, what: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(
        option, metavar="KIND:NAME", help=f"{what}, such as User:alice, Group:sales or User:*."
    )
    return info


def _hosts(option: str, what: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(
        option, metavar="ADDRESS", help=f"{what}; any by default. May be repeated."
    )
    return info


AllowPrincipals = Annotated[list[str] | None, _principals("--allow-principal", "Who may do it")]
DenyPrincipals = Annotated[list[str] | None, _principals("--deny-principal", "Who may not do it")]
AllowHosts = Annotated[list[str] | None, _hosts("--allow-host", "The allowed client's address")]
DenyHosts = Annotated[list[str] | None, _hosts("--deny-host", "The denied client's address")]


def list_(
    *,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    delegation_token: Tokens = None,
    user_principal: UserPrincipals = None,
    cluster: Cluster = False,
    resource_pattern_type: WantedPattern = ANY_PATTERN,
    principal: WantedPrincipals = None,
    operation: WantedOperations = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the ACLs, by default all of them."""
    resources = Resources(topic, group, transactional_id, delegation_token, user_principal, cluster)
    filters = _filters(resources, resource_pattern_type, principal, operation)

    async def run(admin: Admin) -> list[Acl]:
        found = [acl for one in filters for acl in await admin.describe_acls(one)]
        return sorted(set(found))

    acls = administer(bootstrap, run)
    if json:
        print_json([dict(zip(COLUMNS, _row(acl), strict=True)) for acl in acls])
    else:
        print_table(COLUMNS, [_row(acl) for acl in acls])


def add(
    *,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    delegation_token: Tokens = None,
    user_principal: UserPrincipals = None,
    cluster: Cluster = False,
    resource_pattern_type: Pattern = LITERAL,
    operation: Operations = None,
    allow_principal: AllowPrincipals = None,
    deny_principal: DenyPrincipals = None,
    allow_host: AllowHosts = None,
    deny_host: DenyHosts = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Add ACLs: each operation, on each resource, for each principal and host.

    Without --operation they are for all operations. An ACL that is there already stays.
    """
    from tidelog.administering.acls import acl_text
    from tidelog_core.security.acl import (
        ANY_HOST,
        Acl,
        AclOperation,
        AclPermission,
        PatternType,
        ResourceType,
    )

    require_pattern(resource_pattern_type, is_filter=False)
    resources = Resources(
        topic, group, transactional_id, delegation_token, user_principal, cluster
    ).named()
    if not resources:
        raise UsageError("name a resource: --topic, --group, --transactional-id, --cluster, …")
    _require_users(allow_principal, allow_host, "allow")
    _require_users(deny_principal, deny_host, "deny")
    if not (allow_principal or deny_principal):
        raise UsageError("name who it is for: --allow-principal or --deny-principal")
    pattern_type = parse_name(PatternType, "--resource-pattern-type", resource_pattern_type)
    given = (
        (AclPermission.ALLOW, allow_principal, allow_host),
        (AclPermission.DENY, deny_principal, deny_host),
    )
    acls = [
        Acl(
            resource_type,
            PatternType.LITERAL if resource_type is ResourceType.CLUSTER else pattern_type,
            name,
            principal,
            host,
            one,
            permission,
        )
        for resource_type, name in resources
        for permission, principals, hosts in given
        for principal in principals or ()
        for host in hosts or (ANY_HOST,)
        for one in parse_operations(operation) or (AclOperation.ALL,)
    ]
    administer(bootstrap, lambda admin: admin.create_acls(acls))
    for acl in acls:
        print(f"added: {acl_text(acl)}")


def remove(
    *,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    delegation_token: Tokens = None,
    user_principal: UserPrincipals = None,
    cluster: Cluster = False,
    resource_pattern_type: WantedPattern = LITERAL,
    principal: WantedPrincipals = None,
    operation: WantedOperations = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove the ACLs that `tidelog acl list` shows with the same options, and print them.

    Name a resource or a principal: all ACLs at once are not removed.
    """
    from tidelog.administering.acls import acl_text

    resources = Resources(topic, group, transactional_id, delegation_token, user_principal, cluster)
    if not resources.named() and not principal:
        raise UsageError("name a resource or a --principal: all ACLs at once are not removed")
    if not resources.named() and resource_pattern_type == LITERAL:
        resource_pattern_type = ANY_PATTERN
    filters = _filters(resources, resource_pattern_type, principal, operation)
    removed = administer(bootstrap, lambda admin: admin.delete_acls(filters))
    for acl in removed:
        print(f"removed: {acl_text(acl)}")
    print(f"{counted(len(removed), 'ACL')} removed")


def _require_users(principals: list[str] | None, hosts: list[str] | None, option: str) -> None:
    for principal in principals or ():
        require_principal(f"--{option}-principal", principal)
    if hosts and not principals:
        raise UsageError(f"--{option}-host needs --{option}-principal")


def _filters(
    resources: Resources,
    pattern: str,
    principals: list[str] | None,
    operations: list[str] | None,
) -> list[AclFilter]:
    """Return a filter for each combination. Raises ``UsageError``."""
    from tidelog_core.security.acl import AclFilter, AclOperation, PatternType, ResourceType

    require_pattern(pattern, is_filter=True)
    for principal in principals or ():
        require_principal("--principal", principal)
    named: list[tuple[ResourceType, str | None]] = [*resources.named()]
    return [
        AclFilter(
            resource_type,
            PatternType[pattern.upper()],
            name,
            principal=principal,
            operation=operation,
        )
        for resource_type, name in named or [(ResourceType.ANY, None)]
        for principal in principals or (None,)
        for operation in parse_operations(operations) or (AclOperation.ANY,)
    ]


def _row(acl: Acl) -> tuple[str, ...]:
    return (
        acl.resource_type.name,
        acl.name,
        acl.pattern_type.name,
        acl.principal,
        acl.host,
        acl.operation.name,
        acl.permission.name,
    )

"""``tidelog role`` commands: named sets of users and groups, for ACLs of ``Role:NAME``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.clients import administer
from tidelog_cli.failures import CommandFailed
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog_cli.output import counted, print_json, print_table
from tidelog_cli.security.acl_options import require_principal

if TYPE_CHECKING:
    from tidelog.admin import Admin

Name = Annotated[str, typer.Argument(metavar="ROLE", help="The role's name, without `Role:`.")]
Members = Annotated[
    list[str],
    typer.Argument(metavar="KIND:NAME...", help="Users and groups: User:alice, Group:sales."),
]
FirstMembers = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KIND:NAME]...", help="Its members: User:alice, Group:sales."),
]
WantedMember = Annotated[
    str | None,
    typer.Option(metavar="KIND:NAME", help="Only roles that have this user or group."),
]


def list_(
    *,
    member: WantedMember = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the roles, by default all of them."""
    if member is not None:
        require_principal("--member", member)
    wanted = None if member is None else [member]
    roles = administer(bootstrap, lambda admin: admin.describe_roles(members=wanted))
    if json:
        print_json([_document(name, members) for name, members in roles.items()])
        return
    print_table(("role", "members"), [(name, str(len(of))) for name, of in roles.items()])


def show(name: Name, *, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show the members of ROLE."""
    members = administer(bootstrap, lambda admin: _members(admin, name))
    if json:
        print_json(_document(name, members))
    else:
        print_table(("member",), [(member,) for member in members])


def create(
    name: Name, members: FirstMembers = None, *, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Create ROLE. Give it rights with `tidelog acl add --allow-principal Role:ROLE`."""
    given = _checked(members or [])
    administer(bootstrap, lambda admin: admin.create_role(name, given))
    print(f"role {name} created with {counted(len(given), 'member')}")


def add(name: Name, members: Members, *, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Add members to ROLE. The change counts on all nodes a moment later."""
    given = _checked(members)
    administer(bootstrap, lambda admin: admin.change_role(name, added=given))
    for member in given:
        print(f"{member} has the role {name}")


def remove(name: Name, members: Members, *, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Remove members from ROLE. The change counts on all nodes a moment later."""
    given = _checked(members)
    administer(bootstrap, lambda admin: admin.change_role(name, removed=given))
    for member in given:
        print(f"{member} does not have the role {name}")


def delete(name: Name, *, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Delete ROLE. ACLs of Role:ROLE stay, and are for nobody."""
    administer(bootstrap, lambda admin: admin.delete_role(name))
    print(f"role {name} deleted")


async def _members(admin: Admin, name: str) -> tuple[str, ...]:
    """Return the role's members. Raises ``CommandFailed`` if it is not there."""
    roles = await admin.describe_roles([name])
    if name not in roles:
        raise CommandFailed(f"there is no role {name}: `tidelog role list` shows those that are")
    return roles[name]


def _checked(members: list[str]) -> list[str]:
    """Return the members, each once. Raises ``UsageError``."""
    for one in members:
        require_principal("the member", one)
    return list(dict.fromkeys(members))


def _document(name: str, members: tuple[str, ...]) -> dict[str, object]:
    return {"role": name, "members": list(members)}

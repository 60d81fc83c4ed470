"""``tidelog group`` commands for the settings of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog_cli.administration.topics import ConfigPairs, DeletedConfigs
from tidelog_cli.clients import administer
from tidelog_cli.failures import UsageError
from tidelog_cli.named_arguments import Groups
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_settings
from tidelog_cli.output import print_documents, print_table

if TYPE_CHECKING:
    from tidelog.admin import Admin


def configs(
    groups: Groups,
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the settings of groups, and which of them were set for the group.

    A group has settings even if it does not exist.
    """

    async def run(admin: Admin) -> list[dict[str, Any]]:
        return [await _described(admin, group) for group in groups]

    print_documents(administer(bootstrap, run), _show, is_json=json)


def alter(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")],
    *,
    config: ConfigPairs = None,
    delete_config: DeletedConfigs = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change the settings of GROUP, which need not exist yet."""
    changed, deleted = parse_settings("--config", config or ()), delete_config or []
    if not changed and not deleted:
        raise UsageError("nothing to change: give --config or --delete-config")

    async def run(admin: Admin) -> None:
        await admin.alter_configs("group", group, set=changed, delete=deleted)

    administer(bootstrap, run)
    print(f"group {group} altered")


async def _described(admin: Admin, group: str) -> dict[str, Any]:
    entries = sorted((await admin.describe_configs("group", group)).items())
    return {
        "group": group,
        "configs": {
            name: entry.value for name, entry in entries if entry.source == "dynamic_group"
        },
        "in_force": {name: entry.value for name, entry in entries},
    }


def _show(document: dict[str, Any]) -> None:
    print(f"group {document['group']}")
    rows = [
        (name, value, "this group" if name in document["configs"] else "all groups")
        for name, value in document["in_force"].items()
    ]
    print_table(("setting", "value", "set for"), rows)

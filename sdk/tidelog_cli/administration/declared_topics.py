"""``tidelog diff`` and ``tidelog apply``: topics as a file declares them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.administration.topic_plan import (
    DeclaredTopic,
    LiveTopic,
    TopicChange,
    plan,
    read_topics,
)
from tidelog_cli.clients import administer
from tidelog_cli.failures import FAILED, CommandFailed
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog_cli.output import counted, note, print_json

if TYPE_CHECKING:
    from tidelog.admin import Admin

File = Annotated[
    Path,
    typer.Option(
        "--file", "-f", metavar="FILE", exists=True, dir_okay=False,
        help="Topics in TOML or JSON: partitions, replication_factor and configs of each.",
    ),
]  # fmt: skip
Prune = Annotated[
    bool, typer.Option("--prune", help="Also delete topics that the file does not have.")
]


def diff(
    *,
    file: File,
    prune: Prune = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show how the cluster's topics differ from a file. Exit status 1 if they do.

    Topics that the file does not have are left alone, unless --prune is given. A topic's settings
    are all those of the file: others that are set are reset.
    """
    declared = read_topics(file)

    async def run(admin: Admin) -> tuple[list[TopicChange], list[str]]:
        return plan(declared, await _live(admin), prunes=prune)

    changes, problems = administer(bootstrap, run)
    _show(changes, problems, is_json=json)
    if changes or problems:
        raise typer.Exit(FAILED)
    if not json:
        print("no differences")


def apply(
    *,
    file: File,
    prune: Prune = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The same as 'tidelog diff'.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Create and change topics until they are as a file declares them; can be run again.

    Nothing is changed if the file has a problem. --prune deletes topics, without asking.
    """
    if dry_run:
        diff(file=file, prune=prune, bootstrap=bootstrap, json=json)
        return
    declared = read_topics(file)

    async def run(admin: Admin) -> list[TopicChange]:
        changes, problems = plan(declared, await _live(admin), prunes=prune)
        if problems:
            raise CommandFailed(f"nothing was changed: {'; '.join(problems)}")
        await _carry_out(admin, changes)
        return changes

    changes = administer(bootstrap, run)
    _show(changes, [], is_json=json)
    note(f"{counted(len(changes), 'topic')} changed" if changes else "nothing to change")


async def _live(admin: Admin) -> dict[str, LiveTopic]:
    """Return the cluster's topics, without internal ones."""
    names = [listed.name for listed in await admin.list_topics()]
    described = await admin.describe_topics(names)
    configs = await admin.describe_several_configs("topic", names)
    return {
        name: LiveTopic(
            name,
            len(described[name].partitions),
            min(len(partition.replicas) for partition in described[name].partitions),
            {n: e.value for n, e in entries.items() if e.source == "dynamic_topic"},
        )
        for name, entries in configs.items()
    }


async def _carry_out(admin: Admin, changes: list[TopicChange]) -> None:
    from tidelog.administering.results import NewTopic

    def new(topic: DeclaredTopic) -> NewTopic:
        counts = (topic.partitions or -1, topic.replication_factor or -1)
        return NewTopic(topic.name, *counts, dict(topic.configs))

    created = [new(change.create) for change in changes if change.create is not None]
    if created:
        await admin.create_topics(created, validate_only=True)  # All of them, or none.
        await admin.create_topics(created)
    for change in changes:
        if change.set_configs or change.reset_configs:
            await admin.alter_configs(
                "topic", change.name, set=change.set_configs, delete=change.reset_configs
            )
        if change.partitions is not None:
            await admin.create_partitions({change.name: change.partitions})
    if deleted := [change.name for change in changes if change.is_deleted]:
        await admin.delete_topics(deleted)


def _show(changes: list[TopicChange], problems: list[str], *, is_json: bool) -> None:
    if is_json:
        print_json(
            {
                "changes": [
                    {
                        "topic": change.name,
                        "change": _kind(change),
                        "partitions": change.partitions,
                        "set": dict(change.set_configs),
                        "reset": list(change.reset_configs),
                    }
                    for change in changes
                ],
                "problems": problems,
            }
        )
        return
    for change in changes:
        print("\n".join(change.lines))
    for problem in problems:
        note(problem)


def _kind(change: TopicChange) -> str:
    if change.create is not None:
        return "create"
    return "delete" if change.is_deleted else "alter"

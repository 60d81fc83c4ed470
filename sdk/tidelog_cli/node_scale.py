"""``tidelog node scale``: more or fewer nodes in a running ``tidelog up``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.clients import administer
from tidelog_cli.failures import CommandFailed
from tidelog_cli.nodes import all_partitions
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap

if TYPE_CHECKING:
    from tidelog.admin import Admin

DISKLESS = "diskless.enable"
NAMED_MAX = 5  # partitions in a message


def scale(
    nodes: Annotated[int, typer.Argument(min=1, max=64, metavar="NODES", help="How many to run.")],
    *,
    data_dir: Annotated[
        Path,
        typer.Option(
            file_okay=False,
            envvar="TIDELOG_DATA_DIR",
            help="Data directory of the `tidelog up` that runs on this machine.",
        ),
    ] = Path("tidelog-data"),
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also if partitions would be offline, that no other node has."
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Have a running `tidelog up` on this machine run NODES nodes.

    Nodes that are added lead their share of diskless topics some seconds later; nothing has to be
    reassigned. If there are to be fewer, those of the highest numbers hand over what they lead,
    and end. Their data stays, for when there are more again.
    """
    from tidelog_node.cluster_size import ask_for_nodes

    if not force:

        async def find(admin: Admin) -> list[str]:
            return await _only_on_leaving(admin, nodes)

        lost = administer(bootstrap, find)
        if lost:
            names = ", ".join(lost[:NAMED_MAX]) + (", …" if len(lost) > NAMED_MAX else "")
            raise CommandFailed(
                f"only nodes that would leave have {names}: reassign with `tidelog topic reassign`,"
                " or give --force and have these partitions offline until the nodes are back"
            )
    try:
        answer = ask_for_nodes(data_dir, nodes, _say)
    except OSError as error:
        raise CommandFailed(
            f"no cluster of `tidelog up` can be reached in {data_dir} ({error.strerror or error}):"
            " give its --data-dir"
        ) from None
    if "error" in answer:
        raise CommandFailed(str(answer["error"]))
    print("1 node runs" if nodes == 1 else f"{nodes} nodes run")


def _say(answer: dict[str, object]) -> None:
    print(f"node {answer['node']} {'has joined' if answer['is_running'] else 'has left'}")


async def _only_on_leaving(admin: Admin, count: int) -> list[str]:
    """Return the partitions that no node up to this number has, and that are not diskless."""
    lost = [
        name
        for name, partition in await all_partitions(admin)
        if partition.replicas and min(partition.replicas) > count
    ]
    diskless: dict[str, bool] = {}
    for topic in dict.fromkeys(name.topic for name in lost):
        configs = await admin.describe_configs("topic", topic, keys=[DISKLESS])
        diskless[topic] = configs[DISKLESS].value == "true"
    return [str(name) for name in lost if not diskless[name.topic]]

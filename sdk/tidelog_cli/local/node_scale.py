"""``tidelog node scale``: more or fewer nodes in a running ``tidelog up``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidelog_cli.failures import CommandFailed


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
) -> None:
    """Have a running `tidelog up` on this machine run NODES nodes.

    Nodes that are added lead their share of diskless topics some seconds later; nothing has to be
    reassigned. If there are to be fewer, those of the highest numbers hand over what they lead,
    and end. Their data stays, for when there are more again.
    """
    from tidelog_node.local_cluster.cluster_size import ask_for_nodes

    try:
        answer = ask_for_nodes(data_dir, nodes, _say, force=force)
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

"""``tidelog repair`` makes a node's damaged log usable again."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.options import Json
from tidelog_cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidelog_core.log.recovery.repair import RepairPlan

LOCK_FILE = "lock"
QUARANTINE_DIRECTORY = "quarantine"


def repair(
    *,
    partition: Annotated[
        str, typer.Option(metavar="TOPIC-N", help="The partition, named like its directory.")
    ],
    data_dir: Annotated[
        Path,
        typer.Option(
            exists=True,
            file_okay=False,
            help="The node's data directory. The node must be stopped.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report the damage; change nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Repair a log with damaged or missing segment files; keep all intact batches.

    Only for a partition without another in-sync replica: otherwise the node fetches the
    records itself. Reads every batch and checks its CRC. Intact batches keep their offsets;
    lost offsets become a gap that readers skip, and are never used again. Damaged files move
    to the directory quarantine beside the logs. The lost offsets are printed: they held
    acknowledged records. Exit status: 0 repaired or nothing to repair, 1 failed.
    """
    from tidelog_core.errors import StorageError
    from tidelog_core.log.recovery.repair import carry_out, plan_repair

    directory = _directory(data_dir, partition)
    with _held(directory.parent):
        try:
            plan = plan_repair(directory)
            _print_summary(plan, json=json)
            if plan.steps and not dry_run:
                carry_out(plan, directory.parent / QUARANTINE_DIRECTORY / directory.name)
        except (StorageError, OSError) as error:
            raise CommandFailed(f"{directory} cannot be repaired: {error}") from error
    if not plan.steps:
        note("nothing is wrong with the log")
    elif dry_run:
        note("nothing was changed; run it without --dry-run to do this")
    else:
        note("done; start the node")


def _directory(data_dir: Path, partition: str) -> Path:
    """Return the log's directory, also among several nodes of ``tidelog up``."""
    if "/" in partition or not partition.rpartition("-")[2].isdecimal():
        raise UsageError(f"{partition!r} is not a partition: give it as TOPIC-N, such as orders-0")
    found = [
        path for path in (data_dir, *sorted(data_dir.glob("node-*"))) if (path / partition).is_dir()
    ]
    if not found:
        raise UsageError(f"no log of {partition} in {data_dir}: check --data-dir and the partition")
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise UsageError(f"several nodes have a log of {partition}: give one of {names}")
    return found[0] / partition


@contextmanager
def _held(node_dir: Path) -> Iterator[None]:
    """Keep the node from starting while the block runs."""
    try:
        descriptor = os.open(node_dir / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UsageError(f"{node_dir} is not the data directory of a node") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandFailed(f"a node uses {node_dir}: stop it first") from None
        yield
    finally:
        os.close(descriptor)


def _print_summary(plan: RepairPlan, *, json: bool) -> None:
    if json:
        print_json(
            {
                "directory": str(plan.directory),
                "intact": [[one.start, one.end] for one in plan.intact],
                "lost": [[one.start, one.end] for one in plan.lost],
                "steps": [
                    {
                        "path": str(step.path),
                        "problem": step.problem,
                        "action": _action(step.stretches),
                    }
                    for step in plan.steps
                ],
            }
        )
        return
    rows = [
        (
            step.path.name,
            step.problem,
            _action(step.stretches),
            ", ".join(map(str, step.lost)) or "-",
        )
        for step in plan.steps
    ]
    if rows:
        print_table(("file", "problem", "action", "lost offsets"), rows)
    intact = sum(one.end - one.start for one in plan.intact)
    lost = sum(one.end - one.start for one in plan.lost)
    note(f"{intact} offsets are intact, {lost} are lost")


def _action(stretches: object) -> str:
    return "empty segment" if stretches is None else "keep whole batches"

"""``make chaos``: runs nodes, clients and faults for a given time, then the checker.

    python -m tools.chaos --seconds 60 --seed 7            one run
    python -m tools.chaos --seconds 60 --runs 20           seeds from a random one on
    python -m tools.chaos --seconds 600 --diskless         topics that the object store acknowledges
    python -m tools.chaos --convert --replication 3        topics that change between the two
    python -m tools.chaos --diskless --objects s3          with faults of the bucket, at S3's pace
    python -m tools.chaos --diskless --gateways --replication 3    clients in one node's zone
    python -m tools.chaos --check .cache/chaos/7           check a finished run again

A run leaves its history, report, logs and data in ``.cache/chaos/<seed>``: the nodes' logs
in ``logs``, the SDK clients' in ``clients.log``, librdkafka's in
``librdkafka-<client>.log``. A stalled run is stopped and reported. The exit status is 1 if a run
had an anomaly.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import contextlib
import os
import random
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil

from tests.chaos.checker import Rules
from tests.chaos.history import HISTORY, load
from tests.chaos.options import ChaosOptions
from tests.chaos.plan import FaultKind
from tests.chaos.report import summarize
from tests.chaos.run import check_all
from tests.chaos.supervised import run_supervised
from tests.support.started_processes import start_as_for_users
from tools import dynamodb_local, ministack
from tools.places import ROOT

DIRECTORY = ROOT / ".cache" / "chaos"
SEEDS = 1_000_000
NODE_CODE = ("core", "sdk", "cache_node", "functions")  # folders of what nodes import


def main() -> int:
    """Do the runs of the command line; return the exit status."""
    arguments = _parser().parse_args()
    start_as_for_users()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _abandon)
    if arguments.check is not None:
        is_always_diskless = arguments.diskless and not arguments.convert
        keeps_one = is_always_diskless or arguments.replication == 1
        return _check_again(arguments.check, is_acks_one_kept=keeps_one)
    _compile_bytecode()
    first = random.randrange(SEEDS) if arguments.seed is None else arguments.seed
    wrong = [seed for seed in range(first, first + arguments.runs) if not _run(arguments, seed)]
    if arguments.runs > 1:
        print(f"{arguments.runs} runs, seeds with anomalies: {wrong or 'none'}")
    return 1 if wrong else 0


def _compile_bytecode() -> None:
    """Compile what nodes import, so that they need not write any bytecode.

    A fault that keeps files from growing would cut a module's bytecode short. Python puts it in
    place all the same, and no later import of the module works.
    """
    for folder in NODE_CODE:
        compileall.compile_dir(ROOT / folder, quiet=1)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def _run(arguments: argparse.Namespace, seed: int) -> bool:
    """Do one run; return whether it had no anomalies."""
    directory = DIRECTORY / str(seed)
    if directory.exists():
        shutil.rmtree(directory)
    with ExitStack() as stack:
        url = s3_url = None
        if arguments.store == "dynamodb":
            url = stack.enter_context(dynamodb_local.serve())
        if arguments.objects == "s3":
            directory.mkdir(parents=True)
            s3_url = stack.enter_context(ministack.serve(directory))
        options = ChaosOptions(
            directory=directory,
            seed=seed,
            seconds=arguments.seconds,
            node_count=arguments.nodes,
            replication_factor=arguments.replication,
            is_diskless=arguments.diskless,
            is_converting=arguments.convert,
            has_gateways=arguments.gateways,
            kinds=tuple(arguments.faults) if arguments.faults else None,
            dynamodb_url=url,
            s3_url=s3_url,
            lease_s=arguments.lease_s,
            rate_per_s=arguments.rate,
            producer_count=arguments.producers,
            node_config=dict(pair.split("=", 1) for pair in arguments.set),
        )
        print(options.title, flush=True)
        result = asyncio.run(run_supervised(options))
    print(result.report, flush=True)
    if not result.anomalies and arguments.runs > 1:
        shutil.rmtree(directory)
    return not result.anomalies


def _abandon(number: int, _frame: object) -> None:
    """Kill the nodes and end at once: half a run has no result."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    os._exit(128 + number)


def _check_again(directory: Path, *, is_acks_one_kept: bool) -> int:
    history = load(directory / HISTORY)
    anomalies = check_all(history, Rules(is_acks_one_kept=is_acks_one_kept))
    print(summarize(history, anomalies, title=f"history of {directory}", recovered={}))
    return 1 if anomalies else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of faults (60)")
    parser.add_argument("--seed", type=int, help="repeats a run; random by default")
    parser.add_argument("--runs", type=int, default=1, help="with consecutive seeds (1)")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--replication", type=int, default=1, help="replication factor (1)")
    parser.add_argument("--diskless", action="store_true", help="make every topic diskless")
    parser.add_argument(
        "--convert", action="store_true", help="make topics diskless and replicated again"
    )
    parser.add_argument(
        "--gateways",
        action="store_true",
        help="clients write to diskless topics through one node, whoever leads",
    )
    parser.add_argument(
        "--objects",
        choices=("folder", "s3"),
        default="folder",
        help="S3 is an emulator behind a proxy with S3's latencies and faults (folder)",
    )
    parser.add_argument("--store", choices=("sqlite", "dynamodb"), default="sqlite")
    parser.add_argument("--faults", type=FaultKind, nargs="*", help="kinds; all by default")
    parser.add_argument("--lease-s", type=float, default=2.0, help="seconds of a node's lease (2)")
    parser.add_argument("--rate", type=float, default=60.0, help="records/s of a producer (60)")
    parser.add_argument(
        "--producers", type=int, default=3, help="of the SDK, besides one of librdkafka (3)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--check", type=Path, metavar="DIR", help="check a finished run again")
    return parser


if __name__ == "__main__":
    sys.exit(main())

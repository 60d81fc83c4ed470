"""``python -m tests.attack``: every attack on three live nodes, then a table.

    python -m tests.attack                 all, as they were seen
    python -m tests.attack --only 1 3      these
    python -m tests.attack --size 0.1      smaller

The exit status is 1 if an attack had success, a lease or an acknowledged record was lost, or a
node logged a traceback. Times say something on an idle machine only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.attack.run import run_scenes
from tests.attack.scenes import SCENES


def main() -> int:
    """Run what the arguments ask for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", type=int, nargs="*", metavar="POINT")
    parser.add_argument("--size", type=float, default=1.0)
    parser.add_argument("--directory", type=Path, help="keep the nodes' logs and data there")
    arguments = parser.parse_args()
    scenes = [s for s in SCENES if arguments.only is None or s.point in arguments.only]
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary) / "arena"
        verdict = run_scenes(directory, scenes, size=arguments.size, report=_print)
    print(verdict.table)
    print("\n".join(verdict.problems) or "withstood")
    return 1 if verdict.problems else 0


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

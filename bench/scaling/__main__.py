"""Measures how costs grow with idle topics, groups and so on: ``python -m bench.scaling``.

Each dimension grows step by step on a new cluster. At every step the idle nodes are measured, then
a fixed small workload, then a restart. Slopes are fitted and compared with the bounds of
``dimensions``. Each finished dimension's figures are added to
``bench/results/scaling/<label>.json``, and the table is written to ``<label>.md``. The exit status
is 1 if a slope is too steep or a dimension could not be measured.

    python -m bench.scaling --only partitions --only groups --steps 1,10,100 --quick
    python -m bench.scaling --tree ../older-checkout --label before
    python -m bench.scaling --beside kafka
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.scaling.brokers import Kafka, Server, Tidelog
from bench.scaling.dimension import Dimension
from bench.scaling.dimensions import DIMENSIONS
from bench.scaling.measuring import FULL, QUICK, Figures, measure
from bench.scaling.results import Results
from bench.scaling.table import comparison, page, rows
from tools.places import ROOT

RESULTS = Results(Path(__file__).parents[1] / "results" / "scaling")
QUICK_STEPS_MAX = 100


def main() -> int:
    """Measure the requested dimensions, print and write; return the exit status."""
    options = _parser().parse_args()
    chosen = [d for d in DIMENSIONS if not options.only or d.name in options.only]
    server = Tidelog(options.tree.resolve(), is_compiled=not options.interpreted)
    problems = _measure_all(chosen, server, options.label, options)
    seen = RESULTS.read(options.label)
    pages = [page(d, seen[d.name]) for d in chosen]
    if options.beside == "kafka":
        same = [d for d in chosen if d.can_be_kafka]
        label = f"{options.label}-kafka"
        problems |= _measure_all(same, Kafka(), label, options)
        kafka = RESULTS.read(label)
        pages += [page(d, kafka[d.name], beside="Apache Kafka") for d in same]
    if options.against:
        before = RESULTS.read(options.against)
        both = [d for d in chosen if d.name in before]
        pages += [comparison(d, before[d.name], seen[d.name]) for d in both]
    steep = [
        f"{d.name}: {row.measure.value}"
        for d in chosen
        for row in rows(d, seen[d.name])
        if not row.is_good
    ]
    pages += [f"FAILED: {name}: {words}\n" for name, words in problems.items()]
    pages.append("".join(f"TOO STEEP: {one}\n" for one in steep) or "No slope is too steep.\n")
    RESULTS.write_page(options.label, pages)
    print("\n".join(pages))
    return 1 if steep or problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.scaling", description=__doc__)
    names = [dimension.name for dimension in DIMENSIONS]
    parser.add_argument("--only", action="append", choices=names, metavar="DIMENSION")
    parser.add_argument("--steps", type=_steps, help="counts, ascending: 1,10,100")
    parser.add_argument(
        "--quick", action="store_true", help="steps up to 100, shorter measurements"
    )
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout under test")
    parser.add_argument("--interpreted", action="store_true", help="compile nothing")
    parser.add_argument(
        "--beside", choices=["kafka"], help="measure this broker too, where possible"
    )
    parser.add_argument("--against", metavar="LABEL", help="results to compare with")
    parser.add_argument("--label", default="latest", help="name of the results")
    return parser


def _steps(text: str) -> tuple[int, ...]:
    steps = tuple(int(part) for part in text.split(","))
    if list(steps) != sorted(set(steps)) or steps[0] < 1:
        raise argparse.ArgumentTypeError("counts must be positive and ascending")
    return steps


def _measure_all(
    chosen: Sequence[Dimension], server: Server, label: str, options: argparse.Namespace
) -> dict[str, str]:
    """Store the figures of all dimensions under the label; return the failures by name."""
    problems: dict[str, str] = {}
    for dimension in chosen:
        what = f"{server.name}, {dimension.name}"
        seen: dict[int, Figures] = {}
        try:
            measure(
                dimension,
                server,
                steps_of(dimension, options.steps, is_quick=options.quick),
                QUICK if options.quick else FULL,
                tell=partial(_tell, what, seen),
            )
        except Exception as error:
            # The other dimensions are still measured.
            traceback.print_exc()
            problems[what] = f"{type(error).__name__}: {error}"
        RESULTS.add(label, dimension.name, seen)
    return problems


def steps_of(
    dimension: Dimension, wanted: Sequence[int] | None, *, is_quick: bool
) -> tuple[int, ...]:
    """Return the steps of a run: the requested ones, else all or the first of the dimension."""
    if wanted:
        return tuple(wanted)
    few = tuple(step for step in dimension.steps if step <= QUICK_STEPS_MAX)
    if not is_quick:
        return tuple(dimension.steps)
    return few if len(few) > 1 else tuple(dimension.steps[:2])


def _tell(what: str, seen: dict[int, Figures], count: int, figures: Figures) -> None:
    seen[count] = figures
    shown = {one.name.lower(): round(value, 3) for one, value in figures.items()}
    print(f"{what}: {count:,}: {json.dumps(shown)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

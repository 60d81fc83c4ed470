"""How what things cost grows with what lies idle beside them: ``python -m bench.scaling``.

Each dimension grows step by step on a cluster of its own; at every step the nodes are left
alone, a fixed small workload runs, and they are started again. Slopes are fitted and held
against what ``dimensions`` argues. Writes ``bench/results/scaling/<label>.json`` and
``.md``; the exit status is 1 where a slope is too steep or a dimension could not be measured.

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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.scaling.brokers import Kafka, Server, Tidelog
from bench.scaling.dimension import Dimension, Measure
from bench.scaling.dimensions import DIMENSIONS
from bench.scaling.measuring import FULL, QUICK, Effort, Figures, measure
from bench.scaling.table import comparison, page, rows
from tools.places import ROOT

RESULTS = Path(__file__).parents[1] / "results" / "scaling"
QUICK_STEPS_MAX = 100


@dataclass
class Findings:
    """What was seen of each dimension, by step, and what went wrong."""

    seen: dict[str, dict[int, Figures]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def main() -> int:
    """Measure what the arguments name, print and write; return the exit status."""
    options = _parser().parse_args()
    chosen = [d for d in DIMENSIONS if not options.only or d.name in options.only]
    effort = QUICK if options.quick else FULL
    server = Tidelog(options.tree.resolve(), is_compiled=not options.interpreted)
    findings = _measure_all(chosen, server, options, effort)
    pages = [page(d, findings.seen[d.name]) for d in chosen]
    if options.beside == "kafka":
        same = [d for d in chosen if d.can_be_kafka]
        kafka = _measure_all(same, Kafka(), options, effort)
        pages += [page(d, kafka.seen[d.name], beside="Apache Kafka") for d in same]
    steep = [
        f"{d.name}: {row.measure.value}"
        for d in chosen
        for row in rows(d, findings.seen[d.name])
        if not row.is_good
    ]
    if options.against:
        before = _read(options.against)
        both = [d for d in chosen if d.name in before]
        pages += [comparison(d, before[d.name], findings.seen[d.name]) for d in both]
    pages += [f"FAILED: {name}: {words}\n" for name, words in findings.problems.items()]
    pages.append("".join(f"TOO STEEP: {one}\n" for one in steep) or "No slope is too steep.\n")
    _write(options.label, pages, findings)
    print(pages[-1])
    return 1 if steep or findings.problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.scaling", description=__doc__)
    names = [dimension.name for dimension in DIMENSIONS]
    parser.add_argument("--only", action="append", choices=names, metavar="DIMENSION")
    parser.add_argument("--steps", type=_steps, help="counts, ascending: 1,10,100")
    parser.add_argument("--quick", action="store_true", help="steps up to 100, shorter looks")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout under test")
    parser.add_argument("--interpreted", action="store_true", help="compile nothing")
    parser.add_argument("--beside", choices=["kafka"], help="measure it too, where it can be")
    parser.add_argument("--against", metavar="LABEL", help="results to put beside these")
    parser.add_argument("--label", default="latest", help="name of the results")
    return parser


def _steps(text: str) -> tuple[int, ...]:
    steps = tuple(int(part) for part in text.split(","))
    if list(steps) != sorted(set(steps)) or steps[0] < 1:
        raise argparse.ArgumentTypeError("counts must be positive and ascending")
    return steps


def _measure_all(
    chosen: Sequence[Dimension], server: Server, options: argparse.Namespace, effort: Effort
) -> Findings:
    findings = Findings()
    for dimension in chosen:
        seen = findings.seen[dimension.name] = {}
        tell = partial(_tell, f"{server.name}, {dimension.name}", seen)
        try:
            measure(dimension, server, _steps_of(dimension, options), effort, tell=tell)
        except Exception as error:
            # The other dimensions are still worth measuring.
            traceback.print_exc()
            findings.problems[dimension.name] = f"{type(error).__name__}: {error}"
        print(page(dimension, seen, beside="" if server.name == "tidelog" else server.name))
    return findings


def _steps_of(dimension: Dimension, options: argparse.Namespace) -> tuple[int, ...]:
    if options.steps:
        return tuple(options.steps)
    if options.quick:
        few = tuple(step for step in dimension.steps if step <= QUICK_STEPS_MAX)
        return few if len(few) > 1 else tuple(dimension.steps[:2])
    return tuple(dimension.steps)


def _tell(what: str, seen: dict[int, Figures], count: int, figures: Figures) -> None:
    seen[count] = figures
    told = {one.name.lower(): round(value, 3) for one, value in figures.items()}
    print(f"{what}: {count:,}: {json.dumps(told)}", file=sys.stderr, flush=True)


def _write(label: str, pages: Sequence[str], findings: Findings) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{label}.md").write_text("\n".join(pages))
    figures = {
        name: {
            str(count): {one.name: figures[one] for one in Measure if one in figures}
            for count, figures in seen.items()
        }
        for name, seen in findings.seen.items()
    }
    (RESULTS / f"{label}.json").write_text(json.dumps(figures, indent=2) + "\n")


def _read(label: str) -> dict[str, dict[int, Figures]]:
    """Return what an earlier run has written, by dimension and step."""
    written = json.loads((RESULTS / f"{label}.json").read_text())
    return {
        name: {
            int(count): {Measure[one]: value for one, value in figures.items()}
            for count, figures in seen.items()
        }
        for name, seen in written.items()
    }


if __name__ == "__main__":
    sys.exit(main())
